#include "reports/sweep/sweep_rows.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast::reports {
namespace {

using roofline::DesignPoint;
using roofline::Estimate;

/// Above it a double sum no longer shows whether an exact 64-bit count would overflow.
constexpr double safe_count = 9.2e18;
constexpr std::size_t longest_number = 32;

/// Writes into room that the caller has made; returns the new end.
char* write(char* out, std::uint64_t value) {
  return std::to_chars(out, out + longest_number, value).ptr;
}

/// The shortest decimal form that reads back as the same number; nothing for what is no number.
char* write(char* out, double value) {
  if (value >= 0 && value < safe_count) {
    const auto whole = static_cast<std::uint64_t>(value);
    if (static_cast<double>(whole) == value) return write(out, whole);
  }
  if (!std::isfinite(value)) return out;
  return std::to_chars(out, out + longest_number, value).ptr;
}

char* write(char* out, std::string_view word) { return std::copy(word.begin(), word.end(), out); }

/// Calls `fill(out)` with room for `room` characters at the end of the text.
template <typename Fill>
void extend(std::string& text, std::size_t room, Fill fill) {
  const std::size_t old_size = text.size();
  if (text.capacity() < old_size + room) text.reserve(2 * (old_size + room));
  text.resize(old_size + room);
  const char* const end = fill(text.data() + old_size);
  text.resize(static_cast<std::size_t>(end - text.data()));
}

bool may_overflow(const Estimate& e) {
  return !(std::max({e.prefill_flops, e.prefill_bytes, e.decode_flops_per_token,
                     e.decode_bytes_per_token, e.kv_cache_bytes, e.peak_memory_bytes}) <
           safe_count);
}

std::string_view without_line_ends(std::string_view line) {
  return line.substr(0, line.find_last_not_of("\r\n") + 1);
}

}  // namespace

std::string sweep_header() {
  return std::string(sweep_input_columns) + "," + std::string(sweep_result_columns) + "\n";
}

void ConfigurationRows::record() {
  cells_ = grid_.cells(index_);
  const RegimeBounds& bounds = grid_.error_bounds(index_);
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    error_bounds_[i] = bounds[i].bound ? fmt::format(",{}", bounds[i].bound->error) : ",";
  }
  try {
    const roofline::Configuration c = grid_.configuration(index_);
    const std::uint64_t frames = c.architecture.max_source_positions;
    if (frames > 0) own_prompt_len_ = frames;
    estimator_.emplace(c);
  } catch (const Error& e) {
    if (e.fault() == Fault::Run) throw;
    impossible_ = e.what();
  }
}

void ConfigurationRows::evaluate(std::uint64_t first, std::uint64_t last, RowScratch& scratch) {
  std::call_once(recorded_, [this] { record(); });
  scratch.points.resize(last - first);
  scratch.estimates.resize(last - first);
  grid_.sizes(first, own_prompt_len_, scratch.points);
  if (!estimator_) throw Error(impossible_);
  estimator_->sweep(scratch.points, scratch.estimates);
}

std::optional<std::string> ConfigurationRows::problem(std::uint64_t size) {
  std::call_once(recorded_, [this] { record(); });
  if (!estimator_) return impossible_;
  std::array<DesignPoint, 1> point;
  grid_.sizes(size, own_prompt_len_, point);
  try {
    estimator_->at(point[0]);
    return {};
  } catch (const Error& e) {
    if (e.fault() == Fault::Run) throw;
    return e.what();
  }
}

template <typename Rows>
std::uint64_t ConfigurationRows::visit(std::uint64_t first, std::uint64_t last, RowScratch& scratch,
                                       Rows& rows) {
  bool block_overflows = false;
  try {
    evaluate(first, last, scratch);
  } catch (const Error& e) {
    if (e.fault() == Fault::Run) throw;
    if (!estimator_) {
      for (const DesignPoint& p : scratch.points) rows.error(p, impossible_);
      return last - first;
    }
    block_overflows = true;  // at least one of its points does: each on its own, then
  }
  std::uint64_t errors = 0;
  for (std::size_t i = 0; i < scratch.points.size(); ++i) {
    const DesignPoint& p = scratch.points[i];
    if (!block_overflows && !may_overflow(scratch.estimates[i])) {
      rows.row(p, scratch.estimates[i]);
      continue;
    }
    try {
      rows.row(p, estimator_->at(p));
    } catch (const Error& e) {
      rows.error(p, e.what());
      ++errors;
    }
  }
  return errors;
}

std::uint64_t ConfigurationRows::append(std::uint64_t first, std::uint64_t last,
                                        RowScratch& scratch, std::string& text) {
  struct TextRows {
    const ConfigurationRows& configuration;
    std::string& text;
    void row(const DesignPoint& p, const Estimate& e) { configuration.append_row(p, e, text); }
    void error(const DesignPoint& p, std::string_view reason) {
      configuration.append_error(p, reason, text);
    }
  } rows{*this, text};
  return visit(first, last, scratch, rows);
}

template <typename Cells>
void ConfigurationRows::write_results(const DesignPoint& p, const Estimate& e, Cells& cells) {
  for (const double value :
       {e.ttft_s, e.tpot_s, e.prefill_flops, e.prefill_bytes, e.decode_flops_per_token,
        e.decode_bytes_per_token, e.kv_cache_bytes, e.weight_bytes, e.peak_memory_bytes}) {
    cells.number(value);
  }
  cells.truth(e.fits);
  for (const roofline::Bound bound : {e.bound, e.ttft_bound, e.tpot_bound}) cells.bound(bound);
  cells.error_bound(measure::prefill_regime(p));
  cells.error_bound(measure::decode_regime(p));
  for (const double value : {e.ttft_speedup, e.tpot_speedup, e.kv_cache_ratio}) cells.number(value);
  const bool divided = e.ttft_parts_s[static_cast<std::size_t>(TtftPart::Base)] != e.ttft_s;
  for (const double seconds : e.ttft_parts_s) {
    divided&& seconds > 0 ? cells.number(seconds) : cells.missing();
  }
  cells.number(e.devices);
  for (const double value : {e.weight_bytes_per_device, e.kv_cache_bytes_per_device,
                             e.communication_s, e.tpot_communication_s}) {
    e.devices > 1 ? cells.number(value) : cells.missing();
  }
}

/// Cells behind commas, in room that the caller has made.
class ConfigurationRows::TextCells {
 public:
  TextCells(const ConfigurationRows& configuration, char* out)
      : error_bounds_(configuration.error_bounds_), out_(out) {}
  char* end() const { return out_; }

  template <typename Number>
  void number(Number value) {
    missing();
    out_ = write(out_, value);
  }
  void truth(bool value) { out_ = write(out_, value ? ",true" : ",false"); }
  void bound(roofline::Bound bound) {
    missing();
    out_ = write(out_, roofline::name(bound));
  }
  void error_bound(measure::Regime regime) {
    out_ = write(out_, error_bounds_[static_cast<std::size_t>(regime)]);
  }
  void missing() { *out_++ = ','; }

 private:
  const std::array<std::string, measure::all_regimes.size()>& error_bounds_;
  char* out_;
};

/// The cells of one row of columns.
class ConfigurationRows::ColumnCells {
 public:
  ColumnCells(const RegimeBounds& error_bounds, SweepColumns& columns, std::size_t row)
      : error_bounds_(error_bounds), columns_(columns), row_(row) {}

  template <typename Number>
  void number(Number value) {
    columns_.set_number(column_++, row_, static_cast<double>(value));
  }
  void truth(bool value) { columns_.set_word(column_++, row_, value ? 1 : 0); }
  void bound(roofline::Bound bound) {
    columns_.set_word(column_++, row_, static_cast<std::int32_t>(bound));
  }
  void error_bound(measure::Regime regime) {
    const measure::BoundOrReason& bound = error_bounds_[static_cast<std::size_t>(regime)];
    bound.bound ? number(bound.bound->error) : missing();
  }
  void missing() { ++column_; }

 private:
  const RegimeBounds& error_bounds_;
  SweepColumns& columns_;
  std::size_t row_;
  std::size_t column_ = SweepColumns::num_inputs;
};

std::uint64_t ConfigurationRows::fill(std::uint64_t first, std::uint64_t last, RowScratch& scratch,
                                      SweepColumns& columns, std::size_t row) {
  struct ColumnRows {
    const RegimeBounds& error_bounds;
    SweepColumns& columns;
    std::size_t row_number;
    void row(const DesignPoint& p, const Estimate& e) {
      columns.set_sizes(row_number, p.batch, p.prompt_len, p.output_len);
      ColumnCells cells(error_bounds, columns, row_number++);
      write_results(p, e, cells);
    }
    void error(const DesignPoint& p, std::string_view reason) {
      columns.set_sizes(row_number, p.batch, p.prompt_len, p.output_len);
      columns.set_error(row_number++, without_line_ends(reason));
    }
  } rows{grid_.error_bounds(index_), columns, row};
  columns.set_configuration(index_, row, last - first);
  return visit(first, last, scratch, rows);
}

void ConfigurationRows::append_inputs(const DesignPoint& p, std::string& text) const {
  text += cells_;
  extend(text, 3 * (longest_number + 1), [&](char* out) {
    for (const std::uint64_t size : {p.batch, p.prompt_len, p.output_len}) {
      *out++ = ',';
      out = write(out, size);
    }
    return out;
  });
}

void ConfigurationRows::append_row(const DesignPoint& p, const Estimate& e,
                                   std::string& text) const {
  append_inputs(p, text);
  constexpr std::size_t num_cells = 22 + num_ttft_parts;
  std::size_t most = num_cells * (longest_number + 1);
  for (const std::string& bound : error_bounds_) most += bound.size();
  extend(text, most, [&](char* out) {
    TextCells cells(*this, out);
    write_results(p, e, cells);
    return write(cells.end(), ",\n");
  });
}

void ConfigurationRows::append_error(const DesignPoint& p, std::string_view reason,
                                     std::string& text) const {
  append_inputs(p, text);
  const auto commas = std::count(sweep_result_columns.begin(), sweep_result_columns.end(), ',');
  text.append(static_cast<std::size_t>(commas) + 1, ',');
  text += csv_cell(without_line_ends(reason));
  text += '\n';
}

}  // namespace kvcast::reports
