// Checkpoints with quantised weights (tests/oracle/packed, make_packed.py) compute what
// transformers computes from the numbers that the weights stand for.

#include <map>

#include <doctest/doctest.h>

#include "model/execute/weight_store.h"
#include "tests/execute/oracle.h"

namespace kvcast::execute {
namespace {

/// The types that as-stored products read; FP32: none of the file's.
const std::map<std::string, DType> cases{
    {"awq", DType::INT4_G64},     {"compressed_int4", DType::INT4_G32},
    {"fp8_blocks", DType::FP8},   {"fp8_deepseek", DType::FP8},
    {"fp8_rows", DType::FP8},     {"fp8_tensors", DType::FP8},
    {"gptq", DType::INT4_G32},    {"gptq_act_order", DType::FP32},
    {"gptq_v2", DType::INT4_G64}, {"mxfp4", DType::MXFP4}};

OracleCase read_case(const std::string& name) {
  const std::filesystem::path folder = oracle_folder() / "packed" / name;
  return {folder, folder};
}

/// Of the first layer: of its experts, if it has some.
std::string packed_weight(const Checkpoint& c) {
  const bool experts = c.architecture().decoder.layers.front().experts.has_value();
  return experts ? "layers.0.experts.down.weight" : "layers.0.down.weight";
}

}  // namespace

TEST_CASE("packed_oracle: quantised checkpoints give the logits and tokens of transformers") {
  for (const auto& [name, type] : cases) {
    const OracleCase c = read_case(name);
    for (const bool as_stored : {false, true}) {
      CAPTURE(name);
      CAPTURE(as_stored);
      SessionOptions o;
      if (as_stored) o.weights = stored_weight_types(c.checkpoint);
      CHECK(Session(c.checkpoint, o).run(c.request(c.greedy_prompt, 64)).tokens == c.greedy);
      o.logits = Logits::All;
      for (const std::uint64_t chunk : {std::uint64_t{0}, std::uint64_t{1}}) {
        CAPTURE(chunk);
        o.chunk = chunk;
        const Generation g = Session(c.checkpoint, o).run(c.request(c.prompt, 1));
        CHECK(relative_difference(g.logits, c.tensors.at("logits")) < 1e-5);
      }
    }
  }
}

TEST_CASE("packed_oracle: products read the weights as they are packed, counts and all") {
  for (const auto& [name, type] : cases) {
    CAPTURE(name);
    const OracleCase c = read_case(name);
    SessionOptions o;
    const Session wide(c.checkpoint, o);
    o.weights = stored_weight_types(c.checkpoint);
    const Session narrow(c.checkpoint, o);
    const std::optional<DType> stored = (*o.weights.in_file)(packed_weight(c.checkpoint));
    CHECK(stored.value_or(DType::FP32) == type);
    if (type != DType::FP32) CHECK(4 * narrow.weight_bytes() < 3 * wide.weight_bytes());
    o.loops = Loops::Counting;
    const Generation counted = Session(c.checkpoint, o).run(c.request(c.prompt, 3));
    CHECK(counted.counted.flops == counted.analytic_flops);
    CHECK(counted.counted.bytes() == counted.analytic_bytes);
  }
}

}  // namespace kvcast::execute
