/// A request on its way through a session, one pass at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/base/stopwatch.h"
#include "model/execute/arena.h"
#include "model/execute/cache_store.h"
#include "model/execute/executor.h"
#include "model/execute/generate.h"
#include "model/execute/helper_run.h"
#include "model/graph/work.h"

namespace kvcast::execute {

/// A pass's analytic work. Made once: adding up the counts of a graph takes long.
struct PassWork {
  explicit PassWork(const Graph& graph) {
    const Work work = total_work(graph);
    flops = work.flops;
    bytes = work.bytes();
  }
  Count flops;
  Count bytes;
};

/// Holds the request's cache and what was generated so far. Runs of one session are independent of
/// each other: a caller may have several and choose which one takes the next step.
class SessionRun {
 public:
  /// Makes room in the cache for the whole request. Session::run must have checked the request, or
  /// accept it. Session and request must outlive the run. Where sequences of a batch run one by
  /// one, `index` is the place of the request's first sequence in the batch.
  SessionRun(const Session& session, const Request& request, std::size_t index = 0);
  /// Runs the next step: all helper passes, a chunk of the prompt, or a decode step of all
  /// sequences. Returns false when nothing is left. Throws Error as Session::run does.
  bool step();
  /// To be called after the last step. Times count from the first step on, with whatever ran in
  /// between.
  Generation take() { return std::move(made_); }
  const Generation& made() const { return made_; }

 private:
  enum class Next { Helpers, Prefill, Decode, Nothing };
  struct Pass;
  void reserve();
  SymbolValues symbols(std::uint64_t prompt, std::uint64_t kv_len) const;
  std::uint64_t slots() const;  ///< of the cache that the prompt fills
  std::uint64_t pass_len(std::size_t first) const;
  std::vector<double>& seconds_of(std::size_t pass);
  Output run_graph(std::size_t pass, const Executor& executor, const SymbolValues& values,
                   const Inputs& inputs);
  Output run_own(std::size_t pass, const Executor& executor, const Pass& p);
  void run_helpers();
  void copy_logits(const Output& out, std::size_t first_row);
  void keep_logits(Output& out, std::size_t first_row);
  Pass chunk_of(std::size_t first, std::size_t tokens) const;
  void run_chunk();
  void hand_on(const Output& logits);
  void end_prefill();
  void accept();
  void run_decode_step();
  void end_decode();

  const Recording& recording_;
  const SessionOptions& options_;
  const Architecture& model_;
  const Request& request_;
  std::size_t index_;
  std::size_t batch_;
  std::size_t length_;        ///< tokens of the prompt
  std::uint64_t prompt_len_;  ///< the same; in encoder-decoder models the encoder's positions
  /// The tokens that prefill reads: the whole prompt or this rank's part of it. If tokens are
  /// dropped, indices count the kept ones.
  std::size_t part_begin_ = 0;
  std::size_t part_end_ = 0;
  std::size_t chunk_ = 0;
  bool has_logits_ = true;
  bool decodes_ = true;

  Executor prefill_;
  Executor decode_;
  HelperRun helpers_;
  std::vector<PassWork> work_;  ///< by pass of the recording
  CacheStore cache_;
  Arena arena_;
  std::vector<float> encoder_ids_;
  std::vector<float> encoder_positions_;

  Next next_ = Next::Helpers;
  std::uint64_t passes_ = 0;
  std::uint64_t passes_done_ = 0;
  HelperFindings found_;
  LateSizes late_;               ///< of the last pass
  std::size_t past_ = 0;         ///< prompt tokens that helpers have put into the cache
  std::size_t read_ = 0;         ///< tokens that prefill reads
  std::size_t next_row_ = 0;     ///< first token of the next chunk
  std::size_t rows_ = 0;         ///< rows of logits kept for each sequence
  std::size_t rows_before_ = 0;  ///< those of them that a helper computes
  std::vector<TokenId> tokens_;  ///< the last token of each sequence
  std::vector<bool> stopped_;
  std::size_t first_revived_ = 0;
  Stopwatch watch_;  ///< since the first step, then since the first token
  Generation made_;
};

}  // namespace kvcast::execute
