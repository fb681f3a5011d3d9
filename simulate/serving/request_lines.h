/// What the readers of request files share. Not for others: they call open_requests.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "simulate/serving/line_reader.h"
#include "simulate/serving/request_files.h"
#include "simulate/serving/requests.h"

namespace kvcast::simulate {

/// Requests of a file with one on each line. Checks what all formats have in common.
class RequestLines : public RequestSource {
 public:
  std::optional<ServingRequest> next() final;
  std::uint64_t block_tokens() const final { return block_tokens_; }

 protected:
  RequestLines(LineReader lines, const RequestFileOptions& options)
      : lines_(std::move(lines)), options_(options) {}

  /// Sets what the line says; the id is already its number, all else 0.
  virtual void read(std::string_view line, ServingRequest& request) = 0;
  /// The place of the current line's arrival, for errors.
  virtual std::string arrival_place() const = 0;

  /// The next request of the file; none after the last.
  std::optional<ServingRequest> read_next();
  /// The number of ids must be that of the full blocks, or one more for a partial block.
  void check_blocks(const std::string& place, const ServingRequest& request) const;

  LineReader lines_;
  RequestFileOptions options_;
  std::uint64_t block_tokens_ = 0;
  bool has_outputs_ = true;
  std::deque<ServingRequest> ahead_;  ///< read, but not given out by next()

 private:
  void check_order(const ServingRequest& request);
  void check_rest_is_empty();

  std::uint64_t read_ = 0;   ///< requests in the file so far
  std::uint64_t given_ = 0;  ///< of them, not dropped
  double last_arrival_s_ = 0;
  std::uint64_t last_line_ = 0;
  std::uint64_t next_id_ = 0;
};

/// Checks a number of tokens. With `drop_empty` 0 is right too.
void check_tokens(std::uint64_t tokens, const std::string& place, bool drop_empty);
/// The words for a right number of tokens.
std::string token_range(bool drop_empty);

/// For a file that begins with a brace or a bracket.
std::unique_ptr<RequestSource> open_json_requests(LineReader lines,
                                                  const RequestFileOptions& options);
/// For the others.
std::unique_ptr<RequestSource> open_csv_requests(LineReader lines,
                                                 const RequestFileOptions& options);

inline constexpr std::string_view known_request_files =
    "kvcast CSV (arrival_s, prompt_tokens, output_tokens) or JSONL, Mooncake JSONL, Azure, "
    "BurstGPT or AccelMark CSV, or vLLM detailed serve JSON";

}  // namespace kvcast::simulate
