#include "model/forward/recorder.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/graph/work.h"
#include "model/io/weights/catalog.h"
#include "model/record/recording.h"

using namespace kvcast;

namespace {

constexpr std::uint64_t batch = 2;
constexpr std::uint64_t queries = 5;
constexpr std::uint64_t keys = 11;

Lowering lowering(Kernels kernels, DType dtype) { return {kernels, kernels, dtype, dtype, dtype}; }

std::vector<std::string> operators(const Graph& g) {
  std::vector<std::string> names;
  for (const Node& n : g.nodes()) names.emplace_back(name(n.op));
  return names;
}

using Names = std::vector<std::string>;

/// One attention over concrete shapes; `masked` as in prefill.
Graph attention(const Lowering& l, const Heads& heads, bool masked,
                ScoreScale scale = ScoreScale::OnScores, double softcap = 0) {
  Symbols symbols;
  Recorder r(symbols, l);
  const std::uint64_t key_features = heads.num_key_value_heads * heads.head_dim;
  const Value q =
      r.input("q", {batch, queries, heads.num_attention_heads * heads.head_dim}, l.activations);
  const Value k = r.input("k", {batch, keys, key_features}, l.activations);
  const Value v = r.input("v", {batch, keys, key_features}, l.activations);
  Recorder::Attention a;
  a.heads = heads;
  a.scale = 0.5;
  a.score_scale = scale;
  a.softcap = softcap;
  a.clamp_masked = true;
  a.mask = {masked, 0, keys - queries};
  if (masked && l.attention == Kernels::Eager) {
    a.additive_mask = r.causal_mask(a.mask, queries, keys);
  }
  r.output(r.attention(a, q, k, v));
  return r.take();
}

}  // namespace

TEST_CASE("recorder: eager attention moves 28 bytes a score in fp16, 40 in fp32") {
  // Bytes of one fp16 score, by kernel: products write 2; scale, mask and clamp read and write
  // 4 each = 12; softmax reads 2 and writes 4 (fp32); the cast reads 4 and writes 2; the product
  // with the values reads 2. 2 + 12 + 6 + 6 + 2 = 28. In fp32, without a cast: 4 + 3 · 8 + 8 + 4.
  // The rest, in elements of a score's width: q, k, v read once; the product written; its copy by
  // head read and written; the mask [5, 11] written once and read once.
  struct Case {
    DType dtype;
    std::uint64_t width;
    std::uint64_t score_bytes;
    Names after_softmax;
  };
  for (const Case& c : {Case{DType::FP16, 2, 28, {"copy", "attention_values", "copy"}},
                        Case{DType::FP32, 4, 40, {"attention_values", "copy"}}}) {
    const Graph g = attention(lowering(Kernels::Eager, c.dtype), {6, 6, 7}, true);
    Names names{"causal_mask", "attention_scores", "scale", "add", "clamp_below", "softmax"};
    names.insert(names.end(), c.after_softmax.begin(), c.after_softmax.end());
    CHECK(operators(g) == names);
    const std::uint64_t scores = batch * 6 * queries * keys;
    const std::uint64_t query = batch * queries * 42;
    const std::uint64_t key = batch * keys * 42;
    const std::uint64_t rest = query + 2 * key + query + 2 * query + 2 * queries * keys;
    CHECK(total_work(g).bytes().at({}) == c.score_bytes * scores + c.width * rest);
    // The scale is the caller's; scores are clamped to the lowest finite fp16.
    CHECK(g.nodes()[2].op == Op(Elementwise{Function::Scale, 0.5}));
    CHECK(g.nodes()[4].op == Op(Elementwise{Function::ClampBelow, -65504}));
  }
}

TEST_CASE("recorder: only families whose eager code clamps after the mask pay for it") {
  const Catalog catalog(KVCAST_SOURCE_DIR "/data");
  Lowering eager;
  eager.attention = eager.elementwise = Kernels::Eager;
  const auto clamps = [&](const std::string& model) {
    const Recording recording = record(load_model(catalog, model), {}, eager);
    const Names names = operators(recording.prefill());
    return std::count(names.begin(), names.end(), "clamp_below");
  };
  CHECK(clamps("llama-7b") == 32);
  CHECK(clamps("opt-125m") == 12);
  CHECK(clamps("gpt2") == 0);
  CHECK(clamps("pythia-160m") == 0);
}

TEST_CASE("recorder: eager attention without a mask, with a soft cap, or with a scaled query") {
  const Heads heads{6, 6, 7};
  const Lowering l = lowering(Kernels::Eager, DType::BF16);
  CHECK(operators(attention(l, heads, false)) ==
        Names{"attention_scores", "scale", "softmax", "copy", "attention_values", "copy"});
  CHECK(operators(attention(l, heads, false, ScoreScale::OnQuery)) ==
        Names{"scale", "attention_scores", "softmax", "copy", "attention_values", "copy"});
  CHECK(operators(attention(l, heads, false, ScoreScale::None, 50)) ==
        Names{"attention_scores", "soft_cap", "softmax", "copy", "attention_values", "copy"});
}

TEST_CASE("recorder: eager GQA repeats keys and values in memory, tiled GQA does not") {
  const Heads heads{6, 3, 7};
  const Graph eager = attention(lowering(Kernels::Eager, DType::FP16), heads, false);
  CHECK(operators(eager) == Names{"repeat_heads", "repeat_heads", "attention_scores", "scale",
                                  "softmax", "copy", "attention_values", "copy"});
  CHECK(eager.tensor(eager.nodes()[0].output()).shape == std::vector<Count>{batch, keys, 42});
  const Graph tiled = attention(lowering(Kernels::Fused, DType::FP16), heads, false);
  CHECK(operators(tiled) == Names{"tiled_attention"});
  // q and out 2·5·42 halves, k and v 2·11·21 halves
  CHECK(total_work(tiled).bytes().at({}) == 2 * (2 * 420 + 2 * 462));
}

TEST_CASE("recorder: an eager RMSNorm is transformers' seven kernels in fp16, five in fp32") {
  const auto norm = [](const Lowering& l, NormKind kind) {
    Symbols symbols;
    Recorder r(symbols, l);
    const Value x = r.input("x", {batch, queries, 42}, l.activations);
    r.norm("norm", kind, 1e-6, "norm", x);
    return r.take();
  };
  const Graph half = norm(lowering(Kernels::Eager, DType::FP16), NormKind::Rms);
  CHECK(operators(half) ==
        Names{"copy", "square", "row_mean", "inverse_root", "multiply", "copy", "multiply"});
  // n = 420 elements, 10 rows. Bytes: cast 2+4, square 4+4, mean 4 n + 4 a row, root 8 a row,
  // multiply 4 n + 4 a row + 4 n, cast 4+2, times the weight 2 + 2 and 84 of weights.
  CHECK(total_work(half).bytes().at({}) == 420 * (6 + 8 + 4 + 8 + 6 + 4) + 10 * (4 + 8 + 4) + 84);
  // FLOPs: square 1, mean 1, multiply 1, multiply 1 an element, root 3 a row
  CHECK(total_work(half).flops.at({}) == 4 * 420 + 3 * 10);
  CHECK(operators(norm(lowering(Kernels::Eager, DType::FP32), NormKind::Rms)) ==
        Names{"square", "row_mean", "inverse_root", "multiply", "multiply"});
  CHECK(operators(norm(lowering(Kernels::Eager, DType::FP32), NormKind::RmsUnitOffset)) ==
        Names{"square", "row_mean", "inverse_root", "multiply", "one_plus", "multiply"});
  const Graph fused = norm(lowering(Kernels::Fused, DType::FP16), NormKind::Rms);
  CHECK(operators(fused) == Names{"rms_norm"});
  CHECK(total_work(fused).flops == total_work(half).flops);
  // LayerNorm is one kernel in PyTorch too.
  CHECK(operators(norm(lowering(Kernels::Eager, DType::FP16), NormKind::Layer)) ==
        Names{"layer_norm"});
}

TEST_CASE("recorder: eager rotary embeddings make cos and sin once a pass") {
  Symbols symbols;
  Recorder r(symbols, lowering(Kernels::Eager, DType::FP16));
  const auto table = std::make_shared<const RopeTable>(RopeTable{{1, 0.1}, 1, 1});
  const Value q = r.input("q", {batch, queries, 42}, DType::FP16);
  const Value k = r.input("k", {batch, queries, 21}, DType::FP16);
  const Value rotated = r.rope("query_rope", q, 6, 7, table, 0);
  r.rope("key_rope", k, 3, 7, table, 0);
  CHECK(r.info(rotated).shape == r.info(q).shape);
  const Graph g = r.take();
  CHECK(operators(g) == Names{"rope_angles", "rope_angles", "rotate_half", "multiply", "multiply",
                              "add", "rotate_half", "multiply", "multiply", "add"});
}

TEST_CASE("recorder: rotary embeddings at other positions get angles of their own") {
  Symbols symbols;
  Recorder r(symbols, lowering(Kernels::Eager, DType::FP16));
  const auto table = std::make_shared<const RopeTable>(RopeTable{{1, 0.1}, 1, 1});
  const Value q = r.input("q", {batch, queries, 42}, DType::FP16);
  r.rope("a", q, 6, 7, table, 0);
  r.rope("b", q, 6, 7, table, 3);
  int angles = 0;
  for (const std::string& op : operators(r.take())) angles += op == "rope_angles" ? 1 : 0;
  CHECK(angles == 4);
}

TEST_CASE("recorder: a gated activation is two kernels in eager code, one when fused") {
  for (const Kernels kernels : {Kernels::Eager, Kernels::Fused}) {
    Symbols symbols;
    Recorder r(symbols, lowering(kernels, DType::FP16));
    const Value gate = r.input("gate", {batch, queries, 20}, DType::FP16);
    const Value up = r.input("up", {batch, queries, 20}, DType::FP16);
    r.gated("activation", {Function::Silu}, gate, up);
    const Graph g = r.take();
    CHECK(operators(g) ==
          (kernels == Kernels::Eager ? Names{"silu", "multiply"} : Names{"gated_activation"}));
    CHECK(total_work(g).flops.at({}) == 5 * 200);  // silu 4 and the product
  }
}

TEST_CASE("recorder: a weight with the same name is the same tensor") {
  Symbols symbols;
  Recorder r(symbols, {});
  const Value a = r.weight("embedding.weight", {51, 42});
  const Value b = r.weight("embedding.weight", {51, 42});
  const Value c = r.weight("head.weight", {51, 42});
  CHECK(a == b);
  CHECK_FALSE(a == c);
  CHECK(r.info(a).storage == Storage::Weights);
}

TEST_CASE("recorder: appending grows the cache by the new rows, in the cache's own dtype") {
  Symbols symbols;
  Lowering l;
  l.cache = DType::FP8;
  Recorder r(symbols, l);
  const Value cache = r.cache("layers.0.keys", {batch, 6, 21});
  const Value rows = r.input("k", {batch, queries, 21}, DType::FP16);
  const Value all = r.append(cache, rows, "cache_keys");
  CHECK(r.info(all).shape == std::vector<Count>{batch, 11, 21});
  CHECK(r.info(all).dtype == DType::FP8);
  CHECK(r.info(all).storage == Storage::KvCache);
}

TEST_CASE("recorder: the last of one token is that token") {
  Symbols symbols;
  Recorder r(symbols, {});
  const Value one = r.input("x", {batch, 1, 42}, DType::FP16);
  const Value many = r.input("y", {batch, queries, 42}, DType::FP16);
  CHECK(r.last_token(one) == one);
  CHECK(r.info(r.last_token(many)).shape == std::vector<Count>{batch, 1, 42});
}

TEST_CASE("recorder: a strided convolution halves the frames") {
  Symbols symbols;
  Recorder r(symbols, {});
  const Value x = r.input("x", {batch, 2 * Count(symbol::prompt_len), 7}, DType::FP16);
  const Value w = r.weight("w", {42, 7, 3});
  const Value b = r.weight("b", {42});
  CHECK(r.info(r.conv1d("conv", x, w, b, 3, 2)).shape ==
        std::vector<Count>{batch, symbol::prompt_len, 42});
}

TEST_CASE("recorder: nodes carry the phase and layer that were entered") {
  Symbols symbols;
  Recorder r(symbols, {});
  r.enter("layers", 3);
  r.unary("activation", Function::Relu, r.input("x", {batch, 7}, DType::FP16));
  r.enter("head");
  r.unary("cap", Function::SoftCap, r.input("y", {batch, 7}, DType::FP16), 30);
  const Graph g = r.take();
  CHECK(g.nodes()[0].phase == "layers");
  CHECK(g.nodes()[0].layer == 3);
  CHECK(g.nodes()[0].label == "activation");
  CHECK(g.nodes()[1].phase == "head");
  CHECK(g.nodes()[1].layer == no_layer);
}
