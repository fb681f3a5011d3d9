#include "cli/run/run_ranks.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sched.h>

#include "cli/frame/command.h"
#include "cli/frame/exit_status.h"
#include "cli/frame/mpirun_environment.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/io/files/fnv_hash.h"
#include "search/placed_estimator.h"

namespace kvcast::cli {
namespace {

std::string command_for(std::uint64_t ranks) {
  return fmt::format("{} of them: mpirun -n {} kvcast run ...", ranks, ranks);
}

}  // namespace

int rank_threads(int asked, const RunRanks* ranks) {
  if (asked > 0 || std::getenv("OMP_NUM_THREADS") != nullptr) return asked;
  const int all = static_cast<int>(std::thread::hardware_concurrency());
  if (ranks != nullptr && ranks->are_threads()) {
    return std::max(1, all / static_cast<int>(ranks->place().plan.devices()));
  }
  if (!launched_by_mpirun()) return asked;
  cpu_set_t bound;
  if (::sched_getaffinity(0, sizeof bound, &bound) != 0 || CPU_COUNT(&bound) < all) return asked;
  return std::max(1, all / ranks_on_this_machine());
}

bool is_idle_rank(const std::vector<MethodSpec>& methods, const Parallelism& plan) {
  const int ranks = ranks_of_mpirun();
  if (ranks <= 1 || find_placement(methods) || !plan.is_one()) return false;
  if (rank_of_mpirun() > 0) return true;
  throw Error("--method", fmt::format("a method of one process for {} of mpirun", ranks),
              fmt::format("kvr:p={} or tsp:p={}, or --tp {}", ranks, ranks, ranks));
}

std::vector<MethodSpec> with_ranks_of_mpirun(std::vector<MethodSpec> methods,
                                             const Parallelism& plan) {
  if (!launched_by_mpirun()) return methods;
  for (MethodSpec& spec : methods) {
    const auto says = [&](const char* key) {
      return std::any_of(spec.options.begin(), spec.options.end(),
                         [&](const auto& option) { return option.first == key; });
    };
    const bool is_placement = find_method(spec.name).kind == MethodKind::Placement;
    if (!is_placement || says("p") || says("partition")) continue;
    const std::uint64_t ranks = static_cast<std::uint64_t>(ranks_of_mpirun()) / plan.devices();
    spec.options.emplace_back("p", std::to_string(std::max<std::uint64_t>(ranks, 1)));
  }
  return methods;
}

std::unique_ptr<RunRanks> RunRanks::start(const std::vector<MethodSpec>& methods,
                                          const Parallelism& plan, double limit_s) {
  std::optional<Placement> placement = find_placement(methods);
  if (!plan.is_one()) execute::check_runs_spread(plan);
  if (!placement && plan.is_one()) return nullptr;
  std::unique_ptr<RunRanks> ranks(
      new RunRanks(std::move(placement), plan, search::searches_partition(methods), limit_s));
  if (!ranks->mpi_ && ranks->shares() && ranks->processes() > 1) {
    throw Error(ranks->in_words(), "one process", command_for(ranks->processes()));
  }
  return ranks;
}

std::string RunRanks::in_words() const {
  std::string words = placement_ ? "method " + placement_->method : "";
  if (spreads()) words += (words.empty() ? "" : " with ") + to_string(plan_);
  return words;
}

RunRanks::RunRanks(std::optional<Placement> placement, const Parallelism& plan, bool searches,
                   double limit_s)
    : placement_(std::move(placement)),
      plan_(plan),
      searches_(searches),
      mailboxes_(plan.devices(), limit_s) {
  if (launched_by_mpirun()) {
    mpi_ = execute::MpiMessenger::start(limit_s);
  } else {
    local_ = mailboxes_.messenger(0);
  }
}

void RunRanks::check_ranks() const {
  if (messenger().ranks() == processes()) return;
  throw Error(in_words(), fmt::format("{} processes of mpirun", messenger().ranks()),
              command_for(processes()));
}

DevicePlace RunRanks::place() const {
  check_ranks();
  return {plan_, messenger().rank() % plan_.devices()};
}

RankShare RunRanks::share(std::uint64_t prompt_len,
                          const std::function<std::vector<std::uint64_t>()>& search) const {
  check_ranks();
  std::vector<std::uint64_t> partition = partition_tokens(*placement_, prompt_len);
  if (searches_) partition = search();
  return {std::move(partition), messenger().rank() / plan_.devices(), placement_->first_decodes};
}

bool RunRanks::speaks() const {
  const bool last = placement_ && !placement_->first_decodes;
  return !mpi_ || mpi_->rank() == (last ? processes() - plan_.devices() : 0);
}
bool RunRanks::complains() const { return !mpi_ || mpi_->rank() == 0; }

bool RunRanks::prepare(const std::function<std::string()>& prepare) {
  std::string problem;
  std::string common;
  try {
    common = prepare();
  } catch (const Error& e) {
    problem = (e.fault() == Fault::Run ? "1" : "2") + std::string(e.what());
  } catch (const std::exception& e) {
    problem = "1" + std::string(e.what());
  }
  try {
    if (!are_threads()) problem = first_error(messenger(), problem, common);
  } catch (const std::exception& e) {
    fail(e);
  }
  if (problem.empty()) return true;
  if (mpi_) mpi_->end();
  if (!complains()) return false;
  const char status = problem.front();
  if (status != '1' && status != '2') throw Error(problem);  // they differ
  throw Error(problem.substr(1), status == '1' ? Fault::Run : Fault::Request);
}

void RunRanks::work(const std::function<void()>& work) {
  if (!mpi_) return work();
  try {
    work();
  } catch (const std::exception& e) {
    fail(e);
  }
}

void RunRanks::fail(const std::exception& e) {
  if (!mpi_) throw;
  const auto* error = dynamic_cast<const Error*>(&e);
  const bool request = error != nullptr && error->fault() == Fault::Request;
  if (!request) say_held();
  std::fprintf(stderr, "kvcast: %s\n", e.what());
  mpi_->abort(request ? exit_wrong_request : exit_failed);
}

std::string fingerprint(const std::vector<std::vector<execute::TokenId>>& tokens) {
  FnvHash hash;
  for (const auto& sequence : tokens) {
    hash.add(sequence.data(), sequence.size() * sizeof(execute::TokenId));
  }
  return hash.text();
}

nlohmann::ordered_json ranks_json(const std::vector<execute::RankReport>& ranks, bool spread) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const execute::RankReport& r : ranks) {
    list.push_back({{"rank", list.size()},
                    {"tokens", r.tokens},
                    {"compute_s", r.compute_s},
                    {"wait_s", r.wait_s},
                    {"messages", r.messages},
                    {"message_bytes", r.message_bytes}});
    if (!spread) continue;
    list.back()["weight_bytes"] = r.weight_bytes;
    list.back()["kv_cache_bytes"] = r.kv_cache_bytes;
  }
  return list;
}

std::string rank_text(const nlohmann::ordered_json& rank) {
  const auto bytes = [&](const char* key) { return format_quantity(rank[key], Dimension::Bytes); };
  std::string text =
      fmt::format("rank {}: {} tokens, computed {}, waited {}, sent {} messages of {} in all",
                  rank["rank"].dump(), rank["tokens"].dump(),
                  format_quantity(rank["compute_s"], Dimension::Seconds),
                  format_quantity(rank["wait_s"], Dimension::Seconds), rank["messages"].dump(),
                  bytes("message_bytes"));
  if (rank.contains("weight_bytes")) {
    text += fmt::format(", weights {}, cache {}", bytes("weight_bytes"), bytes("kv_cache_bytes"));
  }
  return text;
}

}  // namespace kvcast::cli
