/// `kvcast run` with a placement, or with a model spread over devices, on the ranks of an mpirun.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/execute/mpi_messenger.h"
#include "model/execute/rank_run.h"

namespace kvcast::cli {

class RunRanks {
 public:
  /// Nothing for methods without a placement on one device. Throws Error when a placement wants
  /// several processes and there is no mpirun, or no MPI. Devices are threads without an mpirun.
  static std::unique_ptr<RunRanks> start(const std::vector<MethodSpec>& methods,
                                         const Parallelism& plan, double limit_s);

  /// This rank's part of a prompt, whose partition `search` finds if it is to be searched. Throws
  /// Error when mpirun started another number of ranks.
  RankShare share(std::uint64_t prompt_len,
                  const std::function<std::vector<std::uint64_t>()>& search) const;
  bool searches() const { return searches_; }
  /// Whether the prompt is spread: there is a placement.
  bool shares() const { return placement_.has_value(); }
  /// Whether the model is spread, over all ranks or in each of a placement.
  bool spreads() const { return !plan_.is_one(); }
  bool are_threads() const { return spreads() && !mpi_; }
  execute::Mailboxes& mailboxes() { return mailboxes_; }
  /// This process's device, of its rank's with a placement. Throws Error when mpirun started
  /// another number of processes.
  DevicePlace place() const;
  /// Whether this rank prints: the one that decodes, which is the last one or the first (tsp,
  /// spread models).
  bool speaks() const;
  /// Whether this rank reports a wrong request: the first one.
  bool complains() const;
  execute::Messenger& messenger() { return mpi_ ? *mpi_ : *local_; }

  /// Runs `prepare` on every rank; it returns what all must have in common. When one of them throws
  /// an Error, or they differ, ends MPI, throws it on the first rank and returns false on the
  /// others.
  bool prepare(const std::function<std::string()>& prepare);
  /// Runs `work`. An exception is reported and ends all ranks.
  void work(const std::function<void()>& work);

 private:
  RunRanks(std::optional<Placement> placement, const Parallelism& plan, bool searches,
           double limit_s);
  void check_ranks() const;
  /// "method kvr:p=2 with tp 3"
  std::string in_words() const;
  std::size_t processes() const { return (placement_ ? placement_->ranks : 1) * plan_.devices(); }
  const execute::Messenger& messenger() const { return mpi_ ? *mpi_ : *local_; }
  /// Called in a handler of the exception: reports it and ends all ranks.
  [[noreturn]] void fail(const std::exception& e);
  std::optional<Placement> placement_;
  Parallelism plan_;
  bool searches_ = false;                       ///< its partition
  std::unique_ptr<execute::MpiMessenger> mpi_;  ///< null: one rank, this process
  execute::Mailboxes mailboxes_;
  std::unique_ptr<execute::Messenger> local_;
};

/// Whether several ranks of an mpirun got a method without a placement, on one device, which each
/// of them would run alone, and another rank tells: the first one throws that Error.
bool is_idle_rank(const std::vector<MethodSpec>& methods, const Parallelism& plan);

/// With p=P where kvr or tsp say no number of ranks: as many as the mpirun has for such devices.
std::vector<MethodSpec> with_ranks_of_mpirun(std::vector<MethodSpec> methods,
                                             const Parallelism& plan);

/// Threads for a rank: the number asked for, else OMP_NUM_THREADS, else the processors that mpirun
/// has bound it to, or its part of all processors where it is not bound.
int rank_threads(int asked, const RunRanks* ranks = nullptr);

/// Tells lists of numbers apart.
std::string fingerprint(const std::vector<std::vector<execute::TokenId>>& tokens);

/// `spread`: each has a part of the model, and of the cache.
nlohmann::ordered_json ranks_json(const std::vector<execute::RankReport>& ranks, bool spread);
/// One of them as a line.
std::string rank_text(const nlohmann::ordered_json& rank);

}  // namespace kvcast::cli
