#include "measure/method_speedups.h"

#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace kvcast::measure {
namespace {

/// What a row and its plain one have in common but for the device.
std::string key_of(const ValidationCase& c) {
  const MeasuredRow& r = c.row;
  const Lowering& l = r.lowering;
  return fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", r.model, attention_name(l.attention),
                     elementwise_name(l.elementwise), kvcast::name(l.weights),
                     kvcast::name(l.activations), kvcast::name(l.cache), name(r.logits),
                     r.size.batch, r.size.prompt_len, r.size.output_len, name(c.metric));
}

/// Plain rows by key and device.
class PlainCases {
 public:
  explicit PlainCases(std::span<const ValidationCase> cases) {
    for (const ValidationCase& c : cases) {
      if (method_names(c.row.method) == "plain") by_key_[key_of(c)].push_back(&c);
    }
  }

  /// Null: none, or several.
  const ValidationCase* of(const ValidationCase& c) const {
    const auto found = by_key_.find(key_of(c));
    if (found == by_key_.end()) return nullptr;
    std::vector<const ValidationCase*> here;
    for (const ValidationCase* plain : found->second) {
      if (plain->row.hardware == c.row.hardware) here.push_back(plain);
    }
    if (here.empty() && c.placed != nullptr) here = found->second;
    return here.size() == 1 ? here.front() : nullptr;
  }

 private:
  std::map<std::string, std::vector<const ValidationCase*>> by_key_;
};

struct Gains {
  std::vector<double> errors;
  double log_measured = 0;
  double log_predicted = 0;
};

}  // namespace

std::vector<MethodSpeedup> speedups_over_plain(std::span<const ValidationCase> cases) {
  const PlainCases plain_cases(cases);
  std::map<std::pair<std::string, Metric>, Gains> all;
  for (const ValidationCase& c : cases) {
    const std::string method = method_names(c.row.method);
    const ValidationCase* plain = method == "plain" ? nullptr : plain_cases.of(c);
    if (plain == nullptr) continue;
    const double measured = plain->measured / c.measured;
    const double predicted = plain->predicted / c.predicted;
    Gains& gains = all[{method, c.metric}];
    gains.errors.push_back(predicted / measured - 1);
    gains.log_measured += std::log(measured);
    gains.log_predicted += std::log(predicted);
  }
  std::vector<MethodSpeedup> speedups;
  for (const auto& [key, gains] : all) {
    const auto rows = static_cast<double>(gains.errors.size());
    speedups.push_back({key.first, key.second, std::exp(gains.log_measured / rows),
                        std::exp(gains.log_predicted / rows), summarize(gains.errors)});
  }
  return speedups;
}

}  // namespace kvcast::measure
