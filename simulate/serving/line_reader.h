/// Lines of a file of any size, one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <memory>
#include <string>
#include <string_view>

namespace kvcast::simulate {

/// Line ends are LF or CRLF; the last line may have none. A byte-order mark is skipped.
class LineReader {
 public:
  /// Longer lines are refused: a file without line ends should not fill the memory. Ours.
  static constexpr std::size_t max_line_bytes = std::size_t{64} << 20;

  /// `name` stands for the file in errors.
  LineReader(std::unique_ptr<std::istream> stream, std::string name);

  /// False after the last line. The line is valid until the next call. Throws Error: a line that is
  /// too long, a read that fails.
  bool next(std::string_view& line);
  /// The next call gives the current line once more.
  void repeat() { repeat_ = true; }

  const std::string& name() const { return name_; }
  /// Of the current line, from 1.
  std::uint64_t number() const { return number_; }
  /// "FILE:LINE" of the current line, and "FILE:LINE: " with `what`.
  std::string place() const;
  std::string place(std::string_view what) const;

 private:
  bool read_more();

  std::unique_ptr<std::istream> stream_;
  std::string name_;
  std::string buffer_;
  std::size_t begin_ = 0;  ///< of what is not given out yet, in the buffer
  std::string_view line_;
  std::uint64_t number_ = 0;
  bool repeat_ = false;
};

}  // namespace kvcast::simulate
