/// Small models for Slim attention, converted and run: what their tests share.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/convert/slim_conversion.h"
#include "model/graph/work.h"
#include "tests/execute/oracle.h"
#include "tests/execute/random_checkpoint.h"
#include "tests/test_folder.h"

namespace kvcast::slim_cases {

using execute::Generation;
using execute::OracleCase;
using execute::Request;
using execute::Session;
using execute::SessionOptions;
using execute::TokenId;
using nlohmann::json;

/// Where the converted checkpoints of this program's tests lie.
inline const std::filesystem::path& test_folder() {
  static const TestFolder folder;
  return folder.path();
}

/// Every logit of a request, prompt and decode steps, and what its cache held at the end.
struct Outcome {
  std::vector<double> logits;
  std::vector<double> prompt_logits;  ///< [batch, positions, vocab_size]
  std::vector<std::vector<TokenId>> tokens;
  /// Of all cache tensors, as the run left them: without a row of the last token, which nothing
  /// reads back.
  std::uint64_t kept_bytes = 0;
  std::uint64_t estimated_bytes = 0;       ///< with that row, as estimates have it
  std::uint64_t estimated_kept_bytes = 0;  ///< by the same formula, without it
  execute::Skipped skipped;
};

/// A threshold's node: what it skipped, counted from the probabilities that it read.
inline void check_skipped(const execute::NodeRun& node_run, const SparseValues& op) {
  const execute::Operand& p = node_run.call->inputs[0];  // [batch, heads, queries, keys]
  const std::size_t keys = p.shape[3];
  std::vector<bool> is_read(p.shape[0] * keys);
  std::uint64_t few = 0;
  for (std::size_t i = 0; i < p.shape.elements(); ++i) {
    const bool is_few = p.numbers<double>()[i] < op.threshold;
    few += is_few ? 1 : 0;
    if (!is_few) is_read[i / (p.shape[1] * p.shape[2] * keys) * keys + i % keys] = true;
  }
  const auto unread = static_cast<std::uint64_t>(std::count(is_read.begin(), is_read.end(), false));
  const execute::Skipped& skipped = node_run.skipped;
  CHECK(skipped.all_pairs == p.shape.elements());
  CHECK(skipped.pairs == few);
  const std::size_t row = node_run.call->inputs[1].shape[2];
  CHECK(skipped.bytes == unread * row * sizeof(double));
  const std::size_t rotated =
      op.unrotate ? 6 * op.rope_heads * op.unrotate->inverse_frequencies.size() : 0;
  // A multiplication and an addition for each feature of a pair's sum.
  CHECK(skipped.flops == 2 * op.heads.head_dim * few + rotated * unread);
}

/// Runs in fp64 and holds every operator's counts against the recorder's on the way.
inline Outcome run(const Checkpoint& checkpoint, Request request, SessionOptions o) {
  o.dtype = DType::FP64;
  o.logits = Logits::All;
  o.decoder_tokens = request.tokens.front().size();
  Outcome outcome;
  std::map<std::string, std::uint64_t> kept;
  request.on_node = [&](const Graph& graph, const execute::NodeRun& node_run,
                        std::span<const std::uint64_t> symbols) {
    const Node& node = graph.nodes()[node_run.node];
    const execute::Operand& out = node_run.call->output;
    if (node.label == "head") {
      const double* numbers = out.numbers<double>();
      outcome.logits.insert(outcome.logits.end(), numbers, numbers + out.shape.elements());
    }
    if (std::holds_alternative<CacheAppend>(node.op)) {
      kept[graph.tensor(node.inputs[0]).name] = out.shape.elements() * sizeof(double);
    }
    const Work expected = work(graph, node);
    CAPTURE(node.label);
    const execute::Skipped& skipped = node_run.skipped;
    CHECK(node_run.counted->flops == expected.flops.at(symbols) - skipped.flops);
    // Formulas know the mean over layers of the experts read.
    if (!std::holds_alternative<ExpertLinear>(node.op)) {
      CHECK(node_run.counted->bytes() == expected.bytes().at(symbols) - skipped.bytes);
    }
    if (const auto* sparse = std::get_if<SparseValues>(&node.op)) check_skipped(node_run, *sparse);
  };
  const Session session(checkpoint, o);
  const Generation g = session.run(request);
  outcome.tokens = g.tokens;
  outcome.prompt_logits.assign(g.logits64.begin(), g.logits64.end());
  for (const auto& [name, bytes] : kept) outcome.kept_bytes += bytes;
  outcome.estimated_bytes = g.kv_cache_bytes;
  const Architecture& a = checkpoint.architecture();
  const std::uint64_t prompt = !a.encoder_decoder   ? o.decoder_tokens
                               : a.num_mel_bins > 0 ? a.max_source_positions
                                                    : request.encoder_tokens.front().size();
  const Recording& recording = session.recording();
  outcome.estimated_kept_bytes = recording.kv_cache_bytes.at(recording.symbols.resolve(
      {request.tokens.size(), prompt, o.decoder_tokens + request.output_len - 1}));
  outcome.skipped = g.skipped;
  return outcome;
}

inline double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  const auto [low, high] = std::minmax_element(b.begin(), b.end());
  return largest / (*high - *low);
}

inline SessionOptions slim_session(const std::string& method, Kernels kernels) {
  return {.methods = parse_methods(method), .attention = kernels, .elementwise = kernels};
}

/// A model of a table of cases and the form that it is converted to.
struct FormOf {
  const char* name;
  const char* option;
};

struct Case {
  std::string name;
  Checkpoint checkpoint;
  Request request;
};

inline Case oracle_case(const std::string& name) {
  const OracleCase c(name);
  return {name, c.checkpoint, c.request(c.prompt, 6)};
}

inline Case random_case(const std::string& name, const json& config) {
  const std::filesystem::path folder = test_folder() / name;
  std::filesystem::remove_all(folder);
  write_random_checkpoint(config, folder, 7);
  Request request;
  request.tokens = {{3, 1, 4, 1, 5, 9, 2, 6}, {2, 7, 1, 8, 2, 8, 1, 8}};
  request.output_len = 6;
  return {name, Checkpoint(folder), request};
}

/// T5 with four times as many key features as inputs, as T5-11B has 16 times as many.
inline Case wide_t5_case() {
  const json config{{"model_type", "t5"},
                    {"d_model", 16},
                    {"d_kv", 16},
                    {"num_heads", 4},
                    {"d_ff", 24},
                    {"num_layers", 2},
                    {"num_decoder_layers", 3},
                    {"feed_forward_proj", "relu"},
                    {"relative_attention_num_buckets", 8},
                    {"relative_attention_max_distance", 16},
                    {"tie_word_embeddings", true},
                    {"decoder_start_token_id", 0},
                    {"vocab_size", 61}};
  Case c = random_case("wide_t5", config);
  c.request.encoder_tokens = {{5, 3, 5, 8, 9, 7, 9, 3, 2}, {1, 4, 1, 4, 2, 1, 3, 5, 6}};
  return c;
}

/// Shapes that the oracle's cases do not have.
inline std::vector<Case> random_cases() {
  const json gemma2{{"model_type", "gemma2"},         {"hidden_size", 24},
                    {"num_hidden_layers", 2},         {"num_attention_heads", 4},
                    {"num_key_value_heads", 2},       {"head_dim", 8},
                    {"intermediate_size", 40},        {"vocab_size", 61},
                    {"query_pre_attn_scalar", 8},     {"sliding_window", 4},
                    {"attn_logit_softcapping", 50.0}, {"final_logit_softcapping", 30.0},
                    {"max_position_embeddings", 64}};
  const json codegemma{
      {"model_type", "gemma"},    {"hidden_size", 24},        {"num_hidden_layers", 2},
      {"num_attention_heads", 4}, {"num_key_value_heads", 4}, {"head_dim", 8},
      {"intermediate_size", 40},  {"vocab_size", 61},         {"max_position_embeddings", 64}};
  const json openelm{{"model_type", "openelm"},
                     {"model_dim", 24},
                     {"num_transformer_layers", 2},
                     {"num_query_heads", {4, 4}},
                     {"num_kv_heads", {4, 4}},
                     {"head_dim", 8},
                     {"ffn_multipliers", {1.5, 2.0}},
                     {"ffn_dim_divisor", 8},
                     {"vocab_size", 61},
                     {"max_context_length", 64},
                     {"normalize_qk_projections", true},
                     {"share_input_output_layers", true},
                     {"ffn_with_glu", true}};
  const json phi3{{"model_type", "phi3"},
                  {"hidden_size", 24},
                  {"num_hidden_layers", 2},
                  {"num_attention_heads", 3},
                  {"num_key_value_heads", 3},
                  {"intermediate_size", 40},
                  {"vocab_size", 61},
                  {"max_position_embeddings", 64},
                  {"original_max_position_embeddings", 64}};
  return {random_case("gemma2_wide", gemma2), random_case("codegemma", codegemma),
          random_case("openelm_mha", openelm), random_case("phi3_mha", phi3)};
}

inline SlimConversion conversion_of(const Case& c, const std::string& option) {
  SlimConversion conversion;
  conversion.option = option;
  conversion.max_error = 0.5;  // small random matrices; what matters here is equality in fp64
  conversion.dtype = DType::FP64;
  conversion.calibration = c.request;
  return conversion;
}

inline Checkpoint converted(const Case& c, const std::string& option) {
  const std::filesystem::path folder = test_folder() / (c.name + "_" + option);
  std::filesystem::remove_all(folder);
  const SlimReport report = convert_to_slim(c.checkpoint, folder, conversion_of(c, option));
  for (const SlimLayerReport& layer : report.layers) {
    CAPTURE(layer.reason);
    CHECK(layer.chosen != CacheForm::KeysAndValues);
  }
  return Checkpoint(folder);
}

}  // namespace kvcast::slim_cases
