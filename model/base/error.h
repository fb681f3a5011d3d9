/// The one error type: where, what was found, what would be right.
#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvcast {

/// Whose fault a failure is; `cli/` turns it into the exit status (2 or 1).
enum class Fault {
  Request,  ///< the request or one of its files is wrong
  Run,      ///< a right request failed while running (full disk, unreadable device)
};

/// One line for a person. Libraries throw it, `cli/main.cpp` alone prints it.
class Error : public std::runtime_error {
 public:
  /// The message is printable_line(line).
  explicit Error(std::string_view line, Fault fault = Fault::Request);

  /// "WHERE: got FOUND, expected EXPECTED"
  Error(std::string_view where, std::string_view found, std::string_view expected)
      : Error(std::string(where) + ": got " + std::string(found) + ", expected " +
              std::string(expected)) {}

  /// "WHERE: " and what another error says, whose fault it keeps.
  Error(std::string_view where, const Error& what)
      : Error(std::string(where) + ": " + what.what(), what.fault()) {}

  Fault fault() const { return fault_; }

 private:
  Fault fault_;
};

/// One line that any terminal and any JSON document takes, whatever names and bytes it quotes:
/// control characters become blanks, bytes that are not UTF-8 U+FFFD, and what is longer
/// than 240 bytes without a blank, or than 4,000 in all, loses its middle.
std::string printable_line(std::string_view message);

std::string lower_case(std::string_view text);

/// The candidate nearest to `word` by edit distance, whatever their case, or "" when none is near
/// enough to be meant.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// The candidates of the word's family, nearest first: those that share the longest beginning with
/// it, at least its first letters ("llama" of "llama-4-70b"), whatever their case; of "llama-70b"
/// those that end with "-70b". One that the word is longer than by "-" and more comes first.
std::vector<std::string> relatives(std::string_view word,
                                   const std::vector<std::string>& candidates);

/// "did you mean 'A'?" for a misspelt word, or "did you mean 'A', 'B' or 'C'?" with its nearest
/// relatives when none of them has its number: another number is no misspelling. "" when nothing
/// is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// "unknown KIND 'WORD'; " and did_you_mean(), or the list of candidates when none is near.
Error unknown_name(std::string_view kind, std::string_view word,
                   const std::vector<std::string>& candidates);

/// A broken invariant is a bug in kvcast, not an error of its user.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace kvcast

#define KVCAST_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::kvcast::assertion_failed(#condition, __FILE__, __LINE__))
