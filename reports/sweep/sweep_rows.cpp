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

std::uint64_t ConfigurationRows::append(std::uint64_t first, std::uint64_t last,
                                        RowScratch& scratch, std::string& text) {
  bool block_overflows = false;
  try {
    evaluate(first, last, scratch);
  } catch (const Error& e) {
    if (e.fault() == Fault::Run) throw;
    if (!estimator_) {
      for (const DesignPoint& p : scratch.points) append_error(p, impossible_, text);
      return last - first;
    }
    block_overflows = true;  // at least one of its points does: each on its own, then
  }
  std::uint64_t errors = 0;
  for (std::size_t i = 0; i < scratch.points.size(); ++i) {
    const DesignPoint& p = scratch.points[i];
    if (block_overflows || may_overflow(scratch.estimates[i])) {
      if (append_checked(p, text)) ++errors;
    } else {
      append_row(p, scratch.estimates[i], text);
    }
  }
  return errors;
}

bool ConfigurationRows::append_checked(const DesignPoint& p, std::string& text) const {
  try {
    append_row(p, estimator_->at(p), text);
    return false;
  } catch (const Error& e) {
    append_error(p, e.what(), text);
    return true;
  }
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
  const auto bound_cell = [this](measure::Regime r) -> const std::string& {
    return error_bounds_[static_cast<std::size_t>(r)];
  };
  const std::string& ttft_bound = bound_cell(measure::prefill_regime(p));
  const std::string& tpot_bound = bound_cell(measure::decode_regime(p));
  constexpr std::size_t num_cells = 22 + num_ttft_parts;
  const std::size_t most = num_cells * (longest_number + 1) + ttft_bound.size() + tpot_bound.size();
  extend(text, most, [&](char* out) {
    for (const double value :
         {e.ttft_s, e.tpot_s, e.prefill_flops, e.prefill_bytes, e.decode_flops_per_token,
          e.decode_bytes_per_token, e.kv_cache_bytes, e.weight_bytes, e.peak_memory_bytes}) {
      *out++ = ',';
      out = write(out, value);
    }
    out = write(out, e.fits ? ",true" : ",false");
    for (const roofline::Bound bound : {e.bound, e.ttft_bound, e.tpot_bound}) {
      *out++ = ',';
      out = write(out, roofline::name(bound));
    }
    out = write(out, ttft_bound);
    out = write(out, tpot_bound);
    for (const double value : {e.ttft_speedup, e.tpot_speedup, e.kv_cache_ratio}) {
      *out++ = ',';
      out = write(out, value);
    }
    const bool divided = e.ttft_parts_s[static_cast<std::size_t>(TtftPart::Base)] != e.ttft_s;
    for (const double seconds : e.ttft_parts_s) {
      *out++ = ',';
      if (divided && seconds > 0) out = write(out, seconds);
    }
    *out++ = ',';
    out = write(out, e.devices);
    for (const double value : {e.weight_bytes_per_device, e.kv_cache_bytes_per_device,
                               e.communication_s, e.tpot_communication_s}) {
      *out++ = ',';
      if (e.devices > 1) out = write(out, value);
    }
    return write(out, ",\n");
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
