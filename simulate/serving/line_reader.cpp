#include "simulate/serving/line_reader.h"

#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast::simulate {
namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 18;
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

}  // namespace

LineReader::LineReader(std::unique_ptr<std::istream> stream, std::string name)
    : stream_(std::move(stream)), name_(std::move(name)) {}

bool LineReader::next(std::string_view& line) {
  if (repeat_) {
    repeat_ = false;
    line = line_;
    return true;
  }
  std::size_t searched = begin_;
  std::size_t end = 0;
  while ((end = buffer_.find('\n', searched)) == std::string::npos) {
    const std::size_t left = buffer_.size() - begin_;
    if (left > max_line_bytes) {
      throw Error(fmt::format("{}:{}", name_, number_ + 1),
                  fmt::format("a line of more than {} MiB", max_line_bytes >> 20),
                  "a request on each line");
    }
    const bool more = read_more();  // moves what is left to the front
    searched = left;
    if (more) continue;
    if (left == 0) return false;
    end = left;
    break;
  }
  line_ = std::string_view(buffer_).substr(begin_, end - begin_);
  begin_ = std::min(end + 1, buffer_.size());
  if (number_++ == 0 && line_.starts_with(byte_order_mark)) {
    line_.remove_prefix(byte_order_mark.size());
  }
  if (line_.ends_with('\r')) line_.remove_suffix(1);
  line = line_;
  return true;
}

bool LineReader::read_more() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  const std::size_t old = buffer_.size();
  buffer_.resize(old + piece_bytes);
  stream_->read(buffer_.data() + old, static_cast<std::streamsize>(piece_bytes));
  buffer_.resize(old + static_cast<std::size_t>(stream_->gcount()));
  if (stream_->bad()) throw Error(name_ + ": cannot be read", Fault::Run);
  return buffer_.size() > old;
}

std::string LineReader::place() const { return fmt::format("{}:{}", name_, number_); }

std::string LineReader::place(std::string_view what) const {
  return fmt::format("{}:{}: {}", name_, number_, what);
}

}  // namespace kvcast::simulate
