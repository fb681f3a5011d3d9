#include "measure/quality_task.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/forward/token_selection.h"

namespace kvcast::measure {
namespace {

using execute::TokenId;

constexpr std::array<std::string_view, 16> cities{
    "Lisbon", "Oslo", "Madrid", "Dublin", "Vienna", "Prague", "Athens", "Warsaw",
    "Berlin", "Rome", "London", "Paris",  "Moscow", "Cairo",  "Tokyo",  "Sydney"};
constexpr std::array<std::string_view, 10> subjects{
    "The old gardener", "A young teacher",    "The baker",   "Our neighbour",    "The ferryman",
    "A tall stranger",  "The doctor's niece", "The captain", "A quiet musician", "The librarian"};
constexpr std::array<std::string_view, 10> actions{"walked slowly along",  "looked for a while at",
                                                   "talked about",         "wrote a letter about",
                                                   "remembered",           "painted",
                                                   "dreamed about",        "waited beside",
                                                   "asked a friend about", "told a story about"};
constexpr std::array<std::string_view, 10> objects{
    "the river",      "the empty market",    "a small wooden boat", "the hills behind the town",
    "the apple tree", "the road to the sea", "an unfinished house", "the bridge",
    "the first snow", "a field of barley"};
constexpr std::array<std::string_view, 6> times{"in the morning",     "before the rain",
                                                "after supper",       "on a warm day",
                                                "late in the autumn", "for the last time"};

/// Draws from a list of numbers that a seed gives.
class Draws {
 public:
  Draws(std::uint64_t count, std::uint64_t seed) : numbers_(random_importance(count, seed)) {}
  std::uint64_t below(std::uint64_t n) {
    return static_cast<std::uint64_t>(numbers_.at(next_++)) % n;
  }
  template <std::size_t N>
  std::string_view one_of(const std::array<std::string_view, N>& words) {
    return words[below(N)];
  }

 private:
  std::vector<double> numbers_;
  std::size_t next_ = 0;
};

constexpr std::uint64_t draws_of_sentence = 4;
/// Sentences before the first needle: about one of them may be cut to fit the length.
constexpr std::uint64_t first_needle = 2;

std::string sentence(Draws& draws) {
  const std::string_view subject = draws.one_of(subjects);
  const std::string_view action = draws.one_of(actions);
  const std::string_view object = draws.one_of(objects);
  return fmt::format("{} {} {} {}. ", subject, action, object, draws.one_of(times));
}

struct Needle {
  std::string city;
  std::uint64_t number = 0;
  double depth = 0;
};

/// A prompt of `sentences` sentences and the question, without the answer.
std::string needle_prompt(const Needle& needle, std::uint64_t sentences, std::uint64_t seed) {
  Draws draws(sentences * draws_of_sentence, seed);
  const auto before = std::max(
      first_needle, static_cast<std::uint64_t>(static_cast<double>(sentences) * needle.depth));
  std::string text;
  for (std::uint64_t i = 0; i < sentences; ++i) {
    if (i == before) {
      text += fmt::format("The secret number of {} is {}. ", needle.city, needle.number);
    }
    text += sentence(draws);
  }
  return text +
         fmt::format("What is the secret number of {0}? The secret number of {0} is", needle.city);
}

/// The needle's prompt with the fewest sentences that fill `prompt_len` tokens. Surplus tokens are
/// cut after the first token, since that one may begin every text.
std::vector<TokenId> fitted_prompt(const text::Tokenizer& tokenizer, const Needle& needle,
                                   std::uint64_t prompt_len, std::uint64_t seed,
                                   std::uint64_t& sentences) {
  std::vector<TokenId> ids = tokenizer.encode(needle_prompt(needle, sentences, seed));
  while (ids.size() < prompt_len) {
    ids = tokenizer.encode(needle_prompt(needle, ++sentences, seed));
  }
  while (sentences > 1) {
    std::vector<TokenId> shorter = tokenizer.encode(needle_prompt(needle, sentences - 1, seed));
    if (shorter.size() < prompt_len) break;
    --sentences;
    ids = std::move(shorter);
  }
  const auto surplus = static_cast<std::ptrdiff_t>(ids.size() - prompt_len);
  if (surplus > 0) ids.erase(ids.begin() + 1, ids.begin() + 1 + surplus);
  return ids;
}

}  // namespace

std::vector<QualitySample> text_samples(std::span<const TokenId> text,
                                        std::span<const TokenId> prefix, const std::string& name,
                                        const QualityLengths& lengths, std::uint64_t count) {
  if (count == 0 || lengths.continuation_len == 0 || lengths.prompt_len <= prefix.size()) {
    throw Error(name,
                fmt::format("{} samples of {} and {} tokens", count, lengths.prompt_len,
                            lengths.continuation_len),
                "at least one, with a prompt and a continuation");
  }
  if (text.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), text.begin())) {
    text = text.subspan(prefix.size());
  }
  const std::uint64_t read = lengths.prompt_len - prefix.size();
  // Lengths are parsed with a limit far below 2^32.
  const std::uint64_t window = read + lengths.continuation_len;
  if (text.size() / window < count) {
    throw Error(name, fmt::format("{} tokens", text.size()),
                fmt::format("at least {} for {} windows of {} + {} that do not overlap",
                            count * window, count, read, lengths.continuation_len));
  }
  std::vector<QualitySample> samples;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t first = count == 1 ? 0 : (text.size() - window) * i / (count - 1);
    QualitySample s{"text", fmt::format("{}@{}", name, first), {prefix.begin(), prefix.end()}, {}};
    const auto prompt = text.subspan(first, read);
    const auto rest = text.subspan(first + read, lengths.continuation_len);
    s.prompt.insert(s.prompt.end(), prompt.begin(), prompt.end());
    s.continuation.assign(rest.begin(), rest.end());
    samples.push_back(std::move(s));
  }
  return samples;
}

std::vector<QualitySample> needle_samples(const text::Tokenizer& tokenizer,
                                          std::uint64_t prompt_len, std::uint64_t count,
                                          std::uint64_t seed) {
  std::vector<QualitySample> samples;
  std::uint64_t sentences = 1;
  for (std::uint64_t i = 0; i < count; ++i) {
    Draws draws(2, seed + 2 * i);
    Needle needle;
    needle.city = draws.one_of(cities);
    needle.number = 10000 + draws.below(90000);
    needle.depth = (static_cast<double>(i) + 0.5) / static_cast<double>(count);
    const std::uint64_t of_haystack = seed + 2 * i + 1;
    std::vector<TokenId> prompt =
        fitted_prompt(tokenizer, needle, prompt_len, of_haystack, sentences);
    const std::string whole = needle_prompt(needle, sentences, of_haystack);
    const std::vector<TokenId> question = tokenizer.encode(whole);
    const std::vector<TokenId> answered =
        tokenizer.encode(fmt::format("{} {}", whole, needle.number));
    if (sentences <= first_needle) {
      throw Error(
          "needle in a haystack", fmt::format("prompts of {} tokens", prompt_len),
          fmt::format(
              "at least {} with this tokenizer",
              tokenizer.encode(needle_prompt(needle, first_needle + 1, of_haystack)).size()));
    }
    if (answered.size() <= question.size() ||
        !std::equal(question.begin(), question.end(), answered.begin())) {
      throw Error(
          "needle in a haystack: the tokenizer reads the question otherwise when the "
          "answer follows, so that there is no answer to score");
    }
    samples.push_back(
        {"needle",
         fmt::format("depth {:.3f}", needle.depth),
         std::move(prompt),
         {answered.begin() + static_cast<std::ptrdiff_t>(question.size()), answered.end()}});
  }
  return samples;
}

}  // namespace kvcast::measure
