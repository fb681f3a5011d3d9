#include "model/graph/work.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

using namespace kvcast;

namespace {

// The shapes of most tests: all different, none 1, two odd primes against a swapped dimension.
constexpr std::uint64_t batch = 2;
constexpr std::uint64_t tokens = 5;
constexpr std::uint64_t keys = 11;
constexpr Heads heads{6, 3, 7};
constexpr std::uint64_t query_width = 42;   // 6 · 7
constexpr std::uint64_t key_features = 21;  // 3 · 7

constexpr std::size_t weights_slot = static_cast<std::size_t>(Storage::Weights);
constexpr std::size_t cache_slot = static_cast<std::size_t>(Storage::KvCache);
constexpr std::size_t activations_slot = static_cast<std::size_t>(Storage::Activations);

using Shape = std::vector<Count>;

/// Inputs of one operator; fp16 unless said otherwise.
struct Operand {
  Shape shape;
  Storage storage = Storage::Activations;
  DType dtype = DType::FP16;
};

struct Numbers {
  std::uint64_t flops = 0;
  std::uint64_t weights_read = 0;
  std::uint64_t cache_read = 0;
  std::uint64_t activations_read = 0;
  std::uint64_t cache_written = 0;
  std::uint64_t activations_written = 0;
  bool operator==(const Numbers&) const = default;
};

/// The work of a lone operator.
Numbers work_of(Op op, const std::vector<Operand>& inputs, const Operand& output) {
  Graph graph;
  Node node;
  node.op = std::move(op);
  for (const Operand& i : inputs) {
    node.inputs.push_back(graph.add_tensor({"", i.shape, i.dtype, i.storage, {}}));
  }
  graph.add_node(std::move(node), {"", output.shape, output.dtype, output.storage, {}});
  const Work w = work(graph, graph.nodes()[0]);
  CHECK(w.written[weights_slot].is_zero());
  return {w.flops.at({}),
          w.read[weights_slot].at({}),
          w.read[cache_slot].at({}),
          w.read[activations_slot].at({}),
          w.written[cache_slot].at({}),
          w.written[activations_slot].at({})};
}

TiledAttention tiled(const Mask& mask, std::uint64_t queries, std::uint64_t num_keys) {
  Symbols s;
  TiledAttention op{heads, 0.5, 0, mask, {}, {}};
  op.visible_pairs = visible_pairs(mask, queries, num_keys, s);
  op.visible_keys = visible_keys(mask, queries, num_keys, s);
  return op;
}

const Operand q{{batch, tokens, query_width}};
const Operand k{{batch, keys, key_features}, Storage::KvCache};
const Operand scores{{batch, heads.num_attention_heads, tokens, keys}};

}  // namespace

TEST_CASE("work: a linear layer does 2 FLOPs a weight and row, and one more for each bias") {
  const Operand x{{batch, tokens, 7}};
  const Operand w{{11, 7}, Storage::Weights};
  const Operand b{{11}, Storage::Weights};
  const Operand y{{batch, tokens, 11}};
  // 10 rows · 11 · 7 · 2 = 1540; bytes: w 154, x 140, y 220
  CHECK(work_of(Linear{}, {x, w}, y) == Numbers{1540, 154, 0, 140, 0, 220});
  // the bias: 110 additions and 22 bytes
  CHECK(work_of(Linear{}, {x, w, b}, y) == Numbers{1650, 176, 0, 140, 0, 220});
  // int4 weights: half a byte each, 38.5 rounded up once
  const Operand quantised{{11, 7}, Storage::Weights, DType::INT4};
  CHECK(work_of(Linear{}, {x, quantised}, y) == Numbers{1540, 39, 0, 140, 0, 220});
}

TEST_CASE("work: an embedding reads a table row for each id, not the table") {
  const Operand table{{1000, 7}, Storage::Weights};
  const Operand ids{{batch, tokens}, Storage::Activations, DType::FP32};
  // 10 rows of 7 halves: 140; ids 4 bytes each: 40
  CHECK(work_of(Embedding{}, {table, ids}, {{batch, tokens, 7}}) == Numbers{0, 140, 0, 40, 0, 140});
}

TEST_CASE("work: eager scores and values are 2 FLOPs for each pair, head and dim, masked or not") {
  // pairs 2 · 6 · 5 · 11 = 660, each 2 · 7 FLOPs: 9240
  // q 2·5·42·2 = 840 bytes, k 2·11·21·2 = 924, scores 660·2 = 1320
  CHECK(work_of(AttentionScores{heads}, {q, k}, scores) == Numbers{9240, 0, 924, 840, 0, 1320});
  CHECK(work_of(AttentionValues{heads}, {scores, k}, q) == Numbers{9240, 0, 924, 1320, 0, 840});
}

TEST_CASE("work: tiled attention skips invisible pairs and stores no scores") {
  // Causal, 6 in the cache, 5 new: query i sees 7 + i keys: 7+8+9+10+11 = 45 pairs.
  // FLOPs a pair and head: 4·7 products, 1 scale, 4 softmax = 33; 2·6·45·33 = 17820;
  // and a division for each of the 420 outputs. Bytes: q 840, k and v 924 each, out 840.
  const TiledAttention op = tiled({true, 0, 6}, tokens, keys);
  CHECK(work_of(op, {q, k, k}, q) == Numbers{17820 + 420, 0, 1848, 840, 0, 840});
  // Without a mask all 55 pairs: 2·6·55·33 = 21780.
  CHECK(work_of(tiled({false, 0, 0}, tokens, keys), {q, k, k}, q).flops == 21780 + 420);
  // A scale of 1 costs nothing: 32 a pair.
  TiledAttention unscaled = op;
  unscaled.scale = 1;
  CHECK(work_of(unscaled, {q, k, k}, q).flops == 2 * 6 * 45 * 32 + 420);
  // A soft cap costs 3 a pair, a bias 1 and the bytes of the 6·45 halves that are read of
  // [6, 5, 11]; of [6, 1, 11], one row for all queries, all 66.
  TiledAttention capped = op;
  capped.softcap = 50;
  CHECK(work_of(capped, {q, k, k}, q).flops == 2 * 6 * 45 * 36 + 420);
  const Operand bias{{heads.num_attention_heads, tokens, keys}};
  CHECK(work_of(op, {q, k, k, bias}, q) ==
        Numbers{2 * 6 * 45 * 34 + 420, 0, 1848, 840 + 540, 0, 840});
  const Operand row{{heads.num_attention_heads, 1, keys}};
  CHECK(work_of(op, {q, k, k, row}, q) ==
        Numbers{2 * 6 * 45 * 34 + 420, 0, 1848, 840 + 132, 0, 840});
}

TEST_CASE("work: GQA decode reads each key-value head once, and only the window of it") {
  const Operand query{{batch, 1, query_width}};
  // One query, 10 in the cache: 11 pairs; keys and values 2·11·21·2 bytes each, not 2·11·42·2.
  const Numbers full = work_of(tiled({true, 0, 10}, 1, keys), {query, k, k}, query);
  CHECK(full == Numbers{2 * 6 * 11 * 33 + 84, 0, 2 * 924, 168, 0, 168});
  // Window 4: 4 pairs, and 4 of the 11 rows: 2·4·21·2 = 336 bytes each.
  const Numbers windowed = work_of(tiled({true, 4, 10}, 1, keys), {query, k, k}, query);
  CHECK(windowed == Numbers{2 * 6 * 4 * 33 + 84, 0, 2 * 336, 168, 0, 168});
}

TEST_CASE("work: visible pairs and keys are those that an enumeration finds") {
  for (const std::uint64_t window : {0u, 1u, 2u, 3u, 5u, 8u, 100u}) {
    for (const std::uint64_t past : {0u, 1u, 2u, 4u, 7u, 12u}) {
      for (const std::uint64_t queries : {1u, 2u, 3u, 6u, 9u}) {
        CAPTURE(window);
        CAPTURE(past);
        CAPTURE(queries);
        std::uint64_t pairs = 0;
        std::set<std::uint64_t> seen;
        for (std::uint64_t i = 0; i < queries; ++i) {
          for (std::uint64_t j = 0; j < past + queries; ++j) {
            const std::uint64_t position = past + i;
            const bool visible = j <= position && (window == 0 || position - j < window);
            pairs += visible ? 1 : 0;
            if (visible) seen.insert(j);
          }
        }
        const Mask mask{true, window, past};
        Symbols s;
        CHECK(visible_pairs(mask, queries, past + queries, s) == Count(pairs));
        CHECK(visible_keys(mask, queries, past + queries, s) == Count(seen.size()));
      }
    }
  }
}

TEST_CASE("work: symbolic visible pairs are the concrete ones at every size") {
  for (const std::uint64_t window : {0u, 1u, 5u}) {
    Symbols symbols;
    const Count prompt = symbol::prompt_len;
    const Count kv = symbol::kv_len;
    const Count prefill = visible_pairs({true, window, 0}, prompt, prompt, symbols);
    const Count decode = visible_pairs({true, window, kv - 1}, 1, kv, symbols);
    const Count decode_keys = visible_keys({true, window, kv - 1}, 1, kv, symbols);
    for (std::uint64_t n = 1; n < 12; ++n) {
      CAPTURE(window);
      CAPTURE(n);
      const SymbolValues values = symbols.resolve({batch, n, n});
      Symbols none;
      CHECK(prefill.at(values) == visible_pairs({true, window, 0}, n, n, none).constant());
      const std::uint64_t seen = window == 0 ? n : std::min(n, window);
      CHECK(decode.at(values) == seen);
      CHECK(decode_keys.at(values) == seen);
    }
  }
}

TEST_CASE("work: an unmasked pass sees every pair") {
  Symbols s;
  CHECK(visible_pairs({false, 0, 0}, 5, 11, s) == Count(55));
  CHECK(visible_keys({false, 0, 0}, 5, 11, s) == Count(11));
}

TEST_CASE("work: norms count their elements and rows") {
  const Operand x{{batch, tokens, query_width}};
  const Operand w{{query_width}, Storage::Weights};
  // RMS: 4·420 + 3·10 = 1710; x and y 840 bytes, w 84
  CHECK(work_of(RmsNorm{1e-6, false, 1}, {x, w}, x) == Numbers{1710, 84, 0, 840, 0, 840});
  // 1 + w: 42 additions more
  CHECK(work_of(RmsNorm{1e-6, true, 1}, {x, w}, x).flops == 1752);
  // by head: 6 norms a row with one weight of 7: 4·420 + 3·6·10 = 1860
  const Operand head_weight{{heads.head_dim}, Storage::Weights};
  CHECK(work_of(RmsNorm{1e-6, false, 6}, {x, head_weight}, x) == Numbers{1860, 14, 0, 840, 0, 840});
  // Layer: 5·420 + 4·10 = 2140 without weights, 7·420 + 40 = 2980 with both
  CHECK(work_of(LayerNorm{1e-5}, {x}, x) == Numbers{2140, 0, 0, 840, 0, 840});
  CHECK(work_of(LayerNorm{1e-5}, {x, w, w}, x) == Numbers{2980, 168, 0, 840, 0, 840});
}

TEST_CASE("work: softmax is 5 FLOPs an element and may widen it") {
  const Operand wide{scores.shape, Storage::Activations, DType::FP32};
  CHECK(work_of(Softmax{}, {scores}, wide) == Numbers{3300, 0, 0, 1320, 0, 2640});
}

TEST_CASE("work: element-wise operators cost their function, and read a repeated operand once") {
  const Operand x{{batch, tokens, query_width}};  // 420 elements, 840 bytes
  const std::pair<Function, std::uint64_t> functions[] = {
      {Function::Copy, 0},        {Function::Add, 1},      {Function::Multiply, 1},
      {Function::Scale, 1},       {Function::Square, 1},   {Function::ClampBelow, 1},
      {Function::Center, 1},      {Function::Relu, 1},     {Function::OnePlus, 1},
      {Function::InverseRoot, 3}, {Function::SoftCap, 3},  {Function::Silu, 4},
      {Function::Gelu, 5},        {Function::GeluTanh, 9},
  };
  for (const auto& [function, flops] : functions) {
    CAPTURE(std::string(name(function)));
    CHECK(work_of(Elementwise{function}, {x}, x) == Numbers{420 * flops, 0, 0, 840, 0, 840});
  }
  // a mask [5, 11] over scores [2, 6, 5, 11]: 660 additions; 1320 + 110 bytes read
  const Operand mask{{tokens, keys}};
  CHECK(work_of(Elementwise{Function::Add}, {scores, mask}, scores) ==
        Numbers{660, 0, 0, 1430, 0, 1320});
  // 11 an element; softplus is 3, and 1/2 is added to one of two
  const Operand one{{1}, Storage::Weights};
  CHECK(work_of(Elementwise{Function::Xielu}, {x, one, one}, x) ==
        Numbers{4627, 4, 0, 840, 0, 840});
  // silu(gate) · up in one kernel: 5 an element
  CHECK(work_of(GatedActivation{Function::Silu}, {x, x}, x) == Numbers{2100, 0, 0, 1680, 0, 840});
}

TEST_CASE("work: rotary embeddings turn pairs of the rotated dims only") {
  const auto table = std::make_shared<const RopeTable>(RopeTable{{1.0, 0.1}, 1, 1});  // 2 pairs
  // 10 rows · 6 heads · 2 pairs · 6 = 720, whatever head_dim is
  CHECK(work_of(Rope{6, 7, table, 0}, {q}, q) == Numbers{720, 0, 0, 840, 0, 840});
  // eager: cos of 5 positions · 7 dims, 2 FLOPs each; [-b | a] is 1 an element
  CHECK(work_of(RopeAngles{false, table, 0}, {}, {{tokens, heads.head_dim}}) ==
        Numbers{70, 0, 0, 0, 0, 70});
  CHECK(work_of(RotateHalf{6, 4}, {q}, q) == Numbers{420, 0, 0, 840, 0, 840});
  // mean of each row
  CHECK(work_of(RowMean{}, {q}, {{batch, tokens, 1}}) == Numbers{420, 0, 0, 840, 0, 20});
}

TEST_CASE("work: appending to a cache moves the new rows, not the cache") {
  const Operand past{{batch, keys, key_features}, Storage::KvCache};
  const Operand rows{{batch, tokens, key_features}};
  const Operand all{{batch, keys + tokens, key_features}, Storage::KvCache};
  // 2·5·21 halves = 420 bytes in, 420 out
  CHECK(work_of(CacheAppend{}, {past, rows}, all) == Numbers{0, 0, 0, 420, 420, 0});
  // into an 8-bit cache: 210 bytes out
  const Operand narrow{all.shape, Storage::KvCache, DType::FP8};
  CHECK(work_of(CacheAppend{}, {past, rows}, narrow) == Numbers{0, 0, 0, 420, 210, 0});
}

TEST_CASE("work: eager code repeats key-value heads in memory") {
  // 2·11·21 halves = 924 bytes from the cache become 1848 of activations
  CHECK(work_of(RepeatHeads{2}, {k}, {{batch, keys, query_width}}) ==
        Numbers{0, 0, 924, 0, 0, 1848});
}

TEST_CASE("work: the last token is one row of each sequence") {
  CHECK(work_of(LastToken{}, {q}, {{batch, 1, query_width}}) == Numbers{0, 0, 0, 168, 0, 168});
}

TEST_CASE("work: a convolution is a product over its kernel for each output row") {
  // stride 2: 10 frames of 7 -> 5 rows of 11; 2·5 rows · 11 · 7 · 3 · 2 = 4620, bias 110
  const Operand x{{batch, 10, 7}};
  const Operand w{{11, 7, 3}, Storage::Weights};
  const Operand b{{11}, Storage::Weights};
  CHECK(work_of(Conv1d{3, 2}, {x, w, b}, {{batch, 5, 11}}) ==
        Numbers{4730, 462 + 22, 0, 280, 0, 220});
}

TEST_CASE("work: position biases and masks are made once for all layers") {
  const Operand table{{32, 6}, Storage::Weights};
  const Operand bias{{6, tokens, keys}};  // 330 elements
  CHECK(work_of(RelativePositionBias{}, {table}, bias) == Numbers{0, 384, 0, 0, 0, 660});
  CHECK(work_of(AlibiBias{0.5}, {}, {{6, 1, keys}}) == Numbers{132, 0, 0, 0, 0, 132});
  CHECK(work_of(CausalMask{}, {}, {{tokens, keys}}) == Numbers{0, 0, 0, 0, 0, 110});
}

TEST_CASE("work: only products with weights run on the matrix unit") {
  CHECK(rate_class(Linear{}) == RateClass::Matrix);
  CHECK(rate_class(Conv1d{}) == RateClass::Matrix);
  CHECK(rate_class(AttentionScores{}) == RateClass::BatchedMatrix);
  CHECK(rate_class(AttentionValues{}) == RateClass::BatchedMatrix);
  CHECK(rate_class(TiledAttention{}) == RateClass::TiledAttention);
  for (const Op& op : {Op(Softmax{}), Op(Elementwise{}), Op(RmsNorm{}), Op(LayerNorm{}),
                       Op(Embedding{}), Op(CacheAppend{}), Op(Rope{}), Op(RepeatHeads{})}) {
    CHECK(rate_class(op) == RateClass::Vector);
  }
}

TEST_CASE("work: work adds up by class, and bytes are all of them") {
  Work a;
  a.flops = 3;
  a.read[weights_slot] = 5;
  a.written[cache_slot] = 7;
  Work b = a;
  b.read[activations_slot] = 11;
  a += b;
  CHECK(a.flops == Count(6));
  CHECK(a.read[weights_slot] == Count(10));
  CHECK(a.bytes() == Count(5 + 7 + 5 + 7 + 11));
  CHECK_FALSE(a == b);
  CHECK((a < b) != (b < a));
}
