/// The flags that name a workload: requests from a file, or generated ones.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cli/frame/command.h"
#include "simulate/serving/generated_requests.h"
#include "simulate/serving/requests.h"

namespace kvcast::cli {

struct WorkloadFlags {
  std::string requests;
  std::string first_requests;
  std::string block_tokens;
  std::string arrival_column;
  std::string output_tokens;
  std::string arrivals;
  std::string prompt_lens;
  std::string output_lens;
  std::string prefixes;
  std::string count;
  std::string seed;
  std::uint64_t vocab_size = 0;  ///< token ids of a file are below it; 0: any are taken
  /// The text of a pipe, which can be read once, after check().
  mutable std::shared_ptr<const std::string> held = nullptr;

  void add_to(Command command);
  bool is_file() const { return !requests.empty(); }
  /// Throws Error where the flags name no workload, or two. Says how many failed requests a file
  /// leaves out. `reads_again`: it is opened more than once, so that a pipe is held.
  void check(const Globals& globals, bool reads_again = false) const;
  /// Opens or generates the requests. `rate`: in the place of that of --arrivals or, for a file,
  /// the times that it has are stretched to this rate.
  std::unique_ptr<simulate::RequestSource> open(const std::optional<double>& rate = {}) const;
  std::optional<simulate::ClosedLoop> closed_loop() const;
  /// "poisson:rate=1, prompts of 1000, outputs of 200"
  std::string in_words() const;
};

}  // namespace kvcast::cli
