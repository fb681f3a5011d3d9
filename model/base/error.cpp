#include "model/base/error.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <utility>

#include "model/base/units.h"
#include "model/base/utf8_text.h"

namespace kvcast {
namespace {

/// Insertions, deletions, substitutions and swaps of neighbours ("modle" is one from "model").
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, substitute});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

bool is_letter(unsigned char c) { return std::isalpha(c) != 0; }

std::string digits_of(std::string_view text) {
  std::string digits;
  std::copy_if(text.begin(), text.end(), std::back_inserter(digits),
               [](unsigned char c) { return std::isdigit(c) != 0; });
  return digits;
}

/// The text with its middle left out when it is longer than `most`: of a file's path the folder and
/// the name stay.
std::string without_middle(std::string_view whole, std::size_t most) {
  if (whole.size() <= most) return std::string(whole);
  const std::size_t kept = most / 2;  // at either end
  std::string head(whole.substr(0, kept));
  std::string tail(whole.substr(whole.size() - kept));
  // A cut may go through a character: all of its bytes but the first are 10xxxxxx.
  while (!tail.empty() && (static_cast<unsigned char>(tail.front()) & 0xC0U) == 0x80U) {
    tail.erase(0, 1);
  }
  return text::take_characters(head, text::Repair::PerCharacter, false) + "..." + tail;
}

Error count_overflow(std::uint64_t a, const char* sign, std::uint64_t b) {
  return Error("a count exceeds 64 bits: " + std::to_string(a) + sign + std::to_string(b) +
               "; expected a smaller model, batch or prompt");
}

}  // namespace

std::string printable_line(std::string_view message) {
  constexpr std::size_t most_of_word = 240;  // ours: three lines of a terminal
  constexpr std::size_t most_of_line = 4000;
  const std::string all = without_middle(message, most_of_line);
  const std::string_view words = all;
  std::string line;
  for (std::size_t begin = 0; begin < words.size();) {
    const std::size_t end = std::min(words.find(' ', begin), words.size());
    line += without_middle(words.substr(begin, end - begin), most_of_word);
    if (end < words.size()) line += ' ';
    begin = end + 1;
  }
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  return text::take_characters(line, text::Repair::PerCharacter, true);
}

Error::Error(std::string_view line, Fault fault)
    : std::runtime_error(printable_line(line)), fault_(fault) {}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    // There are at least as many edits as the lengths differ; this skips texts of megabytes.
    if (word.size() >= candidate.size() + best_distance) continue;
    const std::size_t distance = edit_distance(lower_case(word), lower_case(candidate));
    // A word that shares no letter with the candidate was not meant.
    const bool related = distance < std::max(word.size(), candidate.size());
    if (related && distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> relatives(std::string_view word,
                                   const std::vector<std::string>& candidates) {
  const std::string lower = lower_case(word);
  const auto shared = [&](const std::string& candidate) {
    const std::string other = lower_case(candidate);
    const auto end = std::mismatch(lower.begin(), lower.end(), other.begin(), other.end()).first;
    return static_cast<std::size_t>(end - lower.begin());
  };
  const auto letters = static_cast<std::size_t>(
      std::find_if_not(lower.begin(), lower.end(), is_letter) - lower.begin());
  const std::size_t least = std::max<std::size_t>(letters, 1);
  // "-27b" of "gemma-27b", which has no number of a generation.
  const std::string size = lower.rfind('-') == letters ? lower.substr(letters) : "";
  const auto has_size = [&](const std::string& candidate) {
    return !size.empty() && shared(candidate) >= least && lower_case(candidate).ends_with(size);
  };
  const bool sizes = std::any_of(candidates.begin(), candidates.end(), has_size);
  std::size_t longest = least;
  for (const std::string& candidate : candidates) longest = std::max(longest, shared(candidate));
  std::vector<std::pair<std::size_t, std::string>> family;
  for (const std::string& candidate : candidates) {
    // A known name with a suffix that no other name begins: "deepseek-r1-671b".
    const bool begins =
        lower.starts_with(lower_case(candidate) + "-") && longest <= candidate.size() + 1;
    if (!begins && !(sizes ? has_size(candidate) : shared(candidate) >= longest)) continue;
    family.emplace_back(begins ? 0 : edit_distance(lower, lower_case(candidate)), candidate);
  }
  std::sort(family.begin(), family.end());
  std::vector<std::string> found;
  for (auto& [distance, candidate] : family) found.push_back(std::move(candidate));
  return found;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t most = 5;  // ours: one line of a terminal
  const std::string guess = nearest(word, candidates);
  std::vector<std::string> meant = relatives(word, candidates);
  const bool is_relative = std::find(meant.begin(), meant.end(), guess) != meant.end();
  const bool has_its_number = !guess.empty() && digits_of(guess) == digits_of(word);
  if (meant.empty() || (is_relative && has_its_number)) {
    meant = {guess};
  } else if (has_its_number) {
    meant.insert(meant.begin(), guess);  // "b300" for "h300", and what else begins with "h"
  }
  if (meant.front().empty()) return "";
  meant.resize(std::min(meant.size(), most));
  std::string line = "did you mean ";
  for (std::size_t i = 0; i < meant.size(); ++i) {
    const bool is_last = i + 1 == meant.size();
    line += (i == 0 ? "'" : is_last ? " or '" : ", '") + meant[i] + "'";
  }
  return line + "?";
}

Error unknown_name(std::string_view kind, std::string_view word,
                   const std::vector<std::string>& candidates) {
  std::string line = "unknown " + std::string(kind) + " '" + std::string(word) + "'; ";
  const std::string hint = did_you_mean(word, candidates);
  if (!hint.empty()) {
    line += hint;
  } else {
    line += "expected one of: ";
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      line += (i == 0 ? "" : ", ") + candidates[i];
    }
  }
  return Error(line);
}

void assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: kvcast bug: assertion failed: %s\n", file, line, condition);
  std::abort();
}

std::uint64_t checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) throw count_overflow(a, " + ", b);
  return sum;
}

std::uint64_t checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw count_overflow(a, " x ", b);
  return product;
}

}  // namespace kvcast
