#include "model/io/weights/weight_source.h"

#include <charconv>
#include <numeric>
#include <string_view>

#include "model/base/error.h"

namespace kvcast {
namespace {

/// Rows are listed one by one; no model is near this many, a file may claim more.
constexpr std::uint64_t max_listed_rows = 1u << 22;

}  // namespace

WeightName parse_weight_name(const std::string& name) {
  WeightName parsed;
  std::string_view rest = name;
  for (const std::string_view stack : {"encoder.", "decoder."}) {
    if (rest.starts_with(stack)) {
      parsed.stack = stack;
      rest.remove_prefix(stack.size());
      break;
    }
  }
  if (rest.starts_with("layers.")) {
    rest.remove_prefix(7);
    std::size_t layer = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    KVCAST_ASSERT(error == std::errc());
    parsed.layer = layer;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
  }
  const std::size_t dot = rest.rfind('.');
  KVCAST_ASSERT(dot != std::string_view::npos);
  parsed.part = rest.substr(0, dot);
  parsed.kind = rest.substr(dot);
  return parsed;
}

void check_row_list(std::uint64_t count, const std::string& place) {
  if (count <= max_listed_rows) return;
  throw Error(place, std::to_string(count) + " rows of a projection",
              "at most " + std::to_string(max_listed_rows));
}

std::vector<std::uint64_t> row_range(std::uint64_t first, std::uint64_t count) {
  check_row_list(count);
  std::vector<std::uint64_t> rows(count);
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

}  // namespace kvcast
