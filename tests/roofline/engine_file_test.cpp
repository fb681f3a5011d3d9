#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "roofline/engine.h"
#include "tests/model/message_of.h"
#include "tests/model/tiny_models.h"
#include "tests/near.h"
#include "tests/test_folder.h"

using namespace kvcast;
using namespace kvcast::roofline;
using nlohmann::json;

namespace {

json value(const json& v) { return {{"value", v}, {"source", "code"}, {"reference", "a.py"}}; }

/// Every key that a file may have, with values that differ from the defaults.
json whole() {
  return {{"name", "toy"},
          {"description", "a toy"},
          {"aliases", {"plaything"}},
          {"attention", value("eager")},
          {"elementwise", value("fused")},
          {"skip_unread_rows", value(true)},
          {"launches", value(json::parse(R"([["query", "key", "value"]])"))},
          {"prefill_launches", value(json::parse(R"([["gate", "up"]])"))},
          {"decode_launches", value(json::parse(R"([["scores", "softmax"]])"))},
          {"reads_groups_again", value(true)},
          {"groups_read_once", value({4, 8})},
          {"wide_activations", value(true)},
          {"dequantizes_weights", value(true)},
          {"fuses_quantization", value(true)},
          {"marlin_experts", value({"int4", "mxfp4"})},
          {"accumulates_in_fp16", value(true)},
          {"bf16_gradients", value("fp32")},
          {"prefill_tokens", value(512)},
          {"prefill_at_least_context", value(true)},
          {"cuts_prompts", value(true)},
          {"graphs", value("decode")},
          {"host_launch", value("5 us")},
          {"collective_wait", value("6 us")},
          {"launch_gap", value("2 us")},
          {"host_request", value("3 ms")},
          {"host_token", value("4 us")},
          {"host_step", value("1 ms")},
          {"host_sequence", value("7 us")},
          {"scheduler", {{"rules", value("vllm-v1")}, {"memory_share", value(0.9)}}}};
}

struct File {
  TestFolder folder;
  std::filesystem::path path = folder / "toy.json";
  explicit File(const json& document) { std::ofstream(path) << document.dump(); }
};

Engine read(const json& document, const std::string& version = "") {
  return read_engine(File(document).path, version);
}

const EngineValue* value_of(const Engine& engine, const std::string& key) {
  for (const EngineValue& v : engine.values) {
    if (v.key == key) return &v;
  }
  return nullptr;
}

/// Two versions after the first values.
json versioned() {
  json document = whole();
  document["versions"] = {{{"from", "0.6"}, {"date", "2024-09"}, {"host_step", value("2 ms")}},
                          {{"from", "0.10"},
                           {"date", "2025-08"},
                           {"host_step", value("3 ms")},
                           {"scheduler", {{"memory_share", value(0.5)}}}}};
  return document;
}

}  // namespace

TEST_CASE("engine: every key of a file is read, with its source") {
  const Engine e = read(whole());
  CHECK(e.name == "toy");
  CHECK(e.version.empty());
  CHECK(e.versions.empty());
  CHECK(e.description == "a toy");
  CHECK(e.aliases == std::vector<std::string>{"plaything"});
  CHECK_FALSE(e.is_ideal());
  CHECK(e.attention == Kernels::Eager);
  CHECK(e.elementwise == Kernels::Fused);
  CHECK(e.skip_unread_rows);
  CHECK(e.launches == std::vector<Launch>{{{"query", "key", "value"}, Launch::In::AnyPass},
                                          {{"gate", "up"}, Launch::In::Prefill},
                                          {{"scores", "softmax"}, Launch::In::Decode}});
  CHECK(e.reads_groups_again);
  CHECK(e.groups_read_once == std::vector<std::uint64_t>{4, 8});
  CHECK(e.wide_activations);
  CHECK(e.dequantizes_weights);
  CHECK(e.fuses_quantization);
  CHECK(e.marlin_experts == std::vector<DType>{DType::INT4, DType::MXFP4});
  CHECK(e.accumulates_in_fp16);
  CHECK(e.bf16_gradients == DType::FP32);
  CHECK(e.prefill_tokens == 512);
  CHECK(e.prefill_at_least_context);
  CHECK(e.cuts_prompts);
  CHECK(e.graphs == Graphs::Decode);
  CHECK(e.host_launch->value == near(5e-6));
  CHECK(e.collective_wait.value == near(6e-6));
  CHECK(e.launch_gap.value == near(2e-6));
  CHECK(e.host.request.value == near(3e-3));
  CHECK(e.host.token.value == near(4e-6));
  CHECK(e.host.step.value == near(1e-3));
  CHECK(e.host.sequence.value == near(7e-6));
  CHECK(e.values.size() == 27);
  REQUIRE(value_of(e, "scheduler.memory_share") != nullptr);
  CHECK(value_of(e, "scheduler.memory_share")->value == "0.9");
  CHECK(value_of(e, "host_step")->value == "\"1 ms\"");
  CHECK(value_of(e, "host_step")->source == "code");
  CHECK(value_of(e, "host_step")->reference == "a.py");
}

TEST_CASE("engine: a file without values is the ideal engine under another name") {
  Engine e = read({{"name", "bare"}, {"description", "nothing"}});
  CHECK(e.values.empty());
  CHECK_FALSE(e.attention.has_value());
  CHECK_FALSE(e.host_launch.has_value());
  CHECK(e.prefill_tokens == 0);
  CHECK(e.graphs == Graphs::None);
  Lowering l;
  l.attention = l.elementwise = Kernels::Eager;
  const Lowering before = l;
  apply(e, true, true, l);
  CHECK(l == before);
}

TEST_CASE("engine: a version takes the entries of the newest one that is not above it") {
  struct Case {
    const char* asked;
    const char* version;
    double step_ms;
    const char* share;
  };
  for (const Case& c :
       {Case{"", "0.10", 3, "0.5"}, Case{"0.5.9", "0.5.9", 1, "0.9"}, Case{"0.6", "0.6", 2, "0.9"},
        Case{"0.6.3.post1", "0.6.3.post1", 2, "0.9"}, Case{"v0.9", "v0.9", 2, "0.9"},
        Case{"0.10", "0.10", 3, "0.5"}, Case{"1", "1", 3, "0.5"}, Case{"2024-08", "", 1, "0.9"},
        Case{"2024-09", "0.6", 2, "0.9"}, Case{"2025-07", "0.6", 2, "0.9"},
        Case{"2026-01", "0.10", 3, "0.5"}}) {
    CAPTURE(c.asked);
    const Engine e = read(versioned(), c.asked);
    CHECK(e.version == c.version);
    CHECK(e.versions == std::vector<std::string>{"0.6", "0.10"});
    CHECK(e.host.step.value == near(c.step_ms * 1e-3));
    CHECK(value_of(e, "scheduler.memory_share")->value == c.share);
    CHECK(value_of(e, "scheduler.rules")->value == "\"vllm-v1\"");  // of the file itself
    CHECK(e.host.request.value == near(3e-3));
  }
}

TEST_CASE("engine: versions are compared as numbers") {
  using Numbers = std::vector<std::uint64_t>;
  CHECK(version_numbers("0.6.3.post1") == Numbers{0, 6, 3});
  CHECK(version_numbers("b4748") == Numbers{4748});
  CHECK(version_numbers("v1.2") == Numbers{1, 2});
  CHECK(version_numbers("0.1.2a1") == Numbers{0, 1, 2});
  CHECK(version_numbers("1") == version_numbers("1.0"));
  CHECK(version_numbers("main").empty());
  CHECK(version_numbers("").empty());
  CHECK(version_numbers("0.10") > version_numbers("0.9"));
}

TEST_CASE("engine: a file that is wrong anywhere is refused with the place") {
  struct Case {
    json patch;
    std::vector<std::string_view> parts;
  };
  const auto changed = [](const char* key, const json& v) { return json{{key, {{"value", v}}}}; };
  const auto versions = [](const char* list) { return json{{"versions", json::parse(list)}}; };
  const std::vector<Case> all{
      {{{"name", nullptr}}, {"/name", "missing"}},
      {{{"description", nullptr}}, {"/description", "missing"}},
      {{{"host_stpe", value("1 ms")}}, {"unknown key 'host_stpe'", "did you mean 'host_step'?"}},
      {{{"host_step", {{"unit", "ms"}}}}, {"/host_step", "unknown key 'unit'"}},
      {{{"host_step", {{"source", nullptr}}}}, {"/host_step/source", "missing"}},
      {{{"host_step", {{"source", "guess"}}}}, {"/host_step/source", "guess", "documentation"}},
      {{{"host_step", {{"reference", ""}}}}, {"/host_step/reference"}},
      {{{"host_step", {{"value", nullptr}}}}, {"/host_step/value", "missing"}},
      {changed("host_step", "1"), {"/host_step/value", "us"}},
      {changed("host_step", "-1 ms"), {"/host_step/value"}},
      {changed("attention", "tild"), {"/attention", "tild", "did you mean 'tiled'?"}},
      {changed("graphs", "some"), {"/graphs", "some", "did you mean 'none'?"}},
      {changed("skip_unread_rows", 1), {"/skip_unread_rows/value"}},
      {changed("prefill_tokens", "many"), {"/prefill_tokens/value"}},
      {changed("launches", json::array({json::array({"query"})})),
       {"/launches/value", "two or more"}},
      {changed("launches", "query"), {"/launches/value", "two or more"}},
      {{{"scheduler", {{"rulse", value("orca")}}}}, {"/scheduler", "unknown key 'rulse'"}},
      {{{"scheduler", {{"rules", value(1.5)}}}}, {"/scheduler/rules/value", "a string"}},
      {{{"scheduler", {{"max_running_sequences", value("8")}}}},
       {"/scheduler/max_running_sequences/value", "a whole number"}},
      {{{"scheduler", {{"max_batched_tokens", value(1e30)}}}},
       {"/scheduler/max_batched_tokens/value", "to 2^40"}},
      {{{"scheduler", {{"prefix_caching", value(1)}}}},
       {"/scheduler/prefix_caching/value", "true"}},
      {{{"scheduler", {{"memory_share", value(1.5)}}}},
       {"/scheduler/memory_share/value", "up to 1"}},
      {{{"versions", 3}}, {"/versions", "a list of objects"}},
      {versions(R"([{"date": "2024-01"}])"), {"/versions/0/from", "missing"}},
      {versions(R"([{"from": "2"}])"), {"/versions/0/date", "missing"}},
      {versions(R"([{"from": "2", "date": "2024"}])"), {"/versions/0/date", "2024", "month"}},
      {versions(R"([{"from": "main", "date": "2024-01"}])"), {"/versions/0/from", "main"}},
      {versions(R"([{"from": "2", "date": "2024-01"}, {"from": "1.9", "date": "2024-02"}])"),
       {"/versions/1/from", "1.9", "above"}},
  };
  for (const Case& c : all) {
    json document = whole();
    document.merge_patch(c.patch);
    const File file(document);
    const std::string line = message_of([&] { read_engine(file.path); });
    check_line(line, {"toy.json"});
    check_line(line, c.parts);
  }
  check_line(message_of([] { read(versioned(), "newest"); }), {"engine toy", "newest", "a number"});
}

TEST_CASE("engine: a name may carry a version, and ideal needs no file") {
  CHECK(load_engine(catalog(), "ideal").is_ideal());
  const Engine e = load_engine(catalog(), "vllm:0.6.3");
  CHECK(e.name == "vllm");
  CHECK(e.version == "0.6.3");
  CHECK(message_of([] { load_engine(catalog(), "vlm"); }) ==
        "unknown engine 'vlm'; did you mean 'vllm'?");
  check_line(message_of([] { load_engine(catalog(), "vllm:"); }), {"'vllm:'", "NAME:VERSION"});
  check_line(message_of([] { load_engine(catalog(), "vllm:new"); }), {"'new'"});
  const File file(versioned());
  CHECK(load_engine(catalog(), file.path.string() + ":0.7").host.step.value == near(2e-3));
}

TEST_CASE("engine: a version is numbers or a month that there is") {
  for (const char* text : {"vllm:2024-13", "vllm:2024-6", "vllm:0.6 junk", "vllm:0..6"}) {
    CAPTURE(text);
    CHECK(message_of([&] { load_engine(catalog(), text); }).find("2024-06") != std::string::npos);
  }
  check_line(message_of([] { load_engine(catalog(), "ideal:1"); }), {"'ideal:1'", "no versions"});
  CHECK(load_engine(catalog(), "vllm:2024-10").version == "0.6");
  CHECK(read(versioned(), "2024-08").version.empty());
  CHECK(read(versioned(), "2024-09").version == "0.6");
}

TEST_CASE("engine: a file is checked in all its versions, and keeps no catalog name") {
  json late = versioned();
  late["versions"][1]["host_step"] = 5;
  CHECK(message_of([&] { read(late, "0.6"); }).find("/versions/1/host_step") != std::string::npos);
  json backwards = versioned();
  backwards["versions"][1]["date"] = "2024-01";
  CHECK(message_of([&] { read(backwards); }).find("/versions/1/date") != std::string::npos);
  json scheduler = versioned();
  scheduler["scheduler"] = 5;
  CHECK(message_of([&] { read(scheduler); }).find("/scheduler") != std::string::npos);
  json vllm = whole();
  vllm["name"] = "vllm";
  const File file(vllm);
  CHECK(load_engine(catalog(), file.path.string()).name == file.path.string());
}

TEST_CASE("engine: every file of the catalog is read in each of its versions") {
  for (const std::string& name : catalog().names("engines")) {
    CAPTURE(name);
    const std::filesystem::path path = catalog().find("engines", "engine", name);
    const Engine newest = read_engine(path);
    CHECK(newest.name == name);
    CHECK_FALSE(newest.description.empty());
    for (const std::string& version : newest.versions) {
      CHECK(read_engine(path, version).version == version);
    }
  }
}

TEST_CASE("engine: the kernels that the user chose stay") {
  const Engine e = read(whole());
  Lowering l;
  apply(e, true, true, l);
  CHECK(l.attention == Kernels::Eager);
  CHECK(l.elementwise == Kernels::Fused);
  CHECK(l.skip_unread_rows);
  CHECK(l.reads_groups_again);
  CHECK(l.launches == e.launches);
  CHECK(l.groups_read_once == e.groups_read_once);
  CHECK(l.dequantizes_weights);
  CHECK(l.activations == DType::FP32);
  CHECK(l.operands == DType::FP16);
  Lowering chosen;
  chosen.elementwise = Kernels::Eager;
  apply(e, false, false, chosen);
  CHECK(chosen.attention == Kernels::Fused);
  CHECK(chosen.elementwise == Kernels::Eager);
  CHECK(chosen.launches == e.launches);
  Lowering wide;
  wide.activations = DType::FP32;
  apply(e, true, true, wide);
  CHECK_FALSE(wide.operands);  // there is nothing to convert
}

TEST_CASE("engines: activations below 16 bits are operands of products, and 16 bits elsewhere") {
  for (const DType narrow : {DType::FP8, DType::INT8, DType::INT4}) {
    Lowering l;
    l.activations = narrow;
    for (int twice = 0; twice < 2; ++twice) {
      apply(Engine{}, true, true, l);
      CHECK(l.activations == DType::BF16);
      CHECK(l.operands == narrow);
      CHECK(l.operand_dtype() == narrow);
    }
  }
  for (const DType wide : {DType::FP16, DType::BF16, DType::FP32}) {
    Lowering l;
    l.activations = wide;
    apply(Engine{}, true, true, l);
    CHECK(l.activations == wide);
    CHECK_FALSE(l.operands);
  }
}
