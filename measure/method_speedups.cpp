#include "measure/method_speedups.h"

#include <cmath>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "model/base/json_file.h"

namespace kvcast::measure {
namespace {

/// What a row and its plain one have in common: all but the device, the method and the times.
std::string key_of(const ValidationCase& c) {
  nlohmann::ordered_json key = case_json(c);
  for (const char* other :
       {"id", "hardware", "method", "predicted", "measured", "relative_error", "place"}) {
    key.erase(other);
  }
  return json_text(key);
}

struct Gains {
  std::vector<double> errors;
  double log_measured = 0;
  double log_predicted = 0;
};

}  // namespace

std::vector<MethodSpeedup> speedups_over_plain(std::span<const ValidationCase> cases) {
  std::map<std::string, std::vector<const ValidationCase*>> plain_by_key;
  for (const ValidationCase& c : cases) {
    if (method_names(c.row.method) == "plain") plain_by_key[key_of(c)].push_back(&c);
  }
  // Null where there is none, or several.
  const auto plain_of = [&](const ValidationCase& c) -> const ValidationCase* {
    const auto& all = plain_by_key[key_of(c)];
    std::vector<const ValidationCase*> here;
    for (const ValidationCase* plain : all) {
      if (plain->row.hardware == c.row.hardware) here.push_back(plain);
    }
    if (here.empty() && num_devices(c.row.method) > 1) here = all;
    return here.size() == 1 ? here.front() : nullptr;
  };
  std::map<std::pair<std::string, Metric>, Gains> all;
  for (const ValidationCase& c : cases) {
    const std::string method = method_names(c.row.method);
    const ValidationCase* plain = method == "plain" ? nullptr : plain_of(c);
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
