// Sessions in fp64: what is equal but for rounding must agree there far below what fp32 can show.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/positions.h"
#include "tests/execute/oracle.h"
#include "tests/test_folder.h"

namespace kvcast::execute {
namespace {

SessionOptions with_all_logits(Kernels kernels) {
  SessionOptions o;
  o.attention = kernels;
  o.elementwise = kernels;
  o.logits = Logits::All;
  o.dtype = DType::FP64;
  return o;
}

Generation run(const OracleCase& c, SessionOptions o) {
  o.decoder_tokens = c.prompt[0].size();
  return Session(c.checkpoint, o).run(c.request(c.prompt, 1));
}

std::vector<double> widened(std::span<const float> values) {
  return {values.begin(), values.end()};
}

TEST_CASE("fp64: logits are those of fp32 within 1e-4 of their range, eager and tiled 1e-12") {
  for (const std::string& name : oracle_cases()) {
    CAPTURE(name);
    const OracleCase c(name);
    const Generation tiled = run(c, with_all_logits(Kernels::Fused));
    const Generation eager = run(c, with_all_logits(Kernels::Eager));
    CHECK(tiled.logits.empty());
    CHECK(tiled.logits64.size() == tiled.logits_shape.elements());
    SessionOptions fp32 = with_all_logits(Kernels::Fused);
    fp32.dtype = DType::FP32;
    const Generation single = run(c, fp32);
    CHECK(single.logits64.empty());
    CHECK(relative_difference(tiled.logits64, widened(single.logits)) < 1e-4);
    CHECK(relative_difference(tiled.logits64, widened(c.tensors.at("logits"))) < 1e-4);
    CHECK(relative_difference(eager.logits64, tiled.logits64) < 1e-12);
    // Else fp32 was computed in: its rounding shows above 1e-9.
    CHECK(relative_difference(tiled.logits64, widened(single.logits)) > 1e-9);
  }
}

TEST_CASE("fp64: a prompt in chunks gives the logits of one piece") {
  const OracleCase c("llama_gqa_llama3_rope");
  const Generation whole = run(c, with_all_logits(Kernels::Fused));
  for (const std::uint64_t chunk : {std::uint64_t{1}, std::uint64_t{5}}) {
    SessionOptions o = with_all_logits(Kernels::Fused);
    o.chunk = chunk;
    CHECK(relative_difference(run(c, o).logits64, whole.logits64) < 1e-12);
  }
}

TEST_CASE("fp64: 64 greedy tokens are those of transformers") {
  for (const char* name : {"llama_gqa_llama3_rope", "gemma2", "falcon_7b", "t5", "whisper"}) {
    CAPTURE(name);
    const OracleCase c(name);
    SessionOptions o = with_all_logits(Kernels::Fused);
    o.decoder_tokens = c.greedy_prompt[0].size();
    const Session session(c.checkpoint, o);
    CHECK(session.run(c.request(c.greedy_prompt, 64)).tokens == c.greedy);
  }
}

TEST_CASE("fp64: weights, cache and their needed bytes are twice those of plain fp32") {
  const OracleCase c("llama_mha");
  SessionOptions fp32 = with_all_logits(Kernels::Fused);
  fp32.dtype = DType::FP32;
  fp32.loops = Loops::Counting;
  const Session narrow(c.checkpoint, fp32);
  const Session wide(c.checkpoint, with_all_logits(Kernels::Fused));
  CHECK(wide.weight_bytes() == 2 * narrow.weight_bytes());
  const Generation a = narrow.run(c.request(c.prompt, 3));
  const Generation b = wide.run(c.request(c.prompt, 3));
  CHECK(b.kv_cache_bytes == 2 * a.kv_cache_bytes);
  CHECK(b.analytic_flops == a.analytic_flops);
  CHECK(b.counted.flops == a.counted.flops);
  const auto needed = [&](const SessionOptions& o) {
    return needed_bytes(c.checkpoint.architecture(), o, 2, 10, 3);
  };
  // Token ids and positions keep their four bytes.
  const double ratio = needed(with_all_logits(Kernels::Fused)) / needed(fp32);
  CHECK(ratio <= 2);
  CHECK(ratio > 1.99);
}

TEST_CASE("fp64: only fp32 and fp64 run") {
  const OracleCase c("llama_mha");
  SessionOptions o;
  o.dtype = DType::BF16;
  CHECK_THROWS_WITH_AS(Session(c.checkpoint, o), "a run's dtype: got bf16, expected fp32 or fp64",
                       Error);
}

TEST_CASE("fp64: weights rewritten without a change of meaning give equal logits") {
  const OracleCase c("llama_mha");
  const TestFolder folder;
  std::filesystem::copy(c.folder / "config.json", folder / "config.json");
  // down · (gate ∘ up) with up three times as large and down a third; neither is exact in binary.
  std::map<std::string, std::vector<double>> numbers;
  std::vector<TensorToWrite> tensors;
  const auto file = MappedFile::open(c.folder / "model.safetensors");
  for (const StoredTensor& t : read_safetensors(file)) {
    std::vector<double>& values = numbers[t.name];
    values.resize(t.elements());
    read_elements(t, 0, values);
    const bool up = t.name.find("up_proj") != std::string::npos;
    const bool down = t.name.find("down_proj") != std::string::npos;
    for (double& x : values) x = up ? x * 3 : (down ? x / 3 : x);
    tensors.push_back({t.name, t.shape, values, DType::FP64});
  }
  std::ofstream(folder / "model.safetensors", std::ios::binary) << safetensors_bytes(tensors);
  const Checkpoint rewritten(folder.path());
  const Session session(rewritten, with_all_logits(Kernels::Fused));
  const Generation ours = session.run(c.request(c.prompt, 1));
  CHECK(relative_difference(ours.logits64, run(c, with_all_logits(Kernels::Fused)).logits64) <
        1e-12);
}

TEST_CASE("fp64: random weights are those of fp32") {
  const OracleCase c("qwen2");
  const Checkpoint random(c.checkpoint.architecture(), 7);
  Request request;
  request.tokens = {{3, 1, 4, 1, 5}};
  SessionOptions o = with_all_logits(Kernels::Fused);
  const Generation wide = Session(random, o).run(request);
  o.dtype = DType::FP32;
  const Generation narrow = Session(random, o).run(request);
  CHECK(relative_difference(wide.logits64, widened(narrow.logits)) < 1e-4);
}

TEST_CASE("fp64: rotary angles are those of real numbers, far down the context too") {
  // Frequencies of powers of two: position times frequency is exact, in long doubles as well.
  const RopeTable table{.inverse_frequencies = {1, 0.5, 0x1p-10}};
  constexpr std::size_t first = 100'000;
  const RopeAngleTable<double> angles(table, first + 3, false);
  for (std::size_t t = 0; t < 3; ++t) {
    for (std::size_t j = 0; j < 3; ++j) {
      const long double angle = static_cast<long double>(first + t) *
                                static_cast<long double>(table.inverse_frequencies[j]);
      const double c = angles.cosines(first + t)[j];
      const double s = angles.sines(first + t)[j];
      CHECK(std::abs(static_cast<double>(c - std::cos(angle))) < 1e-15);
      CHECK(std::abs(static_cast<double>(s - std::sin(angle))) < 1e-15);
      CHECK(std::abs(c * c + s * s - 1) < 1e-15);
    }
  }
  // A frequency that is not exact in fp32, either.
  const RopeAngleTable<double> tenth(RopeTable{.inverse_frequencies = {0.1}}, 31, false);
  CHECK(std::abs(tenth.cosines(30)[0] - std::cos(3.0)) < 1e-15);
}

}  // namespace
}  // namespace kvcast::execute
