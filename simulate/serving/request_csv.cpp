#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/base/error.h"
#include "model/io/files/number_text.h"
#include "simulate/serving/request_lines.h"

namespace kvcast::simulate {
namespace {

enum class Clock {
  Seconds,           ///< from the start of the run
  SecondsFromFirst,  ///< the first request's becomes 0
  StampFromFirst     ///< date and time of day
};

struct Layout {
  std::string_view name;
  Clock clock;
  std::string_view arrival;
  std::vector<std::string_view> prompt;  ///< whichever the file has
  std::string_view output;
};

const Layout layouts[]{
    {"kvcast", Clock::Seconds, "arrival_s", {"prompt_tokens", "input_tokens"}, "output_tokens"},
    {"Azure", Clock::StampFromFirst, "TIMESTAMP", {"ContextTokens"}, "GeneratedTokens"},
    {"BurstGPT", Clock::SecondsFromFirst, "Timestamp", {"Request tokens"}, "Response tokens"}};

std::string cell_text(std::string_view cell) {
  constexpr std::size_t most = 60;
  const std::string shown(cell.substr(0, most));
  return "'" + shown + (cell.size() > most ? "...'" : "'");
}

/// The fields of one line, RFC 4180, but none goes over the end of the line; doubled quotes stay
/// doubled: no number has any.
void split(std::string_view line, const LineReader& lines, std::vector<std::string_view>& fields) {
  fields.clear();
  for (std::size_t begin = 0;;) {
    std::size_t end = 0;
    if (begin < line.size() && line[begin] == '"') {
      std::size_t quote = begin + 1;
      for (;; quote += 2) {
        quote = line.find('"', quote);
        if (quote == std::string_view::npos) {
          throw Error(lines.place(fmt::format("column {}", fields.size() + 1)),
                      "a quoted field without an end", "a closing quote on this line");
        }
        if (quote + 1 == line.size() || line[quote + 1] != '"') break;
      }
      end = quote + 1;
      fields.push_back(line.substr(begin + 1, quote - begin - 1));
      if (end < line.size() && line[end] != ',') {
        throw Error(lines.place(fmt::format("column {}", fields.size())),
                    fmt::format("{} after a closing quote", cell_text(line.substr(end, 1))),
                    "a comma or the end of the line");
      }
    } else {
      end = std::min(line.find(',', begin), line.size());
      fields.push_back(line.substr(begin, end - begin));
    }
    if (end == line.size()) return;
    begin = end + 1;
  }
}

bool take_number(std::string_view& text, std::size_t digits, int& value) {
  if (text.size() < digits || !parse_number(text.substr(0, digits), value) || value < 0) {
    return false;
  }
  text.remove_prefix(digits);
  return true;
}

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

/// "2023-11-16 18:15:46.6805900", in 2024's traces with "+00:00" behind it, as nanoseconds since
/// 1970; false for another text.
bool parse_stamp(std::string_view text, std::int64_t& nanoseconds) {
  int year = 0;
  int month = 0;
  int day = 0;
  int hour = 0;
  int minute = 0;
  int second = 0;
  const bool has_date = take_number(text, 4, year) && take(text, '-') &&
                        take_number(text, 2, month) && take(text, '-') && take_number(text, 2, day);
  const bool has_time = has_date && (take(text, ' ') || take(text, 'T')) &&
                        take_number(text, 2, hour) && take(text, ':') &&
                        take_number(text, 2, minute) && take(text, ':') &&
                        take_number(text, 2, second);
  if (!has_time || hour > 23 || minute > 59 || second > 59) return false;
  std::int64_t fraction = 0;
  if (take(text, '.')) {
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    if (digits == 0 || digits > 9 || !parse_number(text.substr(0, digits), fraction)) return false;
    for (std::size_t i = digits; i < 9; ++i) fraction *= 10;
    text.remove_prefix(digits);
  }
  int offset_minutes = 0;
  if (!text.empty() && !take(text, 'Z')) {
    const bool behind = text.front() == '-';
    int zone_hour = 0;
    int zone_minute = 0;
    const bool has_zone = (take(text, '+') || take(text, '-')) && take_number(text, 2, zone_hour) &&
                          take(text, ':') && take_number(text, 2, zone_minute);
    if (!has_zone || zone_hour > 23 || zone_minute > 59) return false;
    offset_minutes = (behind ? -1 : 1) * (zone_hour * 60 + zone_minute);
  }
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  // Nanoseconds of a 64-bit number last until 2262.
  if (!text.empty() || !date.ok() || year < 1970 || year > 2200) return false;
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  const std::int64_t minutes = (days * 24 + hour) * 60 + minute - offset_minutes;
  nanoseconds = (minutes * 60 + second) * 1'000'000'000 + fraction;
  return true;
}

class CsvRequests : public RequestLines {
 public:
  CsvRequests(LineReader lines, const RequestFileOptions& options)
      : RequestLines(std::move(lines), options) {
    read_header();
    choose_columns();
    if (options_.block_tokens > 0) {
      throw Error(lines_.name() + ": CSV has no prefix blocks; expected no tokens of a block");
    }
  }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  void read_header() {
    std::string_view line;
    if (!lines_.next(line)) throw Error(lines_.name(), "an empty file", known_request_files);
    split(line, lines_, fields_);
    std::set<std::string_view> seen;
    for (const std::string_view column : fields_) {
      if (!seen.insert(column).second) {
        throw Error(lines_.place(), fmt::format("column {} twice", cell_text(column)),
                    "each column once");
      }
      columns_.emplace_back(column);
    }
  }

  std::size_t column(std::string_view name) const {
    const auto found = std::find(columns_.begin(), columns_.end(), name);
    return found == columns_.end() ? none : static_cast<std::size_t>(found - columns_.begin());
  }

  /// The layout whose column of prompts the file has, which becomes prompt_.
  const Layout* find_prompts() {
    const Layout* found = nullptr;
    for (const Layout& layout : layouts) {
      for (const std::string_view name : layout.prompt) {
        if (column(name) == none) continue;
        if (found != nullptr) {
          throw Error(lines_.place(), fmt::format("columns '{}' and '{}'", columns_[prompt_], name),
                      "one with the tokens of the prompts");
        }
        found = &layout;
        prompt_ = column(name);
      }
    }
    return found;
  }

  void choose_columns() {
    const Layout* const chosen = find_prompts();
    if (chosen == nullptr) {
      throw Error(lines_.place(),
                  "columns " + cell_text(fmt::format("{}", fmt::join(columns_, ","))),
                  known_request_files);
    }
    clock_ = chosen->clock;
    id_ = clock_ == Clock::Seconds ? column("id") : none;
    choose_arrival(*chosen);
    output_ = column(chosen->output);
    if (output_ != none && options_.output_tokens > 0) {
      throw Error(
          lines_.place(),
          fmt::format("a column '{}' and {} output tokens", chosen->output, options_.output_tokens),
          "one of them");
    }
    has_outputs_ = output_ != none || options_.output_tokens > 0;
    if (!has_outputs_ && !options_.lengths_only) {
      throw Error(lines_.place(), fmt::format("no column '{}'", chosen->output),
                  "one, or a number of output tokens for all requests");
    }
    if (output_ == none && has_outputs_) {
      check_tokens(options_.output_tokens, "output tokens", false);
    }
  }

  void choose_arrival(const Layout& chosen) {
    if (options_.lengths_only) return;
    const std::string_view name =
        options_.arrival_column.empty() ? chosen.arrival : options_.arrival_column;
    arrival_ = column(name);
    if (arrival_ != none) return;
    if (!options_.arrival_column.empty()) {
      throw Error(lines_.place(), unknown_name("arrival column", name, columns_));
    }
    std::vector<std::string> choice;
    for (const std::string& column : columns_) {
      if (column.starts_with(chosen.arrival)) choice.push_back(column);
    }
    throw Error(lines_.place(), fmt::format("no column '{}'", name),
                choice.empty()
                    ? std::string("one with the arrivals")
                    : fmt::format("an arrival column chosen from {}", fmt::join(choice, ", ")));
  }

  std::string place_of(std::size_t column) const {
    return lines_.place(fmt::format("column '{}'", columns_[column]));
  }

  std::string arrival_place() const override { return place_of(arrival_); }

  std::uint64_t tokens(std::size_t column) const {
    std::uint64_t value = 0;
    const std::string_view cell = fields_[column];
    const bool drop = options_.drop_empty;
    if (!parse_number(cell, value))
      throw Error(place_of(column), cell_text(cell), token_range(drop));
    check_tokens(value, place_of(column), drop);
    return value;
  }

  double seconds() {
    const std::string_view cell = fields_[arrival_];
    if (clock_ == Clock::StampFromFirst) {
      std::int64_t stamp = 0;
      if (!parse_stamp(cell, stamp)) {
        throw Error(arrival_place(), cell_text(cell), "a time such as 2023-11-16 18:15:46.6805900");
      }
      if (!has_first_) first_stamp_ = stamp;
      has_first_ = true;
      return static_cast<double>(stamp - first_stamp_) / 1e9;
    }
    double value = 0;
    if (!parse_number(cell, value) || !std::isfinite(value) || value < 0) {
      throw Error(arrival_place(), cell_text(cell), "a time in seconds, 0 or more");
    }
    if (clock_ == Clock::Seconds) return value + 0.0;  // no -0
    if (!has_first_) first_s_ = value;
    has_first_ = true;
    return value - first_s_;
  }

  void read(std::string_view line, ServingRequest& request) override {
    split(line, lines_, fields_);
    if (fields_.size() != columns_.size()) {
      throw Error(lines_.place(), fmt::format("{} fields", fields_.size()),
                  fmt::format("{}, as in the header", columns_.size()));
    }
    if (arrival_ != none) request.arrival_s = seconds();
    request.prompt_tokens = tokens(prompt_);
    request.output_tokens = output_ != none ? tokens(output_) : options_.output_tokens;
    if (id_ != none && !parse_number(fields_[id_], request.id)) {
      throw Error(place_of(id_), cell_text(fields_[id_]), "a whole number");
    }
  }

  std::vector<std::string> columns_;
  std::vector<std::string_view> fields_;  ///< of the current line
  Clock clock_ = Clock::Seconds;
  std::size_t arrival_ = none;
  std::size_t prompt_ = none;
  std::size_t output_ = none;
  std::size_t id_ = none;
  bool has_first_ = false;
  double first_s_ = 0;
  std::int64_t first_stamp_ = 0;
};

}  // namespace

std::unique_ptr<RequestSource> open_csv_requests(LineReader lines,
                                                 const RequestFileOptions& options) {
  return std::make_unique<CsvRequests>(std::move(lines), options);
}

}  // namespace kvcast::simulate
