/// Times single passes of a model on made-up tokens: long caches without the prompt that would fill
/// them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "model/execute/arena.h"
#include "model/execute/generate.h"

namespace kvcast::execute {

/// The sizes of one pass, as symbols of a recording.
struct PassSizes {
  std::uint64_t batch = 1;
  std::uint64_t prompt_len = 1;  ///< encoder-decoder models: encoder length
  std::uint64_t kv_len = 1;      ///< cache slots at the end of the pass
};

struct PassSeconds {
  double total = 0;
  std::vector<double> nodes;  ///< by node of the graph
  double between = 0;         ///< from one node's end to the next one's begin, mean
};

class PassTimer {
 public:
  /// As Session; prefill in chunks is not timed. The checkpoint must outlive it.
  PassTimer(const Checkpoint& checkpoint, const SessionOptions& options);

  /// The same model with these kernels for attention and element-wise operators. It reads the
  /// weights of `other`, a timer without methods.
  PassTimer(const PassTimer& other, Kernels kernels);

  const Recording& recording() const { return recording_ ? *recording_ : session_->recording(); }
  /// One decode step, `repeats` times after one that is not counted, on a cache that holds zeros.
  std::vector<PassSeconds> decode(const PassSizes& sizes, int repeats);
  /// A whole prompt, likewise; of sizes that were timed before, whose memory is still there,
  /// without the one that is not counted. Decoder-only models.
  std::vector<PassSeconds> prefill(const PassSizes& sizes, int repeats);

 private:
  std::vector<PassSeconds> time(const Graph& graph, const PassSizes& sizes, std::uint64_t tokens,
                                std::uint64_t first_position, bool is_new, int repeats);

  std::shared_ptr<const Session> session_;
  std::optional<Recording> recording_;  ///< not the session's
  Arena arena_;
  std::set<std::array<std::uint64_t, 3>> prefilled_;  ///< sizes whose memory has been touched
};

}  // namespace kvcast::execute
