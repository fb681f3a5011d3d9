#include "simulate/serving/request_lines.h"

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast::simulate {
namespace {

/// What every reader of JSON can hold.
constexpr std::uint64_t max_id = std::uint64_t{1} << 53;

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t") == std::string_view::npos;
}

}  // namespace

std::optional<ServingRequest> RequestLines::next() {
  if (ahead_.empty()) return read_next();
  ServingRequest request = std::move(ahead_.front());
  ahead_.pop_front();
  return request;
}

std::optional<ServingRequest> RequestLines::read_next() {
  if (options_.first_requests > 0 && given_ == options_.first_requests) return std::nullopt;
  std::string_view line;
  while (lines_.next(line)) {
    if (is_blank(line)) {
      check_rest_is_empty();
      break;
    }
    ServingRequest request{read_++, 0, 0, 0};
    read(line, request);
    check_order(request);
    const bool empty = request.prompt_tokens == 0 || (has_outputs_ && request.output_tokens == 0);
    if (empty) continue;  // right only with drop_empty: read() has checked it
    ++given_;
    return request;
  }
  if (given_ == 0) throw Error(lines_.name(), "no requests", "at least one");
  return std::nullopt;
}

void RequestLines::check_order(const ServingRequest& request) {
  if (request.arrival_s < last_arrival_s_) {
    throw Error(
        arrival_place(),
        fmt::format("{} s, but {} s on line {}", request.arrival_s, last_arrival_s_, last_line_),
        "requests in order of arrival");
  }
  if (request.id < next_id_ || request.id > max_id) {
    throw Error(lines_.place("id"),
                next_id_ == 0 ? fmt::format("{}", request.id)
                              : fmt::format("{} after {}", request.id, next_id_ - 1),
                "ids that grow from line to line, at most 2^53");
  }
  next_id_ = request.id + 1;
  last_arrival_s_ = request.arrival_s;
  last_line_ = lines_.number();
}

void RequestLines::check_rest_is_empty() {
  const std::string place = lines_.place();
  std::string_view line;
  while (lines_.next(line)) {
    if (!is_blank(line)) throw Error(place, "an empty line", "a request, as on later lines");
  }
}

void RequestLines::check_blocks(const std::string& place, const ServingRequest& request) const {
  const std::uint64_t ids = request.blocks.size();
  if (block_tokens_ == 0) {
    if (ids == 0) return;
    throw Error(place, fmt::format("{} ids", ids), "none, as on the first line");
  }
  const std::uint64_t full = request.prompt_tokens / block_tokens_;
  const std::uint64_t all = full + (request.prompt_tokens % block_tokens_ > 0 ? 1 : 0);
  if (ids == full || ids == all) return;
  throw Error(place, fmt::format("{} ids for {} tokens", ids, request.prompt_tokens),
              fmt::format("{}{}, one for each block of {}", full,
                          all > full ? fmt::format(" or {}", all) : "", block_tokens_));
}

std::string token_range(bool drop_empty) {
  return fmt::format("a whole number from {} to {}", drop_empty ? 0 : 1, max_request_tokens);
}

void check_tokens(std::uint64_t tokens, const std::string& place, bool drop_empty) {
  if (tokens <= max_request_tokens && (tokens > 0 || drop_empty)) return;
  throw Error(place, std::to_string(tokens), token_range(drop_empty));
}

}  // namespace kvcast::simulate
