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
  /// Control characters (of names taken from files) become blanks, so that it stays one line.
  explicit Error(std::string line, Fault fault = Fault::Request);

  /// "WHERE: got FOUND, expected EXPECTED"
  Error(std::string_view where, std::string_view found, std::string_view expected)
      : Error(std::string(where) + ": got " + std::string(found) + ", expected " +
              std::string(expected)) {}

  Fault fault() const { return fault_; }

 private:
  Fault fault_;
};

/// The candidate nearest to `word` by edit distance, whatever their case, or "" when none is near
/// enough to be meant.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// "unknown KIND 'WORD'; did you mean 'NEAREST'?", or the list of candidates when none is near.
Error unknown_name(std::string_view kind, std::string_view word,
                   const std::vector<std::string>& candidates);

/// A broken invariant is a bug in kvcast, not an error of its user.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace kvcast

#define KVCAST_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::kvcast::assertion_failed(#condition, __FILE__, __LINE__))
