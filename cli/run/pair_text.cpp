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
                               const FoundTokenizer& tokenizer) {
  auto sequences = read_token_file(file, "text", checkpoint.architecture(), tokenizer);
  if (sequences.size() != 1) {
    throw Error(file, fmt::format("{} lists of token ids", sequences.size()), "one");
  }
  return std::move(sequences.front());
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
  const FoundTokenizer a = find_tokenizer(base);
  const FoundTokenizer b = find_tokenizer(auxiliary);
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
                                    const Checkpoint& base, const Checkpoint& auxiliary) {
  return parse_flag(flag, file, [&](const std::string&) {
    const FoundTokenizer tokenizer = find_tokenizer(base);
    const FoundTokenizer other_tokenizer = find_tokenizer(auxiliary);
    if (!tokenizer) return read_text(file, auxiliary, other_tokenizer);
    std::vector<TokenId> ids = read_text(file, base, tokenizer);
    const std::string both =
        fmt::format("{} and {}", base.architecture().name, auxiliary.architecture().name);
    if (!other_tokenizer) {
      const auto limit = auxiliary.architecture().vocab_size;
      const auto largest = *std::max_element(ids.begin(), ids.end());
      if (largest < limit) return ids;
      throw Error(file, fmt::format("token id {}", largest),
                  fmt::format("ids below the {} of {}", limit, auxiliary.architecture().name));
    }
    const std::vector<TokenId> other = read_text(file, auxiliary, other_tokenizer);
    if (ids == other && read_alike(*tokenizer, *other_tokenizer, ids)) return ids;
    const auto at = std::mismatch(ids.begin(), ids.end(), other.begin(), other.end()).first;
    throw Error(file,
                "tokenizers that differ: " +
                    (ids == other ? both + " read the ids as different texts"
                                  : fmt::format("from token {} on {} read other ids",
                                                at - ids.begin(), both)),
                "two models with one tokenizer");
  });
}

}  // namespace kvcast::cli
