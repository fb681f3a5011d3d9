#include "cli/frame/progress_bar.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "cli/frame/command.h"
#include "model/base/quantity.h"

namespace kvcast::cli {
namespace {

constexpr std::size_t bar_width = 30;

bool is_dumb_terminal() {
  const char* term = std::getenv("TERM");
  return term == nullptr || std::string_view(term) == "dumb";
}

std::string clock(double seconds) {
  const auto s = static_cast<std::uint64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

/// "[#####.....]  50.0 %  1.2 M points/s  0:42 left": one line, without color.
std::string progress_line(std::uint64_t done, std::uint64_t done_before, std::uint64_t total,
                          double elapsed_s, std::string_view facts) {
  if (total == 0) {
    if (!facts.empty()) return std::string(facts);
    const double rate = elapsed_s > 0 ? static_cast<double>(done) / elapsed_s : 0;
    return fmt::format("{} done  {}/s", done, format_count(rate));
  }
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const auto filled =
      std::min(bar_width, static_cast<std::size_t>(share * static_cast<double>(bar_width)));
  std::string line = fmt::format("[{}{}] {:5.1f} %", std::string(filled, '#'),
                                 std::string(bar_width - filled, '.'), 100 * share);
  if (done <= done_before || elapsed_s <= 0) return line;
  const double rate = static_cast<double>(done - done_before) / elapsed_s;
  line +=
      facts.empty() ? fmt::format("  {} points/s", format_count(rate)) : fmt::format("  {}", facts);
  if (done < total)
    line += fmt::format("  {} left", clock(static_cast<double>(total - done) / rate));
  return line;
}

}  // namespace

bool ProgressBar::is_shown(bool quiet) {
  if (quiet) return false;
  if (std::getenv("KVCAST_PROGRESS") != nullptr) return true;
  return ::isatty(STDERR_FILENO) != 0 && !is_dumb_terminal();
}

ProgressBar::ProgressBar(bool quiet) : active_(is_shown(quiet)) { hold_no_more(); }

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::draw(std::uint64_t done, std::uint64_t done_before, std::uint64_t total,
                       double elapsed_s, std::string_view facts) {
  constexpr double interval_s = 0.1;
  if (!active_ || (drawn_ && done != total && elapsed_s < drawn_at_s_ + interval_s)) return;
  std::fprintf(stderr, "\r%s\033[K",
               progress_line(done, done_before, total, elapsed_s, facts).c_str());
  std::fflush(stderr);
  drawn_ = true;
  drawn_at_s_ = elapsed_s;
}

}  // namespace kvcast::cli
