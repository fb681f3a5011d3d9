/// Traces of requests from files, recognised by their content.
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <memory>
#include <string>

#include "simulate/serving/requests.h"

namespace kvcast::simulate {

struct RequestFileOptions {
  std::uint64_t first_requests = 0;  ///< stop after so many; 0: all
  /// Tokens of a prefix block, for a file that does not tell; 0: as its format has it.
  std::uint64_t block_tokens = 0;
  std::string arrival_column = {};  ///< of a CSV file with several; empty: as its format has it
  std::uint64_t output_tokens = 0;  ///< of each request, for a file without; 0: the file has them
  /// Requests without prompt or output tokens, such as failed ones, are left out, not refused.
  bool drop_empty = false;
  std::uint64_t vocab_size = 0;  ///< token ids must be below it; 0: any are right
  /// Arrivals are not read, all are 0. Outputs are 0 if the file has none and no option gives them.
  bool lengths_only = false;
};

/// Reads these, line by line if they have lines:
///   kvcast CSV        arrival_s, prompt_tokens (or input_tokens, as in APEX+'s traces),
///                     output_tokens; if wanted id, which must grow
///   kvcast JSONL      the same keys; if wanted block_tokens and blocks, tokens (the prompt's)
///   Mooncake JSONL    timestamp (ms), input_length, output_length; if wanted hash_ids: of 512
///                     tokens each, the last partial block included; or, when their number says so,
///                     of 16-token full blocks (LLMServingSim's ShareGPT)
///   Azure CSV         TIMESTAMP (date and time), ContextTokens, GeneratedTokens; the first is at 0
///   BurstGPT CSV      Timestamp (seconds), Request tokens, Response tokens; the first is at 0
///   AccelMark CSV     input_tokens and columns of arrivals: needs arrival_column, output_tokens
///   vLLM JSON         `vllm bench serve --save-detailed`: input_lens, output_lens, start_times (if
///                     missing, only a run with all requests at once can be read); the first is at
///                     0, failed requests are left out
/// Other columns and keys are ignored. Requests are in the order of the file, which must be that of
/// arrival (except in vLLM's, which are sorted). Their ids are their numbers in the file if it
/// has no ids. Opening may read the first 64 requests.
/// Throws Error naming the file, the line, and the column or key: another content, numbers out of
/// range, lines out of order, block ids whose number does not fit the prompt, options that do not
/// apply to the file, no request at all.
std::unique_ptr<RequestSource> open_requests(const std::filesystem::path& path,
                                             const RequestFileOptions& options = {});

/// The same from a stream; `name` stands for the file in errors.
std::unique_ptr<RequestSource> open_requests(std::unique_ptr<std::istream> stream, std::string name,
                                             const RequestFileOptions& options = {});

}  // namespace kvcast::simulate
