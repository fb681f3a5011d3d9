#include "search/slim_choice.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "model/base/error.h"

namespace kvcast::search {
namespace {

using roofline::Configuration;
using roofline::DesignPoint;
using roofline::Estimate;
using roofline::Estimator;

const std::vector<std::string>& forms(bool encoder_decoder) {
  static const std::vector<std::string> decoder_only{"kcache", "vcache", "xcache"};
  static const std::vector<std::string> both{"encdec1", "encdec2", "hybrid", "vcache", "xcache"};
  return encoder_decoder ? both : decoder_only;
}

/// Where `is_faster` holds among ascending sizes.
std::vector<PaysOff> stretches(const std::vector<std::uint64_t>& sizes,
                               const std::vector<bool>& is_faster) {
  std::vector<PaysOff> all;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (!is_faster[i]) continue;
    if (i == 0 || !is_faster[i - 1]) all.push_back({sizes[i], {}});
    if (i + 1 < sizes.size() && !is_faster[i + 1]) all.back().to = sizes[i];
  }
  return all;
}

std::vector<PaysOff> pays_off(const Estimator& estimator, const std::vector<std::uint64_t>& sizes,
                              const std::function<DesignPoint(std::uint64_t)>& point_of) {
  std::vector<DesignPoint> points;
  for (const std::uint64_t size : sizes) points.push_back(point_of(size));
  std::vector<Estimate> rows(points.size());
  estimator.sweep(points, rows);
  std::vector<bool> is_faster;
  for (const Estimate& e : rows) is_faster.push_back(e.tpot_speedup > 1);
  return stretches(sizes, is_faster);
}

std::vector<std::uint64_t> counted_to(std::uint64_t last) {
  std::vector<std::uint64_t> all(last);
  for (std::uint64_t i = 0; i < last; ++i) all[i] = i + 1;
  return all;
}

/// Bytes of the cache tensor that the cross-attentions of all layers share.
std::optional<double> shared_cache_bytes(const Estimator& estimator, const DesignPoint& point) {
  const Recording& recording = estimator.recording();
  for (const TensorInfo& t : recording.decode().tensors()) {
    const bool shared = t.name == "decoder.cross_inputs" ||
                        (t.name == "decoder.layers.0.cross_keys" &&
                         recording.model.decoder.layers[0].caches.cross == CacheForm::FirstKeys);
    if (!shared || t.producer) continue;
    const SymbolValues values =
        recording.symbols.resolve({point.batch, point.prompt_len, point.output_len});
    return static_cast<double>(t.bytes().at(values));
  }
  return {};
}

SlimCandidate evaluate(Configuration configuration, const DesignPoint& point,
                       const std::string& method) {
  SlimCandidate c;
  c.method = method;
  configuration.methods = parse_methods(method);
  const bool plain = method == "plain";
  const bool encoder_decoder = configuration.architecture.encoder_decoder;
  try {
    const Estimator estimator(configuration);
    static_cast<Estimate&>(c) = estimator.at(point);
    for (const roofline::BreakdownRow& row : estimator.breakdown(point)) {
      if (row.pass == "prefill" && row.group.phase == "cross") c.cross_phase_s += row.total.value;
    }
    if (plain) return c;
    if (const std::optional<double> bytes = shared_cache_bytes(estimator, point)) {
      c.shared_cache_on_chip = *bytes <= estimator.rates().on_chip_bytes;
    }
    c.batches = pays_off(estimator, counted_to(most_batches), [&](std::uint64_t batch) {
      return DesignPoint{batch, point.prompt_len, point.output_len};
    });
    // An encoder of fixed length leaves the decoder's context.
    const bool fixed = encoder_decoder && configuration.architecture.num_mel_bins > 0;
    c.contexts = pays_off(estimator, counted_to(most_context), [&](std::uint64_t context) {
      return fixed ? DesignPoint{point.batch, point.prompt_len, context}
                   : DesignPoint{point.batch, context, point.output_len};
    });
  } catch (const Error& e) {
    if (plain) throw;
    c.rejected = e.what();
  }
  return c;
}

}  // namespace

std::vector<SlimCandidate> choose_slim(const Configuration& configuration,
                                       const DesignPoint& point) {
  std::vector<SlimCandidate> candidates{evaluate(configuration, point, "plain")};
  for (const std::string& form : forms(configuration.architecture.encoder_decoder)) {
    candidates.push_back(evaluate(configuration, point, "slim:option=" + form));
  }
  const auto rank = [](const SlimCandidate& c) {
    return std::tuple(!c.rejected.empty(), !c.fits, c.tpot_s, c.ttft_s, c.peak_memory_bytes);
  };
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return candidates;
}

}  // namespace kvcast::search
