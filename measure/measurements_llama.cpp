#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "measure/measurement_fields.h"
#include "model/base/error.h"

namespace kvcast::measure {
namespace {

/// Norms, rotations and activations are one kernel each, and of the last layer only the rows that
/// give logits are computed after attention (inp_out_ids of llama.cpp's graphs); attention by
/// flash_attn:
/// "0", "1", "false" or "on"; "-1", "auto" and what is not said are left to the user.
void set_attention(const MeasurementFields& f, MeasuredRow& row) {
  row.lowering.elementwise = Kernels::Fused;
  row.lowering.skip_unread_rows = true;
  const std::string flash = f.text_or("flash_attn", "");
  if (flash == "0" || flash == "false" || flash == "off") row.lowering.attention = Kernels::Eager;
  if (flash == "1" || flash == "true" || flash == "on") row.lowering.attention = Kernels::Fused;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// GGUF's names of what kvcast calls by the field's: "F16", "all F32", "Q4_K - Medium".
std::optional<DType> ggml_dtype(std::string text) {
  text = lower(std::move(text));
  constexpr std::pair<std::string_view, DType> names[] = {
      {"bf16", DType::BF16}, {"f16", DType::FP16},  {"f32", DType::FP32},  {"q8_0", DType::Q8_0},
      {"q4_0", DType::Q4_0}, {"q4_1", DType::Q4_1}, {"q4_k", DType::Q4_K}, {"q6_k", DType::Q6_K}};
  for (const auto& [word, dtype] : names) {
    const std::size_t at = text.find(word);
    if (at == std::string::npos || (at > 0 && std::isalnum(text[at - 1]) != 0)) continue;
    return dtype;
  }
  return {};
}

bool is_block(DType dtype) { return width(dtype).block_elements > 1; }

/// Weights as model_type ends ("llama 7B Q4_0"), cache as type_k; block-quantised weights are
/// multiplied in 16 bits.
void set_dtypes(const MeasurementFields& f, const MeasurementDefaults& defaults, MeasuredRow& row) {
  if (!defaults.dtype.empty()) return;
  const std::string type = f.text_or("model_type", "");
  const std::optional<DType> weights = ggml_dtype(type);
  const std::string key_type = f.text_or("type_k", "f16");
  const std::optional<DType> cache = ggml_dtype(key_type);
  if (!weights) {
    row.unusable = fmt::format("the dtype of '{}' is not known; expected --dtype", type);
  } else if (!cache || key_type != f.text_or("type_v", key_type)) {
    row.unusable = fmt::format("a cache of {} and {} has no dtype of kvcast's", key_type,
                               f.text_or("type_v", key_type));
  } else {
    row.lowering.weights = *weights;
    row.lowering.activations = is_block(*weights) ? DType::FP16 : *weights;
    row.lowering.cache = *cache;
  }
}

}  // namespace

MeasuredRow llama_bench_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  MeasuredRow row = row_of(f, defaults);
  set_attention(f, row);
  set_dtypes(f, defaults, row);
  if (f.has("model_n_params")) row.parameters = f.whole("model_n_params", 1);
  const std::uint64_t prompt = f.whole("n_prompt", 0);
  const std::uint64_t output = f.whole("n_gen", 0);
  const std::uint64_t depth = f.whole_or("n_depth", 0, 0);
  if (prompt == 0 && output == 0) f.fail("n_gen", "a prompt or an output that was timed");
  const double seconds = f.positive("avg_ns") / 1e9;
  row.id = fmt::format(
      "{} pp{} tg{} d{} fa{} ctk {} ctv {} t{} b{} ub{} ngl{} {}",
      std::filesystem::path(f.text_or("model_filename", "model")).filename().string(), prompt,
      output, depth, f.text_or("flash_attn", "?"), f.text_or("type_k", "?"),
      f.text_or("type_v", "?"), f.text_or("n_threads", "?"), f.text_or("n_batch", "?"),
      f.text_or("n_ubatch", "?"), f.text_or("n_gpu_layers", "?"), f.text_or("test_time", ""));
  if (output == 0) {
    row.size = {1, prompt, 1};
    row.times.push_back({Metric::Ttft, seconds});
    if (depth > 0) row.unusable = "a prompt after cached tokens (n_depth) is not forecast";
  } else if (prompt == 0) {
    // n_gen steps after an empty cache, which is what a prompt of 1 leaves but for that one token,
    // or after n_depth tokens.
    row.size = {1, std::max<std::uint64_t>(depth, 1), output + (depth > 0 ? 1 : 0)};
    row.times.push_back({Metric::Tpot, seconds / static_cast<double>(output)});
  } else {
    row.size = {1, prompt, output + 1};
    row.times.push_back({Metric::Request, seconds});
    if (depth > 0) row.unusable = "a prompt after cached tokens (n_depth) is not forecast";
  }
  return row;
}

MeasuredRow batched_bench_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  MeasuredRow row = row_of(f, defaults);
  set_attention(f, row);
  const std::uint64_t prompt = f.whole("pp", 1);
  const std::uint64_t output = f.whole("tg", 0);
  const std::uint64_t batch = f.whole("pl", 1);
  const bool shared = f.text_or("is_pp_shared", "0") != "0";
  row.size = {batch, prompt, output + 1};
  // A shared prompt is computed once for all sequences.
  if (!shared || batch == 1) row.times.push_back({Metric::Ttft, f.positive("t_pp")});
  if (output > 0) {
    row.times.push_back({Metric::Tpot, f.positive("t_tg") / static_cast<double>(output)});
  }
  row.id = fmt::format("pp{} tg{} pl{} shared{} fa{} t{} b{} ub{} ngl{}", prompt, output, batch,
                       shared ? 1 : 0, f.text_or("flash_attn", "?"), f.text_or("n_threads", "?"),
                       f.text_or("n_batch", "?"), f.text_or("n_ubatch", "?"),
                       f.text_or("n_gpu_layers", "?"));
  if (row.times.empty()) row.unusable = "a prompt shared by several sequences is not forecast";
  return row;
}

}  // namespace kvcast::measure
