#include "cli/run/pair_text.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "cli/frame/request_options.h"
#include "cli/run/run_inputs.h"

namespace kvcast::cli {
namespace {

using execute::TokenId;

std::vector<TokenId> read_text(const std::string& file, const Checkpoint& checkpoint,
                               const Globals& globals) {
  RunInputs in;
  in.prompt_file = file;
  in.file_name = "text";
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

bool read_alike(const text::Tokenizer& a, const text::Tokenizer& b,
                const std::vector<TokenId>& ids) {
  const bool known = std::all_of(ids.begin(), ids.end(), [&](TokenId id) {
    return (id < a.vocab_size()) == (id < b.vocab_size());
  });
  std::vector<TokenId> shared = ids;
  std::erase_if(shared, [&](TokenId id) { return id >= a.vocab_size(); });
  return known &&
         a.decode(shared, text::SpecialTokens::Keep) == b.decode(shared, text::SpecialTokens::Keep);
}

void check_pair_tokenizers(const Checkpoint& base, const Checkpoint& auxiliary) {
  std::string why;
  const auto a = find_tokenizer(base, why);
  const auto b = find_tokenizer(auxiliary, why);
  if (!a || !b) return;
  const std::size_t shared = std::min(a->vocab_size(), b->vocab_size());
  for (TokenId id = 0; id < shared; ++id) {
    const std::array one{id};
    if (a->decode(one) == b->decode(one)) continue;
    throw Error("model " + auxiliary.architecture().name,
                fmt::format("a tokenizer that reads token id {} as another text", id),
                "the tokenizer of the base model " + base.architecture().name);
  }
}

std::vector<TokenId> read_pair_text(const char* flag, const std::string& file,
                                    const Checkpoint& base, const Checkpoint& auxiliary,
                                    const Globals& globals) {
  return parse_flag(flag, file, [&](const std::string&) {
    std::string why;
    const auto tokenizer = find_tokenizer(base, why);
    if (!tokenizer) return read_text(file, auxiliary, globals);
    std::vector<TokenId> ids = read_text(file, base, globals);
    const auto auxiliary_tokenizer = find_tokenizer(auxiliary, why);
    if (!auxiliary_tokenizer) {
      const auto limit = auxiliary.architecture().vocab_size;
      const auto largest = *std::max_element(ids.begin(), ids.end());
      if (largest >= limit) {
        throw Error(file, fmt::format("token id {}", largest),
                    fmt::format("ids below the {} of {}", limit, auxiliary.architecture().name));
      }
      return ids;
    }
    const std::vector<TokenId> other = read_text(file, auxiliary, globals);
    if (ids == other) {
      if (read_alike(*tokenizer, *auxiliary_tokenizer, ids)) return ids;
      throw Error(file,
                  fmt::format("tokenizers that differ: {} and {} read the ids as different texts",
                              base.architecture().name, auxiliary.architecture().name),
                  "two models with one tokenizer");
    }
    const auto [at, beside] = std::mismatch(ids.begin(), ids.end(), other.begin(), other.end());
    throw Error(
        file,
        fmt::format("tokenizers that differ: from token {} on {} and {} read other ids",
                    at - ids.begin(), base.architecture().name, auxiliary.architecture().name),
        "two models with one tokenizer");
  });
}

}  // namespace kvcast::cli
