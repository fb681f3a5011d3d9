#include "reports/sweep/sweep_spec.h"

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "model/io/weights/catalog.h"
#include "reports/sweep/sweep_grid.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

namespace kvcast::reports {
namespace {

using Numbers = std::vector<std::uint64_t>;
using Words = std::vector<std::string>;

SweepSpec spec_from(const std::string& json) {
  const TestFolder folder;
  const std::string file = folder.file("spec.json");
  std::ofstream(file) << json;
  try {
    return read_sweep_spec(file);
  } catch (const Error& e) {
    throw Error(std::string(e.what()).substr(file.size()));
  }
}

TEST_CASE("sweep_spec: numbers are lists and ranges, k is 1024") {
  CHECK(parse_numbers("7", "-b") == Numbers{7});
  CHECK(parse_numbers("1k,4k", "-b") == Numbers{1024, 4096});
  CHECK(parse_numbers("1k..8k:x2", "-b") == Numbers{1024, 2048, 4096, 8192});
  CHECK(parse_numbers("1k..4k:1k", "-b") == Numbers{1024, 2048, 3072, 4096});
  CHECK(parse_numbers("3..6", "-b") == Numbers{3, 4, 5, 6});
  CHECK(parse_numbers("5..5", "-b") == Numbers{5});
}

TEST_CASE("sweep_spec: a range ends at the last value that is not above its end") {
  CHECK(parse_numbers("3..20:x3", "-b") == Numbers{3, 9});
  CHECK(parse_numbers("3..20:5", "-b") == Numbers{3, 8, 13, 18});
}

TEST_CASE("sweep_spec: a value named twice counts once, where it came first") {
  CHECK(parse_numbers("4,1..6:x2,2", "-b") == Numbers{4, 1, 2});
  CHECK(parse_words("b,a,b", "-m") == Words{"b", "a"});
}

TEST_CASE("sweep_spec: a range without overflow at the largest number") {
  CHECK(parse_numbers("4e14..1e15:x2", "-b") == Numbers{400000000000000, 800000000000000});
}

TEST_CASE("sweep_spec: a comma separates methods only where no option follows") {
  CHECK(parse_method_words("plain,slim", "--method") == Words{"plain", "slim"});
  CHECK(parse_method_words("a:x=1,y=2,b:z=3", "--method") == Words{"a:x=1,y=2", "b:z=3"});
  CHECK(parse_method_words("a:x=1,y=2+c:z=3,w=4;plain", "--method") ==
        Words{"a:x=1,y=2+c:z=3,w=4", "plain"});
  CHECK(parse_method_words("a:x=1,slim+b:y=2", "--method") == Words{"a:x=1", "slim+b:y=2"});
}

TEST_CASE("sweep_spec: set values may hold brackets, and whole numbers may be ranges") {
  CHECK(parse_set_axis("key=1,8", "--set") == SetAxis{"key", {"1", "8"}});
  CHECK(parse_set_axis("key=[1,2],\"a,b\"", "--set") == SetAxis{"key", {"[1,2]", "\"a,b\""}});
  CHECK(parse_set_axis("key=1..8:x2", "--set") == SetAxis{"key", {"1", "2", "4", "8"}});
  CHECK(parse_set_axis("key=1e-5", "--set") == SetAxis{"key", {"1e-5"}});
}

TEST_CASE("sweep_spec: bad lists and ranges name the flag and what would be right") {
  const auto numbers = [](const char* text) {
    return message_of([&] { parse_numbers(text, "--batch"); });
  };
  CHECK(numbers("") == "--batch: got an empty list, expected at least one value");
  CHECK(numbers("1,,2") ==
        "--batch: got an empty value in '1,,2', expected values separated by single commas");
  CHECK(numbers("8..1") ==
        "--batch: got the reversed range '8..1', expected its smaller end first");
  CHECK(numbers("1..8:0").starts_with("--batch: got the step '0', expected a step above 0"));
  CHECK(numbers("1..8:x1").starts_with("--batch: got the step 'x1'"));
  CHECK(numbers("1..8:x").starts_with("--batch: got the step 'x'"));
  CHECK(numbers("1..").starts_with("--batch: got \"\""));
  CHECK(numbers("..8").starts_with("--batch: got \"\""));
  CHECK(numbers("-1").starts_with("--batch: got \"-1\""));
  CHECK(numbers("1.5").starts_with("--batch: got \"1.5\""));
  CHECK(numbers("1..1e9") == "--batch: got 1000000000 values, expected at most 10000000");
  CHECK(message_of([] { parse_set_axis("key", "--set"); }) ==
        "--set: got 'key', expected KEY=VALUE[,VALUE...]");
  CHECK_THROWS_AS(parse_set_axis("key=", "--set"), Error);
  CHECK_THROWS_AS(parse_method_words("a;;b", "--method"), Error);
  CHECK(parse_method_words("fp8,embedding=bf16,head=bf16,q4_k_m", "--weight-dtype") ==
        Words{"fp8,embedding=bf16,head=bf16", "q4_k_m"});
}

TEST_CASE("sweep_spec: JSON holds the axes of training, numbers and words") {
  const SweepSpec spec = spec_from(
      R"({"seq_len": "1k..4k:x2", "recompute": ["none", "full"], "zero": [0, 3],
          "virtual_stages": [1, "2..4:x2"], "micro_batches": 8})");
  CHECK(spec.seq_len == Numbers{1024, 2048, 4096});
  CHECK(spec.recompute == Words{"none", "full"});
  CHECK(spec.zero == Words{"0", "3"});
  CHECK(spec.virtual_stages == Numbers{1, 2, 4});
  CHECK(spec.micro_batches == Words{"8"});
}

TEST_CASE("sweep_spec: JSON holds the same axes, with numbers, texts and lists of both") {
  const SweepSpec spec = spec_from(R"({
    "model": ["llama-7b", "t5-small"], "hardware": "a100-80gb,h100-sxm",
    "method": ["random-prune:keep=0.5", "plain"], "weight_dtype": "int4",
    "batch": 3, "prompt_len": ["1k..4k:x2", 7], "output_len": "2..3",
    "set": {"num_key_value_heads": [1, 8], "rope_theta": "1e4,1e6", "hidden_size": 64}})");
  CHECK(spec.model == Words{"llama-7b", "t5-small"});
  CHECK(spec.hardware == Words{"a100-80gb", "h100-sxm"});
  CHECK(spec.method == Words{"random-prune:keep=0.5", "plain"});
  CHECK(spec.weight_dtype == Words{"int4"});
  CHECK(spec.dtype.empty());
  CHECK(spec.batch == Numbers{3});
  CHECK(spec.prompt_len == Numbers{1024, 2048, 4096, 7});
  CHECK(spec.output_len == Numbers{2, 3});
  REQUIRE(spec.set.size() == 3);  // keys in alphabetical order
  CHECK(spec.set[0] == SetAxis{"hidden_size", {"64"}});
  CHECK(spec.set[1] == SetAxis{"num_key_value_heads", {"1", "8"}});
  CHECK(spec.set[2] == SetAxis{"rope_theta", {"1e4", "1e6"}});
}

TEST_CASE("sweep_spec: bad JSON names the place") {
  const auto json = [](const char* text) { return message_of([&] { spec_from(text); }); };
  CHECK(json(R"({"promptlen": 5})") == ": unknown key 'promptlen'; did you mean 'prompt_len'?");
  CHECK(json(R"({"batch": []})") == ": /batch: got an empty list, expected at least one value");
  CHECK(json(R"({"batch": [[1]]})").starts_with(": /batch: got a list in a list"));
  CHECK(json(R"({"batch": 1.5})").starts_with(": /batch: got \"1.5\""));
  CHECK(json(R"({"batch": "4..2"})").starts_with(": /batch: got the reversed range"));
  CHECK(json(R"({"batch": {"from": 1}})").starts_with(": /batch: got an object"));
  CHECK(json(R"({"set": 5})").starts_with(": /set: got 5, expected an object"));
  CHECK(json(R"({"set": {"key": []}})").starts_with(": /set/key: got an empty list"));
  CHECK_THROWS_AS(spec_from("[1]"), Error);
  CHECK_THROWS_AS(spec_from("{"), Error);
}

/// The error of a grid of one model and one device, with one change.
std::string grid_error(const std::function<void(SweepSpec&)>& change) {
  SweepSpec spec;
  spec.model = {"pythia-70m"};
  spec.hardware = {"a100-80gb"};
  change(spec);
  return message_of([&] { SweepGrid(spec, Catalog(KVCAST_SOURCE_DIR "/data")); });
}

TEST_CASE("sweep_spec: a grid refuses what no row could be about") {
  CHECK(grid_error([](SweepSpec&) {}) == "(no Error was thrown)");
  CHECK(grid_error([](SweepSpec& s) { s.model.clear(); }).starts_with("--model is required"));
  CHECK(grid_error([](SweepSpec& s) { s.model = {"lama-7b"}; }) ==
        "unknown model 'lama-7b'; did you mean 'llama-7b'?");
  CHECK(grid_error([](SweepSpec& s) { s.hardware = {"a1000"}; }).starts_with("unknown hardware"));
  CHECK(grid_error([](SweepSpec& s) { s.engine = {"vlm"}; }) ==
        "--engine: unknown engine 'vlm'; did you mean 'vllm'?");
  CHECK(grid_error([](SweepSpec& s) { s.method = {"plane"}; }) ==
        "--method: unknown method 'plane'; did you mean 'plain'?");
  CHECK(grid_error([](SweepSpec& s) { s.attention = {"tile"}; }) ==
        "--attention: unknown kind 'tile'; did you mean 'tiled'?");
  CHECK(grid_error([](SweepSpec& s) { s.cache_dtype = {"fp17"}; }) ==
        "--cache-dtype: unknown dtype 'fp17'; did you mean 'fp16'?");
  CHECK(grid_error([](SweepSpec& s) { s.mode = {"calibrate"}; }) ==
        "--mode: unknown mode 'calibrate'; did you mean 'calibrated'?");
  CHECK(grid_error([](SweepSpec& s) {
          s.set = {{"hiden_size", {"8"}}};
        }) == "--set hiden_size: unknown config key 'hiden_size'; did you mean 'hidden_size'?");
  CHECK(grid_error([](SweepSpec& s) {
          s.set = {{"num_hidden_layers", {"2"}}, {"num_hidden_layers", {"3"}}};
        }).starts_with("--set num_hidden_layers: given twice"));
  CHECK(grid_error([](SweepSpec& s) {
          s.dtype = s.weight_dtype = s.activation_dtype = s.cache_dtype = {"fp16"};
        }).starts_with("--dtype has no effect"));
  CHECK(grid_error([](SweepSpec& s) {
          s.batch = s.prompt_len = parse_numbers("1..40000", "-b");
        }).starts_with("the grid: got 1.6e+09 points"));
}

}  // namespace
}  // namespace kvcast::reports
