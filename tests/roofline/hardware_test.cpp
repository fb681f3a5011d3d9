#include "roofline/hardware.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"

using namespace kvcast;
using namespace kvcast::roofline;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

// A device of round numbers with every kind of entry.
const json valid = json::parse(R"({
  "name": "toy", "description": "a toy", "kind": "gpu",
  "peak_flops_per_second": {
    "fp32": {"value": "10 TFLOP/s", "source": "datasheet", "reference": "toy.pdf"},
    "fp16": {"value": "100 TFLOP/s", "source": "datasheet", "reference": "toy.pdf"}},
  "vector_flops_per_second": {"value": "5 TFLOP/s", "source": "datasheet", "reference": "toy.pdf"},
  "memory_bandwidth": {"value": "2 TB/s", "source": "datasheet", "reference": "toy.pdf"},
  "memory_capacity": {"value": "80 GB", "source": "datasheet", "reference": "toy.pdf"},
  "on_chip_memory_capacity": {"value": "40 MiB", "source": "datasheet", "reference": "toy.pdf"},
  "links": {"nvlink": {
    "bandwidth": {"value": "300 GB/s", "source": "datasheet", "reference": "toy.pdf"},
    "latency": {"value": "10 us", "source": "fitted", "reference": "guess", "note": "a note"}}},
  "latency": {
    "operator": {"value": "2 us", "source": "measured", "reference": "us, today"},
    "host_operator": {"value": "0 s", "source": "fitted", "reference": "none"}},
  "factors": {
    "matrix_rate": {"fp16": {"value": 0.8, "source": "measured", "reference": "us, today"}},
    "softmax_bandwidth": {"value": 0.4, "source": "measured", "reference": "us, today",
      "by_length": {"lengths": [1000, 2000], "values": [0.3, 0.5]}},
    "memory_bandwidth": {"value": 1, "source": "measured", "reference": "us, today"}}})");

struct Bad {
  std::string_view name;
  std::string_view patch;  ///< a JSON merge patch; a null removes the key
  std::vector<std::string_view> words;
};

/// Writes a document to a file, reads it and removes it.
Hardware read(const json& document) {
  const fs::path path = fs::temp_directory_path() / "kvcast-hardware-test.json";
  std::ofstream(path) << document.dump();
  struct Remove {
    fs::path path;
    ~Remove() { fs::remove(path); }
  } const remove{path};
  return read_hardware(path);
}

}  // namespace

TEST_CASE("hardware: a valid file is read into base units with its sources") {
  const Hardware hw = read(valid);
  CHECK(hw.name == "toy");
  CHECK(hw.kind == "gpu");
  CHECK(hw.peak_flops_per_second.size() == 2);
  CHECK(hw.peak_flops_per_second.at(DType::FP16).value == 100e12);
  CHECK(hw.vector_flops_per_second.value == 5e12);
  CHECK(hw.memory_bandwidth.value == 2e12);
  CHECK(hw.memory_capacity.value == 80e9);
  CHECK(hw.on_chip_memory_capacity.value == 41943040);
  CHECK(hw.links.at("nvlink").bandwidth.value == 300e9);
  CHECK(hw.links.at("nvlink").latency.value == near(1e-5));
  CHECK(hw.links.at("nvlink").latency.source == Source::Fitted);
  CHECK(hw.links.at("nvlink").latency.note == "a note");
  CHECK(hw.operator_latency.value == near(2e-6));
  CHECK(hw.operator_latency.source == Source::Measured);
  CHECK(hw.operator_latency.reference == "us, today");
  CHECK(hw.host_operator_latency.value == 0);
  CHECK(hw.matrix_rate.at(DType::FP16).value == 0.8);
  CHECK(hw.memory_bandwidth_factor->value == 1);
  CHECK_FALSE(hw.elementwise_bandwidth.has_value());
  CHECK(hw.tiled_attention_rate.empty());
}

TEST_CASE("hardware: links and factors may be left out, nothing else") {
  json document = valid;
  document.erase("links");
  document.erase("factors");
  document.erase("description");
  const Hardware hw = read(document);
  CHECK(hw.links.empty());
  CHECK(hw.matrix_rate.empty());
  CHECK(hw.description == "toy");
}

TEST_CASE("hardware: a file that extends another says only what is different") {
  const fs::path folder = fs::temp_directory_path() / "kvcast-hardware-extends-test";
  fs::create_directory(folder);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name) << text;
  };
  write("toy.json", valid.dump());
  write("slow.json", R"({"extends": "toy", "name": "slow", "latency": {
    "host_operator": {"value": "70 us", "source": "fitted", "reference": "rows"},
    "host_message": {"value": "40 us", "source": "fitted", "reference": "rows"},
    "host_exchange": {"value": "2 ms", "source": "fitted", "reference": "rows"}},
    "factors": {"link_rate": {"value": 0.5, "source": "measured", "reference": "runs"}}})");
  const Hardware base = read_hardware(folder / "toy.json");
  const Hardware slow = read_hardware(folder / "slow.json");
  CHECK(slow.name == "slow");
  CHECK(slow.host_operator_latency.value == near(70e-6));
  CHECK(slow.host_operator_latency.source == Source::Fitted);
  REQUIRE(slow.host_message_latency);
  CHECK(slow.host_message_latency->value == near(40e-6));
  REQUIRE(slow.host_exchange_latency);
  CHECK(slow.host_exchange_latency->value == near(2e-3));
  CHECK(slow.link_rate->value == 0.5);
  CHECK(slow.operator_latency.value == base.operator_latency.value);
  CHECK(slow.memory_bandwidth.value == base.memory_bandwidth.value);
  CHECK_FALSE(base.host_message_latency);
  CHECK_FALSE(base.link_rate);

  // A factor that is said anew is not what the base measured at several lengths.
  const std::string of_toy = R"({"extends": "toy", "factors": {"softmax_bandwidth": )";
  write("other.json", of_toy + R"({"value": 0.2, "source": "measured", "reference": "us"}}})");
  CHECK(base.softmax_bandwidth->by_length.size() == 2);
  CHECK(slow.softmax_bandwidth->by_length == base.softmax_bandwidth->by_length);
  const Hardware other = read_hardware(folder / "other.json");
  CHECK(other.softmax_bandwidth->value == 0.2);
  CHECK(other.softmax_bandwidth->by_length.empty());
  write("both.json", of_toy + R"({"value": 0.2, "source": "measured", "reference": "us",
    "by_length": {"lengths": [7], "values": [0.1]}}}})");
  CHECK(read_hardware(folder / "both.json").softmax_bandwidth->by_length ==
        std::vector<FactorAt>{{7, 0.1}});

  write("again.json", R"({"extends": "slow"})");
  CHECK_THROWS_AS(read_hardware(folder / "again.json"), Error);
  write("outside.json", R"({"extends": "../toy"})");
  CHECK_THROWS_AS(read_hardware(folder / "outside.json"), Error);
  write("missing.json", R"({"extends": "nothing"})");
  CHECK_THROWS_AS(read_hardware(folder / "missing.json"), Error);
  fs::remove_all(folder);
}

TEST_CASE("hardware: a file that is wrong anywhere is refused with the place") {
  for (const Bad& c : std::vector<Bad>{
           {"no name", R"({"name": null})", {"/name", "missing"}},
           {"no kind", R"({"kind": null})", {"/kind", "missing"}},
           {"kind", R"({"kind": "npu"})", {"/kind", "npu", "gpu, cpu or tpu"}},
           {"no bandwidth", R"({"memory_bandwidth": null})", {"/memory_bandwidth", "missing"}},
           {"no capacity", R"({"memory_capacity": null})", {"/memory_capacity", "missing"}},
           {"no on-chip", R"({"on_chip_memory_capacity": null})", {"/on_chip_memory_capacity"}},
           {"no vector rate", R"({"vector_flops_per_second": null})", {"/vector_flops_per_second"}},
           {"no latency", R"({"latency": null})", {"/latency", "missing"}},
           {"no host latency", R"({"latency": {"host_operator": null}})", {"/host_operator"}},
           {"no peaks", R"({"peak_flops_per_second": null})", {"/peak_flops_per_second"}},
           {"empty peaks",
            R"({"peak_flops_per_second": {"fp16": null, "fp32": null}})",
            {"/peak_flops_per_second", "at least one dtype"}},
           {"bare quantity",
            R"({"memory_bandwidth": "2 TB/s"})",
            {"/memory_bandwidth", "an object"}},
           {"number",
            R"({"memory_bandwidth": {"value": 2000}})",
            {"/memory_bandwidth/value", "2000", "unit"}},
           {"no unit",
            R"({"memory_bandwidth": {"value": "2000"}})",
            {"/memory_bandwidth/value", "\"2000\"", "TB/s"}},
           {"bytes for a rate", R"({"memory_bandwidth": {"value": "2 TB"}})", {"/value", "TB/s"}},
           {"rate for bytes", R"({"memory_capacity": {"value": "80 GB/s"}})", {"/value", "80 GB"}},
           {"bits", R"({"memory_capacity": {"value": "80 Gb"}})", {"/memory_capacity/value"}},
           {"zero bandwidth",
            R"({"memory_bandwidth": {"value": "0 TB/s"}})",
            {"/memory_bandwidth/value", "above zero"}},
           {"negative bandwidth", R"({"memory_bandwidth": {"value": "-2 TB/s"}})", {"/value"}},
           {"infinite bandwidth", R"({"memory_bandwidth": {"value": "inf TB/s"}})", {"/value"}},
           {"value that is null",
            R"({"memory_bandwidth": {"value": null}})",
            {"/memory_bandwidth/value", "missing"}},
           {"value that is a list", R"({"memory_bandwidth": {"value": ["2 TB/s"]}})", {"/value"}},
           {"value that is true", R"({"memory_bandwidth": {"value": true}})", {"/value"}},
           {"zero peak",
            R"({"peak_flops_per_second": {"fp16": {"value": "0 TFLOP/s"}}})",
            {"/peak_flops_per_second/fp16/value", "above zero"}},
           {"TFLOPS",
            R"({"peak_flops_per_second": {"fp16": {"value": "312 TFLOPS"}}})",
            {"/peak_flops_per_second/fp16/value", "TFLOP/s"}},
           {"negative latency",
            R"({"latency": {"operator": {"value": "-1 us"}}})",
            {"/latency/operator/value"}},
           {"latency in FLOPs",
            R"({"latency": {"operator": {"value": "1 FLOP/s"}}})",
            {"/latency/operator/value", "us"}},
           {"unknown dtype",
            R"({"peak_flops_per_second": {"pf16": {"value": "1 FLOP/s"}}})",
            {"/peak_flops_per_second", "pf16", "did you mean"}},
           {"no source",
            R"({"memory_bandwidth": {"source": null}})",
            {"/memory_bandwidth/source", "missing"}},
           {"unknown source",
            R"({"memory_bandwidth": {"source": "guess"}})",
            {"/memory_bandwidth/source", "guess", "datasheet, measured or fitted"}},
           {"no reference", R"({"memory_bandwidth": {"reference": null}})", {"/reference"}},
           {"empty reference",
            R"({"memory_bandwidth": {"reference": ""}})",
            {"/memory_bandwidth/reference"}},
           {"unknown key",
            R"({"memory_bandwith": 1})",
            {"unknown key 'memory_bandwith'", "did you mean 'memory_bandwidth'?"}},
           {"key with a newline", R"({"memory\nbandwidth": 1})", {"unknown key"}},
           {"unknown key inside",
            R"({"memory_bandwidth": {"vaule": 1}})",
            {"/memory_bandwidth", "unknown key 'vaule'", "did you mean 'value'?"}},
           {"unknown latency", R"({"latency": {"hots_operator": 1}})", {"/latency", "hots"}},
           {"unknown key of a link",
            R"({"links": {"nvlink": {"lanes": 12}}})",
            {"/links/nvlink", "unknown key 'lanes'"}},
           {"link without latency",
            R"({"links": {"nvlink": {"latency": null}}})",
            {"/links/nvlink/latency", "missing"}},
           {"links that are a list", R"({"links": [1]})", {"/links", "an object"}},
           {"factor above 1",
            R"({"factors": {"memory_bandwidth": {"value": 1.01}}})",
            {"/factors/memory_bandwidth/value", "1.01", "at most 1"}},
           {"lengths in disorder",
            R"({"factors": {"softmax_bandwidth": {"by_length": {"lengths": [8, 8]}}}})",
            {"/factors/softmax_bandwidth/by_length/lengths", "[8,8]", "longer than"}},
           {"fewer values than lengths",
            R"({"factors": {"softmax_bandwidth": {"by_length": {"values": [0.5]}}}})",
            {"/factors/softmax_bandwidth/by_length/values", "[0.5]", "2 numbers"}},
           {"value of a length above 1",
            R"({"factors": {"softmax_bandwidth": {"by_length": {"values": [0.5, 1.5]}}}})",
            {"/factors/softmax_bandwidth/by_length/values", "at most 1"}},
           {"a longer row in less time",
            R"({"factors": {"softmax_bandwidth": {"by_length": {"values": [0.2, 0.5]}}}})",
            {"/factors/softmax_bandwidth/by_length/values", "0.2 at 1000 and 0.5 at 2000",
             "longer than a shorter one"}},
           {"lengths that are none",
            R"({"factors": {"softmax_bandwidth": {"by_length": {"lengths": []}}}})",
            {"/factors/softmax_bandwidth/by_length/lengths", "whole numbers"}},
           {"a rate by length that has none",
            R"({"factors": {"memory_bandwidth": {"by_length": {"lengths": [1], "values": [1]}}}})",
            {"/factors/memory_bandwidth", "unknown key 'by_length'"}},
           {"factor in percent",
            R"({"factors": {"matrix_rate": {"fp16": {"value": 80}}}})",
            {"/factors/matrix_rate/fp16/value", "at most 1"}},
           {"factor of zero",
            R"({"factors": {"memory_bandwidth": {"value": 0}}})",
            {"/factors/memory_bandwidth/value", "above 0"}},
           {"negative factor",
            R"({"factors": {"memory_bandwidth": {"value": -0.5}}})",
            {"/factors/memory_bandwidth/value"}},
           {"factor with a unit",
            R"({"factors": {"memory_bandwidth": {"value": "0.8"}}})",
            {"/factors/memory_bandwidth/value"}},
           {"factor without dtype",
            R"({"factors": {"matrix_rate": 0.8}})",
            {"/factors/matrix_rate", "an object"}},
           {"unknown factor",
            R"({"factors": {"efficiency": {"value": 0.5}}})",
            {"/factors", "unknown key 'efficiency'"}}}) {
    json document = valid;
    document.merge_patch(json::parse(c.patch));
    std::string line = "(no Error was thrown)";
    try {
      read(document);
    } catch (const Error& e) {
      line = e.what();
    }
    CAPTURE(c.name);
    CAPTURE(line);
    CHECK(line.find("kvcast-hardware-test.json") != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
    for (const std::string_view word : c.words) {
      CAPTURE(word);
      CHECK(line.find(word) != std::string::npos);
    }
  }
  for (const char* text : {"[]", "3", "null", "\"a100\""}) {
    CHECK_THROWS_AS(read(json::parse(text)), Error);
  }
}

TEST_CASE("hardware: every file of the catalog is read, is named after itself and has sources") {
  const std::vector<std::string> names = catalog().names("hardware");
  CHECK(names.size() >= 15);
  for (const std::string& name : names) {
    CAPTURE(name);
    const Hardware hw = load_hardware(catalog(), name);
    CHECK(hw.name == name);
    CHECK_FALSE(hw.memory_bandwidth.reference.empty());
    CHECK(hw.on_chip_memory_capacity.value < hw.memory_capacity.value);
    CHECK_NOTHROW(hw.supported(DType::FP16));
    CHECK_NOTHROW(hw.supported(DType::BF16));
    for (const auto& [dtype, factor] : hw.matrix_rate) {
      CAPTURE(std::string(kvcast::name(dtype)));
      CHECK(hw.peak_flops_per_second.contains(dtype));
      CHECK(factor.value <= 1);
    }
  }
}

TEST_CASE("hardware: the peaks of two well-known parts are those of their datasheets") {
  const Hardware a100 = load_hardware(catalog(), "a100-80gb");
  CHECK(a100.peak_flops_per_second.at(DType::FP16).value == 312e12);
  CHECK(a100.peak_flops_per_second.at(DType::INT8).value == 624e12);
  CHECK(a100.memory_bandwidth.value == 2039e9);
  CHECK(a100.memory_capacity.value == 80e9);
  const Hardware h100 = load_hardware(catalog(), "h100-sxm");
  CHECK(h100.peak_flops_per_second.at(DType::BF16).value == near(989e12).epsilon(0.01));
  CHECK(h100.memory_bandwidth.value == near(3.35e12).epsilon(0.01));
}

TEST_CASE("hardware: a misspelt name is answered with its neighbour") {
  try {
    load_hardware(catalog(), "h100-sxn");
    FAIL("no Error");
  } catch (const Error& e) {
    CHECK(std::string(e.what()) == "unknown hardware 'h100-sxn'; did you mean 'h100-sxm'?");
  }
}

TEST_CASE(
    "hardware: a dtype that the device lacks runs as the next wider one, fp16 and bf16 as each "
    "other") {
  const auto with = [](std::initializer_list<DType> dtypes) {
    Hardware hw;
    hw.name = "toy";
    for (const DType d : dtypes) hw.peak_flops_per_second[d] = {};
    return hw;
  };
  const Hardware gpu = with({DType::FP32, DType::TF32, DType::FP16, DType::BF16, DType::INT8});
  for (const DType own : {DType::FP32, DType::FP16, DType::BF16, DType::INT8}) {
    CHECK(gpu.supported(own) == own);
  }
  CHECK(gpu.supported(DType::INT4) == DType::INT8);
  // eight-bit floats need a float unit: not int8
  CHECK(gpu.supported(DType::FP8) == DType::BF16);
  CHECK(gpu.supported(DType::Q4_0) == DType::BF16);  // GGUF's blocks become floats
  const Hardware hopper = with({DType::FP32, DType::FP16, DType::FP8});
  CHECK(hopper.supported(DType::INT8) == DType::FP8);
  CHECK(hopper.supported(DType::Q8_0) == DType::FP16);  // 8.5 bits do not fit fp8
  CHECK(hopper.supported(DType::BF16) == DType::FP16);
  const Hardware cpu = with({DType::FP32});
  for (const DType any :
       {DType::INT4, DType::INT8, DType::FP8, DType::FP16, DType::BF16, DType::Q6_K}) {
    CHECK(cpu.supported(any) == DType::FP32);
  }
  CHECK_THROWS_AS(with({DType::INT8}).supported(DType::FP16), Error);
  CHECK_THROWS_AS(with({DType::FP16}).supported(DType::FP32), Error);
  CHECK(with({DType::FP32, DType::BF16}).supported(DType::FP16) == DType::BF16);
  // Nothing is wider than fp64: a device that lacks it does not stand in with fewer bits.
  CHECK_THROWS_AS(gpu.supported(DType::FP64), Error);
  CHECK(with({DType::FP32, DType::FP64}).supported(DType::FP64) == DType::FP64);
}

TEST_CASE("hardware: strict fp32 never runs in tf32, whose products are narrower") {
  // a100-80gb.json: 19.5 TFLOP/s in fp32, 156 in tf32
  Hardware hw;
  hw.name = "toy";
  hw.peak_flops_per_second[DType::TF32] = {};
  CHECK_THROWS_AS(hw.supported(DType::FP32), Error);
  CHECK(load_hardware(catalog(), "a100-80gb").supported(DType::FP32) == DType::FP32);
}
