#include "model/record/recording.h"

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/families/config_reader.h"
#include "model/graph/work.h"
#include "tests/model/message_of.h"
#include "tests/model/tiny_models.h"

using namespace kvcast;
using nlohmann::json;

namespace {

struct Point {
  std::uint64_t batch;
  std::uint64_t prompt_len;
  std::uint64_t kv_len;
};

/// The passes of `record` again, with plain numbers for shapes: no symbols, nothing derived.
Work concrete_prefill(const Architecture& a, const Lowering& lowering, const Point& p) {
  Symbols symbols;
  Recorder r(symbols, lowering);
  if (a.encoder_decoder) {
    const Value states = record_encoder(r, a, p.batch, p.prompt_len);
    record_decoder(r, a, {p.batch, 1, 0, p.prompt_len, Logits::Last}, states);
  } else {
    record_decoder(r, a, {p.batch, p.prompt_len, 0, 0, Logits::Last});
  }
  CHECK_FALSE(symbols.has_derived());
  return total_work(r.take());
}

Work concrete_decode(const Architecture& a, const Lowering& lowering, const Point& p) {
  Symbols symbols;
  Recorder r(symbols, lowering);
  record_decoder(r, a, {p.batch, 1, p.kv_len - 1, p.prompt_len, Logits::Last});
  CHECK_FALSE(symbols.has_derived());
  return total_work(r.take());
}

void check_equal(const Work& symbolic, const SymbolValues& values, const Work& concrete) {
  CHECK(symbolic.flops.at(values) == concrete.flops.at({}));
  for (std::size_t i = 0; i < num_storages; ++i) {
    CHECK(symbolic.read[i].at(values) == concrete.read[i].at({}));
    CHECK(symbolic.written[i].at(values) == concrete.written[i].at({}));
  }
}

}  // namespace

TEST_CASE("recording: symbols evaluated at a point are the recording of that point, exactly") {
  // gemma2's window of 4096 begins and ends between these points.
  constexpr std::array points{Point{2, 3, 5}, Point{3, 1023, 4096}, Point{7, 4097, 4097},
                              Point{5, 12288, 131072}};
  for (const std::string name :
       {"pythia-160m", "llama-3.2-1b", "gemma2-2b", "openelm-270m", "falcon-7b", "falcon-rw-1b",
        "gpt2", "opt-125m", "t5-small", "flan-t5-base", "whisper-tiny", "phi-3-mini-4k"}) {
    const Architecture a = load_model(catalog(), name);
    for (const Kernels kernels : {Kernels::Eager, Kernels::Fused}) {
      const Lowering lowering{kernels, kernels, DType::FP16, DType::FP16, DType::FP16};
      const Recording r = record(a, {}, lowering);
      const Work prefill = total_work(r.prefill());
      const Work decode = total_work(r.decode());
      for (const Point& p : points) {
        CAPTURE(name);
        CAPTURE(p.prompt_len);
        CAPTURE(p.kv_len);
        const SymbolValues values = r.symbols.resolve({p.batch, p.prompt_len, p.kv_len});
        check_equal(prefill, values, concrete_prefill(a, lowering, p));
        check_equal(decode, values, concrete_decode(a, lowering, p));
      }
    }
  }
}

TEST_CASE("recording: quantised weights and caches round up once in both recordings") {
  const Lowering lowering{Kernels::Fused, Kernels::Fused, DType::Q4_K, DType::FP16, DType::Q8_0};
  const Architecture a = load_model(catalog(), "pythia-160m");
  const Recording r = record(a, {}, lowering);
  const Point p{3, 7, 11};
  const SymbolValues values = r.symbols.resolve({p.batch, p.prompt_len, p.kv_len});
  check_equal(total_work(r.prefill()), values, concrete_prefill(a, lowering, p));
  check_equal(total_work(r.decode()), values, concrete_decode(a, lowering, p));
  // 162,322,944 parameters at 4.5 bits
  CHECK(r.weight_bytes.at({}) == 162322944 / 256 * 144);
}

TEST_CASE("recording: the cache is K and V of every slot, and an encoder's rows beside it") {
  const Recording r = record(load_model(catalog(), "openelm-1.1b"), {}, {});
  // 21632 elements a token (models.md), 2 bytes
  CHECK(r.kv_cache_bytes_per_token == Count(43264));
  CHECK(r.cross_cache_bytes_per_token.is_zero());
  CHECK(r.kv_cache_bytes.at(r.symbols.resolve({3, 7, 11})) == 3 * 11 * 43264);
  CHECK(r.prompt_slots == Count(symbol::prompt_len));
  CHECK(r.weight_bytes == Count(2 * r.parameters));
  // whisper-tiny: 3072 elements each, decoder slots and encoder frames
  const Recording w = record(load_model(catalog(), "whisper-tiny"), {}, {});
  CHECK(w.kv_cache_bytes.at(w.symbols.resolve({3, 1500, 11})) == 3 * (11 + 1500) * 2 * 3072);
  CHECK(w.prompt_slots == Count(1));
}

TEST_CASE("recording: all logits cost the head for every token, last logits for one") {
  const Architecture a = load_model(catalog(), "pythia-70m");
  const Recording last = record(a, {}, {});
  const Recording all = record(a, {}, {}, {.logits = Logits::All});
  const SymbolValues values = last.symbols.resolve({2, 7, 3});
  const Count difference = total_work(all.prefill()).flops - total_work(last.prefill()).flops;
  // 6 more tokens of 2 sequences: head 2·512·50304, final LayerNorm 7·512 + 4
  CHECK(difference.at(values) == 2 * 6 * (2 * 512 * 50304 + 7 * 512 + 4));
  CHECK(total_work(all.decode()) == total_work(last.decode()));
}

TEST_CASE("recording: of the last layer's rows without logits only attention is left") {
  const Architecture a = load_model(catalog(), "tinyllama-1.1b");
  Lowering lowering;
  const Recording full = record(a, {}, lowering);
  lowering.skip_unread_rows = true;
  const Recording skipped = record(a, {}, lowering);
  const auto matrix_flops = [](const Recording& r, std::uint64_t batch, std::uint64_t tokens) {
    const SymbolValues at = r.symbols.resolve({batch, tokens, tokens});
    std::uint64_t sum = 0;
    for (const Node& n : r.prefill().nodes()) {
      if (std::holds_alternative<Linear>(n.op)) sum += work(r.prefill(), n).flops.at(at);
    }
    return sum;
  };
  // of W_O 2048 x 2048 and three matrices 2048 x 5632, for 3 x 511 rows
  CHECK(matrix_flops(full, 3, 512) - matrix_flops(skipped, 3, 512) ==
        2ULL * 3 * 511 * (2048 * 2048 + 3 * 2048 * 5632));
  CHECK(total_work(full.decode()).flops.at(full.symbols.resolve({3, 512, 600})) ==
        total_work(skipped.decode()).flops.at(skipped.symbols.resolve({3, 512, 600})));
}

TEST_CASE("recording: a prompt of one costs no more than a decode step into an empty cache") {
  const Architecture a = load_model(catalog(), "pythia-70m");
  const Recording r = record(a, {}, {});
  const SymbolValues values = r.symbols.resolve({2, 1, 1});
  CHECK(total_work(r.prefill()).flops.at(values) == total_work(r.decode()).flops.at(values));
}

TEST_CASE("recording: sizes whose counts do not fit 64 bits throw instead of wrapping") {
  const auto recorded = [](const std::string& text) {
    return message_of([&] {
      const Architecture a = read_config(json::parse(text), "huge", "huge.json");
      const Recording r = record(a, {}, {});
      total_work(r.prefill()).flops.at(r.symbols.resolve({2, 3, 5}));
    });
  };
  const std::string cases[] = {
      // heads · head_dim = 2^80, which wraps to 0
      R"({"model_type": "t5", "d_model": 42, "vocab_size": 51, "num_layers": 2,
          "num_heads": 1099511627776, "d_kv": 1099511627776, "d_ff": 20})",
      R"({"model_type": "gpt2", "n_embd": 42, "vocab_size": 51, "n_layer": 2,
          "n_head": 1099511627776, "head_dim": 1099511627776, "n_positions": 64})",
      R"({"model_type": "gpt2", "n_embd": 42, "vocab_size": 51, "n_layer": 2,
          "n_head": 4294967296, "head_dim": 4294967296, "n_positions": 64})",
      // hidden · vocabulary = 2^80
      R"({"model_type": "llama", "hidden_size": 1099511627776, "vocab_size": 1099511627776,
          "num_hidden_layers": 2, "num_attention_heads": 34359738368, "intermediate_size": 20})",
      // 10000 layers of 2^52 parameters each
      R"({"model_type": "t5", "d_model": 67108864, "vocab_size": 51, "num_layers": 10000,
          "num_heads": 67108864, "d_kv": 1, "d_ff": 67108864})"};
  for (const std::string& text : cases) {
    CAPTURE(text);
    check_line(recorded(text), {"exceeds 64 bits"});
  }
}
