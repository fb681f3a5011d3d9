#include "roofline/hardware.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"
#include "tests/test_folder.h"

using namespace kvcast;
using namespace kvcast::roofline;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// "valid": a device of round numbers with every kind of entry; "refused": rows of [name, JSON
/// merge patch (a null removes the key), parts of the message].
const json& cases() {
  static const json file =
      read_json_file(std::string(KVCAST_SOURCE_DIR) + "/tests/roofline/hardware_files.json");
  return file;
}

const json& valid = cases().at("valid");

Hardware hardware_in(const json& document) {
  const TestFolder folder;
  const fs::path path = folder / "hardware.json";
  std::ofstream(path) << document.dump();
  return read_hardware(path);
}

}  // namespace

TEST_CASE("hardware: a valid file is read into base units with its sources") {
  const Hardware hw = hardware_in(valid);
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
  const Hardware hw = hardware_in(document);
  CHECK(hw.links.empty());
  CHECK(hw.matrix_rate.empty());
  CHECK(hw.description == "toy");
}

TEST_CASE("hardware: a file that extends another says only what is different") {
  const TestFolder folder;
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
}

TEST_CASE("hardware: a relative gives factors and latencies alone, and each says so") {
  const TestFolder folder;
  const auto write = [&](const char* name, const json& document) {
    std::ofstream(folder / name) << document.dump();
  };
  const auto read_with = [&](const json& patch) {
    json document = valid;
    for (const char* key : {"latency", "factors", "links"}) document.erase(key);
    document["name"] = "near";
    document["relative"] = "toy";
    document.merge_patch(patch);
    write("near.json", document);
    return read_hardware(folder / "near.json");
  };
  write("toy.json", valid);
  const Hardware near_toy = read_with({{"memory_bandwidth", {{"value", "1 TB/s"}}}});
  CHECK(near_toy.name == "near");
  CHECK(near_toy.memory_bandwidth.value == 1e12);
  CHECK(near_toy.memory_bandwidth.source == Source::Datasheet);
  CHECK(near_toy.memory_bandwidth.reference == "toy.pdf");
  CHECK(near_toy.links.empty());
  CHECK(near_toy.operator_latency.value == near(2e-6));
  CHECK(near_toy.operator_latency.source == Source::Fitted);
  CHECK(near_toy.operator_latency.reference == "taken from toy: us, today");
  const Sourced& rate = near_toy.matrix_rate.at(DType::FP16);
  CHECK(rate.value == 0.8);
  CHECK(rate.source == Source::Fitted);
  CHECK(rate.reference == "taken from toy: us, today");
  CHECK(near_toy.softmax_bandwidth->by_length.size() == 2);

  // Its own numbers keep their source, and lose the lengths of the relative's.
  const json own{{"value", 0.25}, {"source", "measured"}, {"reference", "us"}};
  const Hardware other = read_with({{"factors", {{"softmax_bandwidth", own}}}});
  CHECK(other.softmax_bandwidth->value == 0.25);
  CHECK(other.softmax_bandwidth->source == Source::Measured);
  CHECK(other.softmax_bandwidth->reference == "us");
  CHECK(other.softmax_bandwidth->by_length.empty());
  CHECK(other.matrix_rate.at(DType::FP16).value == 0.8);

  for (const auto& [patch, part] :
       {std::pair<json, const char*>{{{"extends", "toy"}}, "only one of"},
        {{{"relative", "../toy"}}, "near.json: /relative"},
        {{{"relative", "nothing"}}, "near.json: /relative: got \"nothing\""},
        {{{"relative", "near"}}, "builds on no other one"},
        {{{"memory_capacity", nullptr}}, "/memory_capacity"}}) {
    check_line(message_of([&] { read_with(patch); }), {part});
  }
}

TEST_CASE("hardware: a file that is wrong anywhere is refused with the place") {
  REQUIRE(cases().at("refused").size() == 53);
  for (const json& row : cases().at("refused")) {
    json document = valid;
    document.merge_patch(row[1]);
    const std::string name = row[0];
    CAPTURE(name);
    const std::string line = message_of([&] { hardware_in(document); });
    check_line(line, {"hardware.json"});
    for (const std::string part : row[2]) check_line(line, {part});
  }
  for (const char* text : {"[]", "3", "null", "\"a100\""}) {
    CHECK_THROWS_AS(hardware_in(json::parse(text)), Error);
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

TEST_CASE("hardware: dense fp16 peaks are units times clock times FLOPs of a unit and cycle") {
  // Of one tensor core unit and cycle, with fp32 accumulation: A100's SM 2048 (NVIDIA A100
  // whitepaper), GA102's, AD102's and GB202's 1024, halved on GeForce and on the L20; a compute
  // unit of CDNA 3 2048, of CDNA 4 4096. Clocks are the boost clocks that vendors print.
  struct Part {
    const char* name;
    double units;
    double hz;
    double flops;
  };
  for (const Part& p :
       {Part{"a100-80gb", 108, 1.41e9, 2048}, Part{"a800", 108, 1.41e9, 2048},
        Part{"a30", 56, 1.44e9, 2048}, Part{"a10", 72, 1.695e9, 1024},
        Part{"rtx-4090", 128, 2.52e9, 512}, Part{"l20", 92, 2.52e9, 512},
        Part{"rtx-6000-ada", 142, 2.505e9, 1024}, Part{"rtx-5090", 170, 2.407e9, 512},
        Part{"rtx-pro-6000", 188, 2.617e9, 1024}, Part{"mi300x", 304, 2.1e9, 2048},
        Part{"mi325x", 304, 2.1e9, 2048}, Part{"mi355x", 256, 2.4e9, 4096}}) {
    CAPTURE(std::string(p.name));
    const Hardware hw = load_hardware(catalog(), p.name);
    const double peak = p.units * p.hz * p.flops;
    CHECK(hw.peak_flops_per_second.at(DType::FP16).value == near(peak).epsilon(0.01));
    CHECK(hw.peak_flops_per_second.at(DType::BF16).value == near(peak).epsilon(0.01));
  }
}

TEST_CASE(
    "hardware: at half its clock a device computes half as fast, and reads memory as before") {
  Hardware hw = hardware_in(valid);
  hw.product_latency = hw.operator_latency;
  hw.on_chip_memory_bandwidth = hw.on_chip_read_bandwidth = hw.memory_bandwidth;
  const Hardware slow = at_clock(hw, 0.5);
  for (const auto& [dtype, peak] : hw.peak_flops_per_second) {
    CHECK(slow.peak_flops_per_second.at(dtype).value == peak.value / 2);
  }
  CHECK(slow.vector_flops_per_second.value == hw.vector_flops_per_second.value / 2);
  CHECK(slow.operator_latency.value == 2 * hw.operator_latency.value);
  CHECK(slow.product_latency->value == 2 * hw.product_latency->value);
  CHECK(slow.on_chip_memory_bandwidth->value == hw.on_chip_memory_bandwidth->value / 2);
  CHECK(slow.on_chip_read_bandwidth->value == hw.on_chip_read_bandwidth->value / 2);
  CHECK(slow.memory_bandwidth.value == hw.memory_bandwidth.value);
  CHECK(slow.matrix_rate.at(DType::FP16).value == hw.matrix_rate.at(DType::FP16).value);
  CHECK(slow.memory_capacity.value == hw.memory_capacity.value);
}

TEST_CASE("hardware: the parts for export differ from theirs in NVLink alone") {
  for (const auto& [part, original] : {std::pair{"h800", "h100-sxm"}, {"a800", "a100-80gb"}}) {
    const Hardware cut = load_hardware(catalog(), part);
    const Hardware full = load_hardware(catalog(), original);
    CHECK(cut.peak_flops_per_second.size() == full.peak_flops_per_second.size());
    for (const auto& [dtype, peak] : cut.peak_flops_per_second) {
      CHECK(peak.value == full.peak_flops_per_second.at(dtype).value);
    }
    CHECK(cut.memory_bandwidth.value == full.memory_bandwidth.value);
    CHECK(cut.links.at("nvlink").bandwidth.value == 200e9);
    CHECK(cut.links.at("pcie").bandwidth.value == full.links.at("pcie").bandwidth.value);
    // Both inherit the factors that were measured on the original.
    CHECK(cut.matrix_rate.at(DType::BF16).value == full.matrix_rate.at(DType::BF16).value);
    CHECK(cut.matrix_rate.at(DType::BF16).source == Source::Fitted);
  }
}

TEST_CASE("hardware: an alias loads the device") {
  CHECK(load_hardware(catalog(), "H100").name == "h100-sxm");
  CHECK(load_hardware(catalog(), "4090").name == "rtx-4090");
}

TEST_CASE("hardware: a misspelt name is answered with its neighbour, a new one with its family") {
  const std::string line = message_of([] { load_hardware(catalog(), "h300"); });
  CHECK(line.starts_with("unknown hardware 'h300'; did you mean '"));
  CHECK(line.find("'h200'") != std::string::npos);
  CHECK(line.find("'h20'") != std::string::npos);
  CHECK(message_of([] { load_hardware(catalog(), "h100-sxn"); }) ==
        "unknown hardware 'h100-sxn'; did you mean 'h100-sxm'?");
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
