/// When generated requests arrive.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "model/base/random.h"
#include "simulate/serving/requests.h"

namespace kvcast::simulate {

// Requests a second. Ours: what is outside is a slip.
inline constexpr double least_rate = 1e-9;
inline constexpr double most_rate = 1e12;

enum class ArrivalKind { Poisson, Gamma, Uniform, Burst, Closed };

struct Arrivals {
  ArrivalKind kind = ArrivalKind::Burst;
  double rate = 0;  ///< requests a second
  /// Shape of the gaps' gamma distribution, as in `vllm bench serve`: their coefficient of
  /// variation is 1 / sqrt(burstiness); 1 is a Poisson process.
  double burstiness = 1;
  /// Gaps are scaled so that the last of N requests arrives at exactly N / rate, as vLLM 0.11 does.
  bool rescale = false;
  std::uint64_t users = 0;  ///< of a closed loop
  double think_s = 0;       ///< from a user's answer to the next request
};

/// "poisson:rate=R", "gamma:rate=R,burstiness=B", both with rescale=true if wanted;
/// "uniform:rate=R": constant gaps; "burst": all at 0; "closed:users=N[,think=S]". The first
/// request waits its gap too. Throws Error starting with `place`.
Arrivals parse_arrivals(std::string_view text, const std::string& place);
std::string to_string(const Arrivals& arrivals);

/// Users who wait for an answer before they send again, so that arrivals depend on the server: all
/// send at 0, and whoever is answered sends the next request of the source `think_s` later.
struct ClosedLoop {
  std::uint64_t users = 1;
  double think_s = 0;
};

/// None for the other kinds.
std::optional<ClosedLoop> closed_loop(const Arrivals& arrivals);

/// What is drawn from one stream does not move what is drawn from another.
enum RandomStream : std::uint64_t { ArrivalStream, PromptStream, OutputStream, PrefixStream };

/// Arrival after arrival; 0 in a closed loop.
class ArrivalClock {
 public:
  /// `count`: the number of requests, for gaps that are scaled. Throws Error if it is 0 then.
  ArrivalClock(const Arrivals& arrivals, std::uint64_t count, std::uint64_t seed);
  double next();

 private:
  double gap_s();
  double last_s() const { return static_cast<double>(count_) / arrivals_.rate; }

  Arrivals arrivals_;
  std::uint64_t count_;
  Random random_;
  double scale_ = 1;
  double now_s_ = 0;  ///< before scaling
  std::uint64_t number_ = 0;
};

/// The requests of a source with other arrivals. `count`: as of ArrivalClock.
std::unique_ptr<RequestSource> with_arrivals(std::unique_ptr<RequestSource> requests,
                                             const Arrivals& arrivals, std::uint64_t count,
                                             std::uint64_t seed);

}  // namespace kvcast::simulate
