#include "roofline/estimator.h"

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/families/config_reader.h"

namespace kvcast::roofline {
namespace {

bool is_plain(const std::vector<MethodSpec>& methods) {
  return methods.empty() || (methods.size() == 1 && methods[0].name == "plain");
}

Estimate compare(const Forecast& f, const Forecast& plain) {
  Estimate e{f};
  e.ttft_speedup = plain.ttft_s / f.ttft_s;
  e.tpot_speedup = plain.tpot_s / f.tpot_s;
  e.kv_cache_ratio = f.kv_cache_bytes / plain.kv_cache_bytes;
  return e;
}

}  // namespace

Recordings record_for(const Configuration& c) {
  RecordOptions options{.logits = c.logits, .find_model = c.find_model};
  Recordings r{record(c.architecture, c.methods, c.lowering, options), {}};
  // Methods that choose tokens or fill caches ahead keep the prompt in one piece.
  const bool in_pieces = c.engine.prefill_tokens > 0 && !c.architecture.encoder_decoder &&
                         !r.whole.whole_prompt && r.whole.helpers().empty() &&
                         r.whole.prompt_slots == Count(symbol::prompt_len);
  options.chunked = true;
  if (in_pieces) r.chunk = record(c.architecture, c.methods, c.lowering, options);
  return r;
}

Estimator::Estimator(const Configuration& c)
    : architecture_(c.architecture),
      recordings_(record_for(c)),
      forecaster_(recordings_.whole, c.lowering,
                  make_rates(c.hardware, c.lowering, c.mode, c.engine),
                  recordings_.chunk_or_null()) {
  if (is_plain(c.methods)) return;
  Configuration plain = c;
  plain.methods = {};
  const Recordings recordings = record_for(plain);
  plain_ = std::make_unique<Forecaster>(recordings.whole, c.lowering,
                                        make_rates(c.hardware, c.lowering, c.mode, c.engine),
                                        recordings.chunk_or_null());
}

Estimate Estimator::at(const DesignPoint& point) const {
  check_prompt_length(recordings_.whole, point.prompt_len);
  const Forecast f = forecaster_.at(point);
  return plain_ ? compare(f, plain_->at(point)) : Estimate{f};
}

void Estimator::sweep(std::span<const DesignPoint> points, std::span<Estimate> rows) const {
  KVCAST_ASSERT(points.size() == rows.size());
  if (recordings_.whole.selection) {
    for (const DesignPoint& p : points) check_prompt_length(recordings_.whole, p.prompt_len);
  }
  std::vector<Forecast> forecasts(points.size());
  forecaster_.sweep(points, forecasts);
  if (!plain_) {
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = {forecasts[i]};
    return;
  }
  std::vector<Forecast> plain(points.size());
  plain_->sweep(points, plain);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = compare(forecasts[i], plain[i]);
}

std::vector<std::string> context_warnings(const Architecture& a, const DesignPoint& p,
                                          std::uint64_t contexts) {
  std::vector<std::string> lines;
  const auto over = [&](std::uint64_t tokens, std::uint64_t limit, std::string_view what) {
    if (limit == 0 || tokens <= contexts * limit) return;
    lines.push_back(fmt::format("{} of {} tokens is longer than the context of {} ({} positions)",
                                what, tokens, a.name, limit));
  };
  if (a.encoder_decoder) {
    over(p.prompt_len,
         a.max_source_positions > 0 ? a.max_source_positions : a.max_position_embeddings,
         "encoder length");
    if (a.max_source_positions > 0) over(1 + p.output_len, a.max_position_embeddings, "output");
  } else {
    over(p.prompt_len + p.output_len, a.max_position_embeddings, "prompt and output");
  }
  return lines;
}

std::vector<std::string> Estimator::warnings(const DesignPoint& p) const {
  std::vector<std::string> lines = config_warnings(architecture_);
  const std::vector<std::string> contexts = context_warnings(architecture_, p);
  lines.insert(lines.end(), contexts.begin(), contexts.end());
  const auto& missing = rates().missing_factors;
  lines.insert(lines.end(), missing.begin(), missing.end());
  return lines;
}

}  // namespace kvcast::roofline
