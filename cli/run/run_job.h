/// A request of `kvcast run`, read and checked before anything runs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/frame/command.h"
#include "cli/frame/parallelism_flags.h"
#include "cli/run/run_inputs.h"
#include "cli/run/run_ranks.h"
#include "model/base/error.h"
#include "model/execute/generate.h"
#include "model/io/files/atomic_file.h"
#include "roofline/estimator.h"

namespace kvcast::cli {

struct RunOptions {
  std::string model;
  std::string method = "plain";
  std::string semantics;
  std::string attention = "tiled";
  std::string elementwise;
  bool skip_unread_rows = false;
  std::string dtype = "fp32";
  std::string weights;      ///< empty: as-stored, in fp32 runs
  std::string cache_dtype;  ///< empty: as dtype
  std::string arithmetic = "fp32";
  RunInputs inputs;
  std::string output_len = "16";
  std::string chunk;
  std::string logits;
  std::string hardware;
  std::string random_weights;  ///< a seed
  std::string dump_importance;
  std::string plot_importance;
  std::string expert_tokens;
  int threads = 0;
  unsigned rounds = 0;  ///< timed, after one that is not; 0: one run, timed
  double wait_limit_s = 600;
  ParallelismFlags parallelism;
  bool count = false;
  bool profile = false;
  bool ignore_eos = false;
  bool json = false;
};

/// A request with all that it needs, checked.
struct RunJob {
  int threads = 0;
  Checkpoint checkpoint;
  FoundTokenizer tokenizer = {};
  execute::Request request = {};
  execute::SessionOptions options = {};
  roofline::DesignPoint point = {};
  std::optional<roofline::Hardware> hardware = {};
  std::optional<AtomicFile> logits = {};
};

/// Throws Error, of this fault, when that needs more bytes than the machine has: the system would
/// kill the process. `otherwise`: what else is expected.
void check_machine_memory(const std::string& what, double needed, Fault fault = Fault::Request,
                          std::string_view otherwise = "");

Checkpoint open_checkpoint(const RunOptions& o, const Globals& globals);
/// `decoder_tokens` as in SessionOptions. Throws Error naming the flag.
execute::SessionOptions session_options(const RunOptions& o, const Checkpoint& checkpoint,
                                        std::size_t decoder_tokens, const Catalog& catalog);

/// The whole request, checked: Error says what is wrong with it, before the run. `ranks` of a
/// placement or a spread model; null: this process runs it all.
RunJob prepare_run(const RunOptions& o, const Globals& globals, const RunRanks* ranks);

/// What all ranks of a job must have in common.
std::string common_text(const RunOptions& o, const RunJob& job, const Globals& globals);

}  // namespace kvcast::cli
