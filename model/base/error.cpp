#include "model/base/error.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "model/base/units.h"

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

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::string without_control_characters(std::string line) {
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return line;
}

}  // namespace

Error::Error(std::string line, Fault fault)
    : std::runtime_error(without_control_characters(std::move(line))), fault_(fault) {}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
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

Error unknown_name(std::string_view kind, std::string_view word,
                   const std::vector<std::string>& candidates) {
  std::string line = "unknown " + std::string(kind) + " '" + std::string(word) + "'";
  const std::string guess = nearest(word, candidates);
  if (!guess.empty()) {
    line += "; did you mean '" + guess + "'?";
  } else {
    line += "; expected one of: ";
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
  if (__builtin_add_overflow(a, b, &sum)) {
    throw Error("count overflow: " + std::to_string(a) + " + " + std::to_string(b) +
                " does not fit 64 bits; the model or the prompt is too large");
  }
  return sum;
}

std::uint64_t checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw Error("count overflow: " + std::to_string(a) + " x " + std::to_string(b) +
                " does not fit 64 bits; the model or the prompt is too large");
  }
  return product;
}

}  // namespace kvcast
