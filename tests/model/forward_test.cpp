#include "model/forward/forward.h"

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/graph/work.h"
#include "model/record/recording.h"
#include "tests/model/tiny_models.h"

using namespace kvcast;
using nlohmann::json;

namespace {

using U = std::uint64_t;

// Odd sizes: D 42, V 51, H 6, G 3, hd 8 (H·hd = 48 is not D), F 20, L 3.
const std::string llama = R"({"model_type": "llama", "hidden_size": 42, "vocab_size": 51,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8,
  "intermediate_size": 20})";
const std::string neox = R"({"model_type": "gpt_neox", "hidden_size": 48, "vocab_size": 51,
  "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 20})";
const std::string openelm = R"({"model_type": "openelm", "model_dim": 40, "vocab_size": 51,
  "num_transformer_layers": 3, "head_dim": 8, "num_query_heads": [4, 6, 8],
  "num_kv_heads": [2, 3, 4], "ffn_multipliers": [0.5, 1.5, 4.0], "ffn_dim_divisor": 8})";
const std::string falcon = R"({"model_type": "falcon", "hidden_size": 48, "vocab_size": 51,
  "num_hidden_layers": 3, "num_attention_heads": 6})";
const std::string gpt2 = R"({"model_type": "gpt2", "n_embd": 42, "vocab_size": 51,
  "n_layer": 3, "n_head": 6, "n_positions": 64, "n_inner": 20})";
const std::string opt = R"({"model_type": "opt", "hidden_size": 42, "vocab_size": 51,
  "num_hidden_layers": 3, "num_attention_heads": 6, "ffn_dim": 20,
  "max_position_embeddings": 64})";
const std::string t5 = R"({"model_type": "t5", "d_model": 42, "vocab_size": 51,
  "num_layers": 2, "num_decoder_layers": 3, "num_heads": 6, "d_kv": 5, "d_ff": 20})";
const std::string whisper = R"({"model_type": "whisper", "d_model": 42, "vocab_size": 51,
  "encoder_layers": 2, "encoder_attention_heads": 6, "encoder_ffn_dim": 168,
  "decoder_layers": 3, "decoder_attention_heads": 3, "decoder_ffn_dim": 168,
  "num_mel_bins": 11, "max_source_positions": 13, "max_target_positions": 17})";

/// Sum of `value` over the nodes of a pass for which `wanted` holds.
U total(const Graph& g, const SymbolValues& values, const std::function<bool(const Node&)>& wanted,
        const std::function<Count(const Work&)>& value) {
  Count sum;
  for (const Node& n : g.nodes()) {
    if (wanted(n)) sum += value(work(g, n));
  }
  return sum.at(values);
}

template <typename... Ops>
U flops_of(const Graph& g, const SymbolValues& values) {
  return total(
      g, values, [](const Node& n) { return (std::holds_alternative<Ops>(n.op) || ...); },
      [](const Work& w) { return w.flops; });
}

}  // namespace

TEST_CASE("forward: parameter counts follow each family's formula") {
  // reference/models.md, "Formulas", written out again here from the shapes of the papers.
  const U D = 42, V = 51, L = 3, H = 6, G = 3, hd = 8, F = 20;
  // Llama: q, k, v, o, three MLP matrices, two norms; final norm, embedding, head
  const U llama_layer = D * H * hd + 2 * D * G * hd + H * hd * D + 3 * D * F;
  CHECK(count_parameters(model_of(llama)) == L * (llama_layer + 2 * D) + D + 2 * V * D);
  CHECK(count_parameters(model_of(llama, R"({"tie_word_embeddings": true})")) ==
        L * (llama_layer + 2 * D) + D + V * D);
  CHECK(count_parameters(model_of(llama, R"({"model_type": "phi3", "sliding_window": 7})")) ==
        L * (llama_layer + 2 * D) + D + 2 * V * D);
  // Qwen2: biases on q, k, v
  CHECK(count_parameters(model_of(llama, R"({"model_type": "qwen2"})")) ==
        L * (llama_layer + (H + 2 * G) * hd + 2 * D) + D + 2 * V * D);
  // attention_bias: o has one too; mlp_bias: gate, up, down
  CHECK(count_parameters(model_of(llama, R"({"attention_bias": true, "mlp_bias": true})")) ==
        L * (llama_layer + (H + 2 * G) * hd + D + 2 * F + D + 2 * D) + D + 2 * V * D);
  // OLMo: norms without weights
  CHECK(count_parameters(model_of(llama, R"({"model_type": "olmo"})")) ==
        L * llama_layer + 2 * V * D);
  // Gemma: tied; Gemma 2: four norms a layer
  CHECK(count_parameters(model_of(llama, R"({"model_type": "gemma"})")) ==
        L * (llama_layer + 2 * D) + D + V * D);
  CHECK(count_parameters(model_of(llama, R"({"model_type": "gemma2", "sliding_window": 7})")) ==
        L * (llama_layer + 4 * D) + D + V * D);
}

TEST_CASE("forward: parameter counts of the families with biases and learned positions") {
  const U V = 51, L = 3, F = 20, P = 48;  // P: hidden size of GPT-NeoX and Falcon
  CHECK(count_parameters(model_of(neox)) ==
        2 * V * P + 2 * P + L * (4 * P + 3 * P * P + 3 * P + P * P + P + 2 * P * F + F + P));
  const U H = 6, hd = 8, W = 4 * P;
  // Falcon-7B: one KV head, one norm with weight and bias, no other biases, tied
  CHECK(count_parameters(model_of(falcon)) ==
        V * P + L * (P * (H + 2) * hd + P * P + 2 * P * W + 2 * P) + 2 * P);
  // Falcon-RW: all heads, biases everywhere, two norms
  CHECK(count_parameters(model_of(falcon, R"({"multi_query": false, "alibi": true, "bias": true,
                                          "parallel_attn": false})")) ==
        V * P + L * (3 * P * P + 3 * P + P * P + P + 2 * P * W + W + P + 4 * P) + 2 * P);
  // Falcon-40B: two KV heads, two norms
  CHECK(count_parameters(
            model_of(falcon, R"({"new_decoder_architecture": true, "num_kv_heads": 2})")) ==
        V * P + L * (P * (H + 4) * hd + P * P + 2 * P * W + 4 * P) + 2 * P);
  const U D = 42;
  const U layer = 3 * D * D + 3 * D + D * D + D + 2 * D * F + F + D + 4 * D;
  CHECK(count_parameters(model_of(gpt2)) == V * D + 64 * D + L * layer + 2 * D);
  // OPT: the same with two more position rows
  CHECK(count_parameters(model_of(opt)) == V * D + 66 * D + L * layer + 2 * D);
}

TEST_CASE("forward: parameter counts of OpenELM's growing layers") {
  const U D = 40, V = 51, hd = 8;
  // Widths 0.5, 1.5 and 4 times 40, all multiples of 8: int(24)/8, int(64)/8, int(164)/8
  const U heads[3] = {4, 6, 8}, groups[3] = {2, 3, 4}, widths[3] = {24, 64, 160};
  U sum = V * D + D;
  for (std::size_t i = 0; i < 3; ++i) {
    sum += D * (heads[i] + 2 * groups[i]) * hd + heads[i] * hd * D + 2 * hd + 3 * D * widths[i] +
           2 * D;
  }
  CHECK(count_parameters(model_of(openelm)) == sum);
  CHECK(count_parameters(model_of(openelm, R"({"share_input_output_layers": false})")) ==
        sum + V * D);
  CHECK(count_parameters(model_of(openelm, R"({"normalize_qk_projections": false})")) ==
        sum - 3 * 2 * hd);
}

TEST_CASE("forward: parameter counts of encoder-decoder models") {
  const U D = 42, V = 51, F = 20, e = 6 * 5;
  const auto t5_count = [&](U g, U tables) {
    return 2 * (4 * D * e + g * D * F + 2 * D) + 32 * 6 + D +  // 2 encoder layers
           3 * (8 * D * e + g * D * F + 3 * D) + 32 * 6 + D +  // 3 decoder layers
           tables * V * D;
  };
  CHECK(count_parameters(model_of(t5)) == t5_count(2, 1));
  CHECK(count_parameters(model_of(t5, R"({"tie_word_embeddings": false,
                                      "feed_forward_proj": "gated-gelu"})")) == t5_count(3, 2));
  const U mels = 11, frames = 13, rows = 17;
  const U encoder = 3 * mels * D + D + 3 * D * D + D + frames * D +
                    2 * (4 * D * D + 3 * D + 8 * D * D + 5 * D + 4 * D) + 2 * D;
  const U decoder =
      V * D + rows * D + 3 * (2 * (4 * D * D + 3 * D) + 8 * D * D + 5 * D + 6 * D) + 2 * D;
  CHECK(count_parameters(model_of(whisper)) == encoder + decoder);
}

TEST_CASE("forward: a prefill's linear layers do 2 FLOPs a parameter and token") {
  const Recording r = record(model_of(llama), {}, {});
  const U batch = 2, prompt = 11;
  const SymbolValues values = r.symbols.resolve({batch, prompt, 5});
  const U D = 42, H = 6, G = 3, hd = 8, F = 20, L = 3, V = 51;
  const U layers = L * (D * H * hd + 2 * D * G * hd + H * hd * D + 3 * D * F);
  // every token through the layers, the last of each sequence through the head
  CHECK(flops_of<Linear>(r.prefill(), values) == 2 * batch * (prompt * layers + D * V));
  CHECK(flops_of<Linear>(r.decode(), values) == 2 * batch * (layers + D * V));
  const Recording all = record(model_of(llama), {}, {}, {.logits = Logits::All});
  CHECK(flops_of<Linear>(all.prefill(), values) == 2 * batch * prompt * (layers + D * V));
}

TEST_CASE("forward: a prefill's attention does 4·hd + 5 FLOPs a visible pair and head") {
  const U batch = 2, prompt = 11, H = 6, hd = 8, L = 3;
  const Recording r = record(model_of(llama), {}, {});
  const SymbolValues values = r.symbols.resolve({batch, prompt, 5});
  const U pairs = prompt * (prompt + 1) / 2;
  CHECK(flops_of<TiledAttention>(r.prefill(), values) ==
        L * (batch * H * pairs * (4 * hd + 5) + batch * prompt * H * hd));
  // eager: all pairs, masked or not, 4·hd for the two products
  const Lowering eager{Kernels::Eager, Kernels::Eager};
  const Recording e = record(model_of(llama), {}, eager);
  CHECK(flops_of<AttentionScores, AttentionValues>(e.prefill(), values) ==
        L * batch * H * prompt * prompt * 4 * hd);
}

TEST_CASE("forward: token by token attends to as many pairs as the prompt at once") {
  // The causal pairs of n tokens are the sum of the decode steps 1..n; the division of each output
  // is there in both. With a window too.
  const std::string patches[] = {"{}", R"({"model_type": "mistral", "sliding_window": 4})",
                                 R"({"model_type": "gemma2", "sliding_window": 5,
                                     "attn_logit_softcapping": 50.0})"};
  for (const std::string& patch : patches) {
    CAPTURE(patch);
    const Recording r = record(model_of(llama, patch), {}, {});
    U sum = 0;
    for (U n = 1; n <= 13; ++n) {
      sum += flops_of<TiledAttention>(r.decode(), r.symbols.resolve({3, 7, n}));
      CHECK(sum == flops_of<TiledAttention>(r.prefill(), r.symbols.resolve({3, n, 1})));
    }
  }
}

TEST_CASE("forward: token by token does the linear work of the prompt at once") {
  const std::string models[] = {llama, neox, openelm, falcon, gpt2, opt};
  for (const std::string& model : models) {
    CAPTURE(model);
    const Recording r = record(model_of(model), {}, {}, {.logits = Logits::All});
    U sum = 0;
    for (U n = 1; n <= 5; ++n) sum += flops_of<Linear>(r.decode(), r.symbols.resolve({3, 7, n}));
    CHECK(sum == flops_of<Linear>(r.prefill(), r.symbols.resolve({3, 5, 1})));
  }
}

TEST_CASE("forward: the cache holds K and V of every layer, GQA heads once") {
  const auto per_token = [](const Architecture& a) {
    return record(a, {}, {}).kv_cache_bytes_per_token.at({});
  };
  // 2 bytes, K and V: 2·2·G·hd a layer
  CHECK(per_token(model_of(llama)) == 4 * 3 * 3 * 8);
  CHECK(per_token(model_of(neox)) == 4 * 3 * 6 * 8);
  CHECK(per_token(model_of(falcon)) == 4 * 3 * 1 * 8);
  CHECK(per_token(model_of(openelm)) == 4 * (2 + 3 + 4) * 8);
  CHECK(per_token(model_of(t5)) == 4 * 3 * 6 * 5);  // the decoder's own
  CHECK(record(model_of(t5), {}, {}).cross_cache_bytes_per_token.at({}) == 4 * 3 * 6 * 5);
  CHECK(per_token(model_of(whisper)) == 4 * 3 * 42);
}

TEST_CASE("forward: a decode step reads the whole cache once and writes one row of it") {
  const Recording r = record(model_of(llama), {}, {});
  const std::size_t cache = static_cast<std::size_t>(Storage::KvCache);
  for (const U kv : {2u, 9u, 100u}) {
    const SymbolValues values = r.symbols.resolve({3, 7, kv});
    const Work decode = total_work(r.decode());
    CHECK(decode.read[cache].at(values) == 3 * kv * 4 * 3 * 24);
    CHECK(decode.written[cache].at(values) == 3 * 4 * 3 * 24);
    const Work prefill = total_work(r.prefill());
    CHECK(prefill.written[cache].at(values) == 3 * 7 * 4 * 3 * 24);
  }
}

TEST_CASE("forward: a pass reads each weight once; a decode step all but the other embeddings") {
  const std::size_t weights = static_cast<std::size_t>(Storage::Weights);
  const Recording r = record(model_of(llama), {}, {});
  const SymbolValues values = r.symbols.resolve({2, 7, 5});
  const U embedding = 51 * 42;
  // fp16; the embedding table gives a row of 42 for each of the 2 tokens
  CHECK(total_work(r.decode()).read[weights].at(values) ==
        2 * (r.parameters - embedding) + 2 * 2 * 42);
  CHECK(total_work(r.prefill()).read[weights].at(values) ==
        2 * (r.parameters - embedding) + 2 * 7 * 2 * 42);
}

TEST_CASE("forward: an encoder sees all pairs, its decoder the encoder's rows at every step") {
  const Recording r = record(model_of(t5), {}, {});
  const U batch = 2, length = 11, e = 30, per_pair = 4 * 5 + 4;  // no scale in T5
  const SymbolValues values = r.symbols.resolve({batch, length, 3});
  // encoder, 2 layers: 11·11 pairs with a bias; decoder, first token: 1 pair with a bias, and
  // cross-attention over 11 rows without
  const U encoder = 2 * batch * (6 * length * length * (per_pair + 1) + length * e);
  const U self = 3 * batch * (6 * (per_pair + 1) + e);
  const U cross = 3 * batch * (6 * length * per_pair + e);
  CHECK(flops_of<TiledAttention>(r.prefill(), values) == encoder + self + cross);
  // third step: 3 pairs
  CHECK(flops_of<TiledAttention>(r.decode(), values) ==
        3 * batch * (6 * 3 * (per_pair + 1) + e) + cross);
  // linear: encoder 2 layers for 11 tokens; cross K and V for 11; decoder and head for one
  const U D = 42, F = 20, V = 51;
  CHECK(flops_of<Linear>(r.prefill(), values) ==
        2 * batch *
            (length * 2 * (4 * D * e + 2 * D * F) + length * 3 * 2 * D * e +
             3 * (6 * D * e + 2 * D * F) + D * V));
}

TEST_CASE("forward: Whisper's convolutions halve the mel frames") {
  const Recording r = record(model_of(whisper), {}, {});
  const U batch = 2, length = 13, D = 42, mels = 11;
  const SymbolValues values = r.symbols.resolve({batch, length, 3});
  // 26 frames through conv1, 13 out of conv2; a bias each
  const U conv1 = batch * 2 * length * D * (2 * mels * 3 + 1);
  const U conv2 = batch * length * D * (2 * D * 3 + 1);
  CHECK(flops_of<Conv1d>(r.prefill(), values) == conv1 + conv2);
}
