#include "cli/estimate/estimate_parts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>

#include "roofline/hardware_writer.h"

namespace kvcast::cli {

std::string_view kernels_name(Kernels k) { return k == Kernels::Eager ? "eager" : "tiled"; }

std::string default_dtype_text(const RequestOptions& o, const Architecture& a) {
  const bool is_named = !o.dtype.empty() || (!o.weight_dtype.empty() &&
                                             !o.activation_dtype.empty() && !o.cache_dtype.empty());
  if (is_named) return "";
  return fmt::format(", {} {}", name(a.default_dtype()),
                     a.published_dtype ? "as published" : "by default");
}

ordered_json count_json(double value) {
  if (value >= 0 && value < 9007199254740992.0 &&
      value == static_cast<double>(static_cast<std::uint64_t>(value))) {
    return static_cast<std::uint64_t>(value);
  }
  return value;
}

std::string bound_text(const std::optional<measure::ErrorBound>& bound) {
  constexpr double noise = 1e-3;  // per cent; stored times have six digits
  return bound ? fmt::format("+-{:.0f} %", std::ceil(100 * bound->error - noise)) : std::string();
}

void add_bound(ordered_json& j, std::string_view time,
               const std::optional<measure::ErrorBound>& bound) {
  const std::string key = fmt::format("{}_error_", time);
  j[key + "bound"] = nullptr;
  j[key + "rows"] = 0;
  j[key + "population"] = nullptr;
  if (!bound) return;
  j[key + "bound"] = bound->error;
  j[key + "rows"] = bound->rows;
  j[key + "population"] = bound->population;
}

ordered_json factor_json(const roofline::UsedFactor& f) {
  ordered_json j{{"name", f.name},
                 {"peak", f.peak},
                 {"factor", f.factor},
                 {"source", f.source},
                 {"reference", f.reference}};
  if (!f.by_length.empty()) j["by_length"] = roofline::by_length_json(f.by_length);
  return j;
}

std::vector<std::string> rests_on(const std::vector<roofline::UsedFactor>& factors) {
  std::vector<std::string> kinds;
  for (const char* kind : {"datasheet", "measured", "fitted"}) {
    const bool used = std::any_of(factors.begin(), factors.end(),
                                  [&](const auto& factor) { return factor.source == kind; });
    if (used) kinds.emplace_back(kind);
  }
  return kinds;
}

ordered_json operator_json(const roofline::BreakdownRow& r) {
  const auto count = static_cast<double>(r.count);
  const auto all = [&](std::uint64_t of_one) {
    return count_json(count * static_cast<double>(of_one));
  };
  return {{"pass", r.pass},
          {"phase", r.group.phase},
          {"label", r.group.label},
          {"operator", r.group.op},
          {"count", r.count},
          {"flops", all(r.time.flops.count)},
          {"bytes", all(r.time.bytes.count)},
          {"bytes_read_again", all(r.time.bytes_reread.count)},
          {"bytes_spared", all(r.time.bytes_hit_on_chip.count)},
          {"bytes_on_chip", all(r.time.bytes_on_chip.count)},
          {"compute_s", count * r.time.compute.value},
          {"memory_s", count * r.time.memory.value},
          {"seconds", r.total.value},
          {"bound", roofline::name(r.time.bound)}};
}

std::string operators_text(const ordered_json& rows) {
  std::vector<Column> columns{{"pass", "pass"},
                              {"phase", "phase"},
                              {"label", "label"},
                              {"operator", "operator"},
                              {"count", "count"},
                              {"GFLOP", "flops", in("{:.3f}", 1e-9)},
                              {"MB", "bytes", in("{:.3f}", 1e-6)},
                              {"ms", "seconds", in("{:.4f}", 1e3)},
                              {"bound", "bound"}};
  // Passes with long names take its room.
  const bool are_long = std::any_of(rows.begin(), rows.end(), [](const ordered_json& row) {
    return row["pass"].get_ref<const std::string&>().find(" of ") != std::string::npos;
  });
  if (are_long) columns.erase(columns.begin() + 1);
  return table_text(columns, rows);
}

}  // namespace kvcast::cli
