#include "measure/next_tokens.h"

#include <algorithm>
#include <cmath>

#include "model/base/error.h"

namespace kvcast::measure {
namespace {

struct Distribution {
  std::size_t likeliest = 0;
  double log_sum = 0;  ///< of the exponentials of the logits
};

Distribution distribution_of(std::span<const float> logits) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  const double peak = *largest;
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - peak);
  return {static_cast<std::size_t>(largest - logits.begin()), peak + std::log(sum)};
}

}  // namespace

void add_position(NextTokens& sums, std::span<const float> base, std::span<const float> method,
                  execute::TokenId next) {
  KVCAST_ASSERT(base.size() == method.size() && next < base.size());
  const Distribution p = distribution_of(base);
  const Distribution q = distribution_of(method);
  double kl = 0;
  for (std::size_t i = 0; i < base.size(); ++i) {
    const double log_p = base[i] - p.log_sum;
    kl += std::exp(log_p) * (log_p - (method[i] - q.log_sum));
  }
  ++sums.positions;
  sums.agreeing += p.likeliest == q.likeliest ? 1 : 0;
  sums.correct += q.likeliest == next ? 1 : 0;
  sums.kl_nats += std::max(kl, 0.0);  // rounding may leave less than nothing
  sums.cross_entropy_nats += q.log_sum - method[next];
}

}  // namespace kvcast::measure
