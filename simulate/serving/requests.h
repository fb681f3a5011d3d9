/// Requests to a server, one at a time and in the order of their arrival.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace kvcast::simulate {

struct ServingRequest {
  std::uint64_t id = 0;  ///< its number in the file, from 0
  double arrival_s = 0;
  std::uint64_t prompt_tokens = 1;
  std::uint64_t output_tokens = 1;
  /// The prompt's blocks of RequestSource::block_tokens() tokens: equal ids are equal blocks behind
  /// equal prefixes. All full blocks, and in some files the last one that is not full; or none.
  std::vector<std::uint64_t> blocks = {};
  std::vector<std::int32_t> tokens = {};  ///< of the prompt, for a run; or none

  friend bool operator==(const ServingRequest&, const ServingRequest&) = default;
};

/// Longer prompts and outputs are taken for slips.
inline constexpr std::uint64_t max_request_tokens = std::uint64_t{1} << 31;

class RequestSource {
 public:
  virtual ~RequestSource();
  /// The next to arrive, or none after the last. Ties are in the order of the file. Throws Error
  /// naming the file and the line.
  virtual std::optional<ServingRequest> next() = 0;
  /// The tokens of a prefix block; 0 if the requests have no blocks.
  virtual std::uint64_t block_tokens() const { return 0; }
  /// Requests that failed where they were measured, and are left out.
  virtual std::uint64_t num_failed() const { return 0; }
};

/// Requests held in memory, given out in the order of the list.
class RequestList : public RequestSource {
 public:
  explicit RequestList(std::vector<ServingRequest> requests, std::uint64_t block_tokens = 0,
                       std::uint64_t num_failed = 0);
  std::optional<ServingRequest> next() override;
  std::uint64_t block_tokens() const override { return block_tokens_; }
  std::uint64_t num_failed() const override { return num_failed_; }

 private:
  std::vector<ServingRequest> requests_;
  std::uint64_t block_tokens_;
  std::uint64_t num_failed_;
  std::size_t next_ = 0;
};

/// Writes all that is left of a source as kvcast CSV or JSONL, whichever the name ends with (.csv,
/// .jsonl): it reads back equal. Returns how many requests it wrote. Throws Error: another ending,
/// blocks or tokens for a CSV file, and as AtomicFile and the source do.
std::uint64_t save_requests(RequestSource& source, const std::filesystem::path& path);

}  // namespace kvcast::simulate
