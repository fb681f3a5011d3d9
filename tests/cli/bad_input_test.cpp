#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

struct BadInput {
  std::string arguments;
  int status;
  std::string message;  ///< part of the one line on stderr
};

const std::string base = "estimate --quiet --model llama-7b --hardware a100-80gb ";

const std::vector<BadInput>& bad_inputs() {
  static const std::vector<BadInput> cases{
      {"", 2, "subcommand"},
      {"estmate", 2, "did you mean 'estimate'?"},
      {"estimate --modle llama-7b --hardware a100-80gb", 2, "did you mean '--model'?"},
      {"estimate --model llama-7b", 2, "--hardware"},
      {"estimate --model lama-7b --hardware a100-80gb", 2, "did you mean 'llama-7b'?"},
      {"estimate --model llama-7b --hardware a100-80g", 2, "did you mean 'a100-80gb'?"},
      {"estimate --model nothing.json --hardware a100-80gb", 2, "nothing.json: no such file"},
      {"estimate --model /tmp --hardware a100-80gb", 2, "config.json"},
      {"estimate --model model.gguf --hardware a100-80gb", 2, "no such file"},
      {base + "--method plane", 2, "did you mean 'plain'?"},
      {base + "--method plain:keep=1", 2, "takes no options"},
      {base + "--method random-prune", 2, "'keep' is missing"},
      {base + "--method random-prune:keep=0", 2, "a fraction above 0"},
      {base + "--method random-prune:keep=1.5", 2, "a fraction above 0"},
      {base + "--method random-prune:keep=nan", 2, "a fraction above 0"},
      {base + "--method random-prune:kep=0.5", 2, "did you mean 'keep'?"},
      {base + "--method plain+random-prune:keep=0.5", 2, "do not compose"},
      {base + "--method ''", 2, "empty method name"},
      {base + "--attention eagre", 2, "did you mean 'eager'?"},
      {base + "--dtype fp17", 2, "--dtype: unknown dtype 'fp17'; did you mean 'fp1"},
      {base + "--cache-dtype int9", 2, "--cache-dtype"},
      {base + "--mode calibratd", 2, "did you mean 'calibrated'?"},
      {base + "--logits some", 2, "last, all"},
      {base + "--batch 0", 2, "--batch"},
      {base + "--batch -1", 2, "--batch"},
      {base + "--prompt-len 1.5", 2, "--prompt-len"},
      {base + "--prompt-len 4q", 2, "--prompt-len"},
      {base + "--prompt-len ''", 2, "--prompt-len"},
      {base + "--output-len 0", 2, "--output-len"},
      {base + "--prompt-len 900000000000000 --batch 1000000", 2, "overflow"},
      {base + "--encoder-tokens 100", 2, "has no encoder"},
      {base + "--set hidden_size=0", 2, "/hidden_size: got 0"},
      {base + "--set hidden_size=-4096", 2, "/hidden_size: got -4096"},
      {base + "--set hidden_size=4097", 2, "a multiple of the 32 attention heads"},
      {base + "--set hidden_size", 2, "KEY=VALUE"},
      {base + "--set num_key_value_heads=5", 2, "a divisor of the 32 attention heads"},
      {base + "--set num_key_value_hads=8", 2, "did you mean 'num_key_value_heads'?"},
      {base + "--set num_hidden_layers=100000", 2, "at most 10000"},
      {base + "--set vocab_size=1e30", 2, "/vocab_size"},
      {base + "--set hidden_act=swush", 2, "/hidden_act"},
      {base + "--set 'rope_scaling={\"type\":\"yarn\"}'", 2, "/rope_scaling/type"},
      {base + "--data /nowhere", 2, "/nowhere"},
      {base + "--json >/dev/full", 1, "standard output"},
      {base + "--plot /tmp/plot.pdf", 2, ".svg or .png"},
      {base + "--plot /nowhere/plot.svg", 2, "/nowhere"},
      {"sweep --model llama-7b --hardware a100-80gb --plot-kind memry", 2,
       "did you mean 'memory'?"},
      {"model show", 2, "MODEL"},
      {"model show llama-7c", 2, "did you mean 'llama-7b'?"},
      {"model show llama-7b --pass prefil", 2, "prefill or decode"},
      {"model show llama-7b --graph /nowhere/graph.dot", 2, "/nowhere"},
      {"model show llama-7b --graph /dev/full", 1, "/dev/full"},
      {"hardware show h100", 2, "unknown hardware 'h100'"},
      {"reproduce slim-tabel1", 2, "did you mean 'slim-table1'?"},
      {"reproduce --plot /tmp/plot.txt slim-table1", 2, ".svg"},
      {"reproduce --errata --json slim-table1", 2, "--errata"},
      {"reproduce --csv /dev/full slim-table1", 1, "/dev/full"},
  };
  return cases;
}

}  // namespace

TEST_CASE("bad input: one clear line on stderr, the right status, nothing on stdout") {
  for (const BadInput& bad : bad_inputs()) {
    CAPTURE(bad.arguments);
    const ProgramResult result = run_program(bad.arguments);
    CAPTURE(result.errors);
    CHECK(result.status == bad.status);
    CHECK(result.errors.find(bad.message) != std::string::npos);
    CHECK(std::count(result.errors.begin(), result.errors.end(), '\n') == 1);
    CHECK(result.output.empty());
  }
}

TEST_CASE("bad input: broken files are named with the place inside them") {
  struct BadFile {
    std::string content;
    std::string message;
  };
  const std::vector<BadFile> configs{
      {"", "not valid JSON"},
      {"{\"model_type\": ", "not valid JSON"},
      {"[1, 2]", "an object"},
      {"{}", "/model_type: missing"},
      {"{\"model_type\": \"lama\"}", "did you mean 'llama'?"},
      {"{\"model_type\": 5}", "a string"},
      {"{\"model_type\": \"llama\"}", "missing"},
      {std::string(200, '['), "nested deeper"},
  };
  const std::string path = "/tmp/kvcast_bad_config_" + std::to_string(::getpid()) + ".json";
  for (const BadFile& bad : configs) {
    CAPTURE(bad.content);
    std::ofstream(path) << bad.content;
    const ProgramResult model = run_program("model show " + path);
    CAPTURE(model.errors);
    CHECK(model.status == 2);
    CHECK(model.errors.find(path) != std::string::npos);
    CHECK(model.errors.find(bad.message) != std::string::npos);
    CHECK(std::count(model.errors.begin(), model.errors.end(), '\n') == 1);
    // The same files are no hardware either.
    const ProgramResult hardware = run_program("hardware show " + path);
    CHECK(hardware.status == 2);
    CHECK(hardware.errors.find(path) != std::string::npos);
  }
  std::filesystem::remove(path);
}

TEST_CASE("bad input: a prompt beyond the context is answered, with a warning") {
  const ProgramResult result =
      run_program("estimate --model llama-7b --hardware a100-80gb --prompt-len 1M --json");
  CHECK(result.status == 0);
  CHECK(result.output.find("\"fits\": false") != std::string::npos);
  CHECK(result.errors.find("warning: prompt and output of 1048704 tokens is longer than the "
                           "context of llama-7b (2048 positions)") != std::string::npos);
}

TEST_CASE("bad input: what does not fit the memory is an answer, with status 0") {
  const ProgramResult result =
      run_program("estimate --quiet --model llama-3.1-405b --hardware rtx-3060-12gb");
  CHECK(result.status == 0);
  CHECK(result.output.find("does not fit 12 GB") != std::string::npos);
}

}  // namespace kvcast::cli
