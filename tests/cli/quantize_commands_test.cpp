// `convert quantize`, and runs of what it writes.
#include <string>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

TEST_CASE("convert quantize: --json says what changed, and the new file runs") {
  const TestFolder folder;
  const std::string in = oracle + "gguf/olmo3/model.gguf";
  const std::string out = folder.file("out.gguf");
  const json j = run_json("convert quantize --quiet --json " + in + " " + out + " --type bf16");
  check_keys(j, {"model", "output", "type", "parameters", "bytes_before", "bytes_after", "types",
                 "copied_files"});
  CHECK(j["type"] == "bf16");
  std::uint64_t parameters = 0;
  for (const json& type : j["types"]) {
    check_keys(type, {"from", "to", "tensors", "parameters", "bytes_before", "bytes_after",
                      "mean_squared_error"});
    parameters += type["parameters"].get<std::uint64_t>();
    const bool changed = type["to"] == "BF16";
    CHECK(type["bytes_after"] == (changed ? 2 : 4) * type["parameters"].get<std::uint64_t>());
    CHECK((type["mean_squared_error"] > 0) == changed);
  }
  CHECK(j["types"].size() == 2);
  CHECK(j["parameters"] == parameters);
  CHECK(run_json("model show --json " + in)["parameters"] == parameters);
  const std::string run = "run --quiet --json --tokens 1,2,3 --output-len 4 --model " + out;
  const json stored = run_json(run);
  const json fp32 = run_json(run + " --weights fp32");
  CHECK(stored["generated_tokens"] == fp32["generated_tokens"]);
  CHECK(stored["weight_bytes"] < fp32["weight_bytes"]);
  CHECK(folder.num_files() == 1);
  check_refused("convert quantize -q " + out + " " + folder.file("again.gguf") + " --type q8_0 x",
                "x");
}

TEST_CASE("convert quantize: a folder with quantised weights becomes plain") {
  const TestFolder folder;
  const std::string out = folder.file("out");
  run_json("convert quantize --quiet --json " + oracle + "packed/awq " + out + " --type fp16");
  const std::string run = "run --quiet --json --tokens 1,2,3 --output-len 4 --model ";
  CHECK(run_json(run + out)["generated_tokens"] ==
        run_json(run + oracle + "packed/awq")["generated_tokens"]);
}

}  // namespace
}  // namespace kvcast::cli
