#include "measure/validation_store.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "roofline/hardware_fields.h"
#include "tests/near.h"
#include "tests/source_catalog.h"
#include "tests/test_folder.h"

namespace kvcast::measure {
namespace {

Validation validation_of(const std::string& table) {
  return validate(parse_measurements(table, "m"), catalog(), {});
}

const std::string columns = "model,hardware,attention,batch,prompt_len,output_len,ttft_s,tpot_s\n";

roofline::Sourced number(double value) {
  return {value, roofline::Source::Measured, "by hand", ""};
}

/// As if the cases had been measured with these relative errors.
void set_errors(Validation& v, const std::vector<double>& errors) {
  REQUIRE(v.cases.size() == errors.size());
  for (std::size_t i = 0; i < errors.size(); ++i) {
    v.cases[i].measured = v.cases[i].predicted / (1 + errors[i]);
  }
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

/// A store with nothing in it but what a test adds.
ValidationStore empty_store() { return {catalog(), Validation{}}; }

ErrorBars bars_of(ValidationStore& store, const roofline::Hardware& hardware,
                  const std::string& methods, const Lowering& lowering = {},
                  Links links = Links::OfHardware,
                  const roofline::DesignPoint& size = {1, 512, 9}) {
  return store.bars(
      {.hardware = hardware, .methods = methods, .lowering = lowering, .links = links}, size);
}

/// A store that has read the validation back from a file.
ValidationStore store_of(const Validation& v) {
  const TestFolder folder;
  write(folder / "v.json", validation_document(v, "m"));
  ValidationStore store = empty_store();
  store.add(folder / "v.json");
  return store;
}

// Errors are factors: a forecast of 0.8 times the measurement is 1 / 0.8 - 1 = 0.25 off.
TEST_CASE("store: bounds are the worst of few rows of the same device, method and attention") {
  Validation v =
      validation_of(columns +
                    "pythia-160m,tpu-v4,tiled,1,512,9,1,1\npythia-160m,tpu-v4,tiled,1,1024,9,1,1\n"
                    "pythia-160m,tpu-v4,eager,1,512,9,1,1\n");
  set_errors(v, {-0.2, 0.1, 0.22, 0.05, 0.7, 0.8});
  const TestFolder folder;
  write(folder / "v.json", validation_document(v, "m"));
  ValidationStore store = empty_store();
  store.add(folder.path());
  const roofline::Hardware hw = v.devices.at("tpu-v4");
  const ErrorBars tiled = bars_of(store, hw, "plain");
  REQUIRE(tiled.ttft);
  CHECK(tiled.ttft->error == near(0.25).epsilon(1e-4));  // of -0.2 and 0.22
  CHECK(tiled.tpot->error == near(0.1).epsilon(1e-4));   // of 0.1 and 0.05
  CHECK(tiled.ttft->rows == 2);
  CHECK(tiled.note.empty());
  CHECK(tiled.ttft->population ==
        "2 own rows: any engine on tpu-v4, tiled attention, fp16/bf16, any prefill; the worst of "
        "them, which holds for 2 in 3");
  CHECK(bars_of(store, hw, "plain", {.attention = Kernels::Eager}).ttft->error ==
        near(0.7).epsilon(1e-4));

  const ErrorBars slim = bars_of(store, hw, "slim", {});
  CHECK_FALSE(slim.ttft);
  CHECK(slim.note ==
        "no error bound for prefill of 512 and more tokens with slim, tiled attention, on tpu-v4: "
        "no stored row is "
        "alike; no error bound for decode of 1 sequence with slim, tiled attention, on tpu-v4: no "
        "stored row is "
        "alike");
  // Other factors of the same device were never validated.
  roofline::Hardware changed = hw;
  changed.memory_bandwidth.value *= 1.01;
  const ErrorBars other = bars_of(store, changed, "plain", {});
  CHECK_FALSE(other.ttft);
  CHECK(other.note.find("(3 rows of other factors)") != std::string::npos);
}

TEST_CASE("store: a device with any other factor is another one, with other sources it is not") {
  using roofline::Hardware;
  const Hardware device = roofline::load_hardware(catalog(), "a100-80gb");
  const std::string same = fingerprint(device);
  Hardware copy = device;
  copy.memory_bandwidth.reference = "another page";
  CHECK(fingerprint(copy) == same);
  std::set<std::string> seen{same};
  // What fits is not how long it takes, and messages are fingerprinted apart.
  const std::set<std::string> others{"memory_capacity", "link_rate", "host_message_latency",
                                     "host_exchange_latency", "lockstep"};
  for (const roofline::Field& field : roofline::hardware_fields()) {
    CAPTURE(field.path());
    Hardware changed = device;
    field.set(changed, DType::FP16, {0.123, roofline::Source::Measured, "", ""});
    CHECK(seen.insert(fingerprint(changed)).second == !others.contains(field.name()));
  }
  for (const bool length : {true, false}) {
    Hardware changed = device;
    roofline::FactorAt& point = changed.softmax_bandwidth->by_length[1];
    if (length) {
      ++point.length;
    } else {
      point.value = 0.123;
    }
    CHECK(seen.insert(fingerprint(changed)).second);
  }
}

// Errors of one width say nothing of another: other rates and other bytes are at work.
TEST_CASE("store: a bound of one dtype is none of another, but fp16 and bf16 are one") {
  Validation v = validation_of(
      "model,hardware,dtype,batch,prompt_len,output_len,ttft_s,tpot_s\n"
      "pythia-160m,tpu-v4,fp16,1,512,9,1,1\n"
      "pythia-160m,tpu-v4,int8,1,512,9,1,1\n");
  set_errors(v, {0.1, 0.2, 0.3, 0.4});
  ValidationStore store = store_of(v);
  const auto bars = [&](DType weights, DType activations, DType cache) {
    return bars_of(store, v.devices.at("tpu-v4"), "plain",
                   {.weights = weights, .activations = activations, .cache = cache});
  };
  for (const DType half : {DType::FP16, DType::BF16}) {
    const ErrorBars b = bars(half, half, half);
    REQUIRE(b.ttft);
    CHECK(b.ttft->error == near(0.1).epsilon(1e-4));
    CHECK(b.tpot->error == near(0.2).epsilon(1e-4));
    CHECK(b.ttft->rows == 1);
  }
  CHECK(bars(DType::INT8, DType::INT8, DType::INT8).ttft->error == near(0.3).epsilon(1e-4));
  const ErrorBars wide = bars(DType::FP32, DType::FP32, DType::FP32);
  CHECK_FALSE(wide.ttft);
  CHECK_FALSE(wide.tpot);
  CHECK(wide.note.find("on tpu-v4: 2 stored rows of 1 source like it") != std::string::npos);
  CHECK_FALSE(bars(DType::INT8, DType::FP16, DType::BF16).ttft);
}

// Rows of several devices are of the links between them too; those of one device are not.
TEST_CASE("store: a bound of ranks holds for their number and the links it was measured over") {
  Validation v = validation_of(
      "model,hardware,method,batch,prompt_len,output_len,ttft_s,tpot_s\n"
      "pythia-160m,tpu-v4,plain,1,512,9,1,1\n"
      "pythia-160m,tpu-v4,kvr:p=2,1,512,9,1,1\n");
  set_errors(v, {0.1, 0.2, 0.3, 0.4});
  ValidationStore store = store_of(v);
  const roofline::Hardware measured = v.devices.at("tpu-v4");
  using Change = void (*)(roofline::Hardware&);
  const Change changes[] = {[](roofline::Hardware& h) { h.links.at("ici").bandwidth.value /= 2; },
                            [](roofline::Hardware& h) { h.links.at("ici").latency.value *= 2; },
                            [](roofline::Hardware& h) { h.links.clear(); },
                            [](roofline::Hardware& h) { h.link_rate = number(0.5); },
                            [](roofline::Hardware& h) { h.host_message_latency = number(1e-3); },
                            [](roofline::Hardware& h) { h.host_exchange_latency = number(1e-3); },
                            [](roofline::Hardware& h) { h.lockstep = number(0.5); }};
  CHECK(bars_of(store, measured, "kvr:p=2,partition=300/212", {}).ttft->error ==
        near(0.3).epsilon(1e-4));
  const ErrorBars of_four = bars_of(store, measured, "kvr:p=4", {});
  CHECK_FALSE(of_four.ttft);
  CHECK(of_four.note.find("with kvr on 4 devices, tiled attention, on tpu-v4: no stored") !=
        std::string::npos);
  for (const Change change : changes) {
    roofline::Hardware other = measured;
    change(other);
    const ErrorBars bars = bars_of(store, other, "kvr:p=2", {});
    CHECK_FALSE(bars.ttft);
    CHECK(bars.note.find("(1 row of other factors or links)") != std::string::npos);
    const ErrorBars plain = bars_of(store, other, "plain", {});
    CHECK(plain.ttft->error == near(0.1).epsilon(1e-4));
    CHECK(plain.ttft->rows == 1);
  }
  CHECK_FALSE(bars_of(store, measured, "kvr:p=2", {}, Links::Others).ttft);
  CHECK(bars_of(store, measured, "plain", {}, Links::Others).ttft->rows == 1);
}

const std::string public_columns =
    "model,hardware,engine,source,batch,prompt_len,output_len,metric,value,unit\n";

/// Nine rows of three repositories on that device; their TTFTs are a tenth shorter than forecast.
Validation public_rows(const std::string& device) {
  std::string table = public_columns;
  for (int i = 0; i < 9; ++i) {
    table += "pythia-160m," + device + ",vllm,org/" + "abc"[i % 3] + " @ " + std::to_string(i) +
             "," + std::to_string(i + 1) + ",1024,1,ttft_s,1,s\n";
  }
  Validation v = validation_of(table);
  set_errors(v, std::vector<double>(9, 0.1));
  return v;
}

TEST_CASE("store: errors count for the device's relatives while its factors are what they were") {
  const Validation v = public_rows("a100-80gb");
  ValidationStore store = store_of(v);
  const auto population = [&](const roofline::Hardware& hw, const std::string& engine) {
    const ErrorBars b = store.bars({.hardware = hw, .engine = engine}, {1, 512, 9});
    return b.ttft ? b.ttft->population : "none";
  };
  const std::string regime =
      ", tiled attention, weights of 16 bits or more, prefill of 512 and more tokens";
  const roofline::Hardware relative = roofline::load_hardware(catalog(), "a100-40gb");
  CHECK(population(relative, "vllm") == "9 rows of 3 sources: vllm on ampere GPUs" + regime);
  CHECK(population(relative, "sglang") ==
        "9 rows of 3 sources: any engine on ampere GPUs" + regime);
  CHECK(population(relative, "ideal") == "9 rows of 3 sources: any engine on ampere GPUs" + regime);
  CHECK(population(roofline::load_hardware(catalog(), "h200"), "vllm") ==
        "9 rows of 3 sources: vllm on GPUs" + regime);
  CHECK(population(roofline::load_hardware(catalog(), "m2-pro-cpu"), "vllm") == "none");
  // A file of the user's, with the name of a device of the catalog and factors of its own.
  roofline::Hardware own = v.devices.at("a100-80gb");
  own.memory_bandwidth.value *= 1.01;
  own.architecture = "";
  CHECK(population(own, "vllm") == "9 rows of 3 sources: vllm on ampere GPUs" + regime);

  // The same rows, measured with factors that the catalog's device no longer has.
  Validation before = v;
  before.devices.at("a100-80gb").memory_bandwidth.value *= 1.01;
  store = store_of(before);
  CHECK(population(relative, "vllm") == "none");
}

TEST_CASE("store: an estimate without an engine takes errors without one") {
  const Validation v = public_rows("a100-80gb");
  ValidationStore store = store_of(v);
  double most = 0;  // the ninth of nine
  for (const ValidationCase& c : v.cases) {
    CHECK(c.ideal < c.predicted);  // vLLM's host takes time
    most = std::max(most, std::abs(std::log(c.ideal / c.measured)));
  }
  const roofline::Hardware& hw = v.devices.at("a100-80gb");
  CHECK(store.bars({.hardware = hw, .engine = "vllm"}, {1, 512, 9}).ttft->error ==
        near(0.1).epsilon(1e-4));
  CHECK(store.bars({.hardware = hw}, {1, 512, 9}).ttft->error ==
        near(std::exp(most) - 1).epsilon(1e-4));
}

TEST_CASE("store: a whole request counts for the phase that takes most of it") {
  const Validation v = validation_of(
      "model,hardware,batch,prompt_len,output_len,request_s\n"
      "pythia-160m,tpu-v4,1,2048,2,1\n"
      "pythia-160m,tpu-v4,1,600,500,1\n");
  // The prompt of 2048 tokens outweighs one step, 499 steps the prompt of 600.
  CHECK(v.cases[0].ttft_share > 0.5);
  CHECK(v.cases[1].ttft_share < 0.5);
  ValidationStore store = store_of(v);
  const ErrorBars bars = bars_of(store, v.devices.at("tpu-v4"), "plain");
  REQUIRE(bars.ttft);
  REQUIRE(bars.tpot);
  CHECK(bars.ttft->rows == 1);
  CHECK(bars.ttft->error == near(v.cases[0].measured / v.cases[0].predicted - 1).epsilon(1e-4));
  CHECK(bars.tpot->rows == 1);
  CHECK(bars.tpot->error == near(v.cases[1].measured / v.cases[1].predicted - 1).epsilon(1e-4));
}

TEST_CASE("store: options of a method are one method, and a missing metric is named") {
  const Validation v = validation_of(
      "model,hardware,method,batch,prompt_len,output_len,ttft_s\n"
      "pythia-160m,tpu-v4,random-prune:keep=0.5,1,512,1,1\n");
  ValidationStore store = store_of(v);
  const ErrorBars bars = bars_of(store, v.devices.at("tpu-v4"), "random-prune:keep=0.25", {});
  CHECK(bars.ttft);
  CHECK_FALSE(bars.tpot);
  CHECK(bars.note.find("for decode of 1 sequence with random-prune") != std::string::npos);
}

TEST_CASE("store: a file that is none is refused in one line") {
  const TestFolder folder;
  const auto refused = [&](const std::string& text, const char* part) {
    write(folder / "v.json", text);
    CAPTURE(text);
    ValidationStore store = empty_store();
    CHECK_THROWS_WITH_AS(store.add(folder / "v.json"), doctest::Contains(part), Error);
  };
  refused("{", "not valid JSON");
  refused("[]", "an object");
  refused(R"({"what":"else"})", "kvcast validation");
  refused(R"({"what":"kvcast validation","version":3,"devices":{},"rows":[]})", "version");
  refused(R"({"what":"kvcast validation","version":4,"devices":{},"rows":{}})", "a list");
  const std::string start =
      R"({"what":"kvcast validation","version":4,"devices":{"d":"f"},"rows":[)";
  refused(start + "3]}", "/rows/0");
  refused(start + R"({"hardware":"e","predicted":1,"measured":1}]})", "/devices");
  refused(start + R"({"hardware":"d","predicted":1,"measured":0}]})", "/rows/0/measured");
  refused(start + R"({"hardware":"d","predicted":-1,"measured":1}]})", "/rows/0/predicted");
  refused(start + R"({"hardware":"d","predicted":1,"measured":1,"weight_dtype":"fp17"}]})",
          "/rows/0/weight_dtype");
  refused(start + R"({"hardware":"d","predicted":1,"measured":1,"weight_dtype":"fp16",)" +
              R"("activation_dtype":"fp16","cache_dtype":"fp16","engine":"ideal",)" +
              R"("attention":"tiled","method":"plain"}]})",
          "/rows/0/ideal");
}

TEST_CASE("store: the catalog's holds what validate says now") {
  const std::filesystem::path root = catalog().root();
  for (const std::string stem : {"public_llm_latency", "published_ttft", "openelm_m2_pro",
                                 "published_training", "training_steps"}) {
    const Validation now =
        validate(read_measurements(root / "measurements" / (stem + ".csv")), catalog(), {});
    std::ifstream file(root / validation_folder / (stem + ".json"));
    REQUIRE(file.good());
    const nlohmann::json stored = nlohmann::json::parse(file);
    const nlohmann::json written = nlohmann::json::parse(validation_document(now, stem));
    INFO("kvcast validate --measurements data/measurements/"
         << stem << ".csv --store data/validation/" << stem << ".json writes it anew");
    REQUIRE(stored["rows"].size() == now.cases.size());
    for (std::size_t i = 0; i < now.cases.size(); ++i) {
      CAPTURE(now.cases[i].row.id);
      CHECK(stored["rows"][i]["id"] == now.cases[i].row.id);
      for (const nlohmann::json& document : {stored, written}) {
        CHECK((document["rows"][i]["logits"] == "all") == (stem == "openelm_m2_pro"));
      }
      CHECK(stored["rows"][i]["predicted"].get<double>() ==
            near(now.cases[i].predicted).epsilon(1e-3));
    }
    for (const auto& [name, hardware] : now.devices) {
      CHECK(stored["devices"][name] == fingerprint(hardware));
    }
  }
}

}  // namespace
}  // namespace kvcast::measure
