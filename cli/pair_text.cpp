#include "cli/pair_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/request_options.h"
#include "cli/run_inputs.h"

namespace kvcast::cli {
namespace {

using execute::TokenId;

std::vector<TokenId> read_text(const std::string& file, const Checkpoint& checkpoint,
                               const Globals& globals) {
  RunInputs in;
  in.prompt_file = file;
  std::string no_tokenizer;
  const auto tokenizer = find_tokenizer(checkpoint, no_tokenizer);
  execute::Request request = read_request(in, checkpoint, tokenizer, no_tokenizer,
                                          [&](const std::string& line) { globals.warn(line); });
  if (request.tokens.size() != 1) {
    throw Error(file, fmt::format("{} lists of token ids", request.tokens.size()), "one");
  }
  return std::move(request.tokens.front());
}

}  // namespace

std::vector<TokenId> read_pair_text(const char* flag, const std::string& file,
                                    const Checkpoint& base, const Checkpoint& auxiliary,
                                    const Globals& globals) {
  return parse_flag(flag, file, [&](const std::string&) {
    std::string why;
    if (!find_tokenizer(base, why)) return read_text(file, auxiliary, globals);
    std::vector<TokenId> ids = read_text(file, base, globals);
    if (!find_tokenizer(auxiliary, why)) {
      const auto limit = auxiliary.architecture().vocab_size;
      const auto largest = *std::max_element(ids.begin(), ids.end());
      if (largest >= limit) {
        throw Error(file, fmt::format("token id {}", largest),
                    fmt::format("ids below the {} of {}", limit, auxiliary.architecture().name));
      }
      return ids;
    }
    const std::vector<TokenId> other = read_text(file, auxiliary, globals);
    if (ids == other) return ids;
    const auto [at, beside] = std::mismatch(ids.begin(), ids.end(), other.begin(), other.end());
    throw Error(
        file,
        fmt::format("tokenizers that differ: from token {} on {} and {} read other ids",
                    at - ids.begin(), base.architecture().name, auxiliary.architecture().name),
        "two models with one tokenizer");
  });
}

}  // namespace kvcast::cli
