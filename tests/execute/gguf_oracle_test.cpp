// What llama.cpp's converter makes of the checkpoints (tests/oracle/gguf, make_gguf.py) computes
// what transformers computes from them.

#include <doctest/doctest.h>

#include "model/io/tensors/gguf.h"
#include "model/record/recording.h"
#include "tests/execute/oracle.h"

namespace kvcast::execute {
namespace {

std::vector<std::string> gguf_cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(oracle_folder() / "gguf")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  KVCAST_ASSERT(names.size() == 28);  // else a case, and with it its checks, went missing
  return names;
}

/// The expected values lie beside the file or in the folder that it was made of.
OracleCase read_case(const std::string& name) {
  const std::filesystem::path folder = oracle_folder() / "gguf" / name;
  const bool own = std::filesystem::exists(folder / "expected.json");
  return {own ? folder : oracle_folder() / name, folder / "model.gguf"};
}

SessionOptions options_of(Kernels kernels) {
  SessionOptions o;
  o.attention = o.elementwise = kernels;
  return o;
}

}  // namespace

TEST_CASE("gguf_oracle: llama.cpp's files give the logits and greedy tokens of transformers") {
  for (const std::string& name : gguf_cases()) {
    const OracleCase c = read_case(name);
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(name);
      CAPTURE(kernels == Kernels::Eager);
      SessionOptions o = options_of(kernels);
      o.decoder_tokens = c.greedy_prompt[0].size();
      CHECK(Session(c.checkpoint, o).run(c.request(c.greedy_prompt, 64)).tokens == c.greedy);
      o.logits = Logits::All;
      o.decoder_tokens = c.prompt[0].size();
      for (const std::uint64_t chunk : {std::uint64_t{0}, std::uint64_t{5}}) {
        CAPTURE(chunk);
        if (!c.checkpoint.architecture().encoder_decoder) o.chunk = chunk;
        const Generation g = Session(c.checkpoint, o).run(c.request(c.prompt, 1));
        CHECK(relative_difference(g.logits, c.tensors.at("logits")) < 1e-5);
      }
    }
  }
}

TEST_CASE("gguf_oracle: the weights of these files have the file's type") {
  for (const std::string& name : gguf_cases()) {
    CAPTURE(name);
    const OracleCase c = read_case(name);
    const WeightTypes types = gguf_weight_types(*c.checkpoint.gguf(), c.checkpoint.architecture());
    const Architecture& a = c.checkpoint.architecture();
    const Recording recording = record(a, {}, {});
    for (const TensorInfo& tensor : recording.decode().tensors()) {
      if (tensor.storage != Storage::Weights) continue;
      CAPTURE(tensor.name);
      CHECK((*types.in_file)(tensor.name) == DType::FP32);
    }
  }
}

}  // namespace kvcast::execute
