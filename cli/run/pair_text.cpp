#include "cli/run/pair_text.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "cli/run/run_inputs.h"
#include "model/base/error.h"

namespace kvcast::cli {
namespace {

using execute::TokenId;

std::vector<TokenId> read_text(const std::string& flag, const std::string& file,
                               const Checkpoint& checkpoint, const FoundTokenizer& tokenizer) {
  auto sequences = read_token_file(file, flag, checkpoint.architecture(), tokenizer);
  if (sequences.size() != 1) {
    throw Error(flag + " " + file, fmt::format("{} lists of token ids", sequences.size()), "one");
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
                fmt::format("a tokenizer that decodes token {} to another text", id),
                "the tokenizer of the base model " + base.architecture().name);
  }
}

std::vector<TokenId> read_pair_text(const char* flag, const std::string& file,
                                    const Checkpoint& base, const Checkpoint& auxiliary) {
  const FoundTokenizer tokenizer = find_tokenizer(base);
  const FoundTokenizer other_tokenizer = find_tokenizer(auxiliary);
  if (!tokenizer) return read_text(flag, file, auxiliary, other_tokenizer);
  std::vector<TokenId> ids = read_text(flag, file, base, tokenizer);
  const std::string place = fmt::format("{} {}", flag, file);
  const std::string& a = base.architecture().name;
  const std::string& b = auxiliary.architecture().name;
  if (!other_tokenizer) {
    const auto limit = auxiliary.architecture().vocab_size;
    const auto largest = *std::max_element(ids.begin(), ids.end());
    if (largest < limit) return ids;
    throw Error(place, fmt::format("token id {}", largest),
                fmt::format("ids below the {} of {}", limit, b));
  }
  const std::vector<TokenId> other = read_text(flag, file, auxiliary, other_tokenizer);
  if (ids == other && read_alike(*tokenizer, *other_tokenizer, ids)) return ids;
  const auto at = std::mismatch(ids.begin(), ids.end(), other.begin(), other.end()).first;
  const std::string how =
      ids == other ? "decode its ids to different texts"
                   : fmt::format("tokenize it differently from token {} on", at - ids.begin());
  throw Error(
      fmt::format("{}: {} and {} {}; expected models with the same tokenizer", place, a, b, how));
}

}  // namespace kvcast::cli
