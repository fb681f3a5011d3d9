#include "measure/benchmark_import.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/order_statistics.h"
#include "model/base/quantity.h"
#include "model/io/files/csv_table.h"
#include "roofline/hardware_writer.h"

namespace kvcast::measure {
namespace {

using roofline::FactorAt;
using roofline::Hardware;
using roofline::Source;
using roofline::Sourced;

constexpr std::array columns{"device",    "kind",  "driver", "software", "date",
                             "benchmark", "dtype", "shape",  "flops",    "bytes",
                             "median_s",  "q1_s",  "q3_s",   "repeats"};
/// Benchmarks with FLOPs, with bytes only, and those that say a size and have no time.
const std::vector<std::string> of_flops{"matmul", "batched_matmul", "attention"};
const std::vector<std::string> of_bytes{"copy", "elementwise", "softmax", "small_kernel",
                                        "host_operator"};
const std::vector<std::string> of_sizes{"memory_capacity", "on_chip_memory"};

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

double above_zero(const CsvRow& row, std::string_view column) {
  const double value = row.number(column);
  if (value <= 0) throw Error(row.place(column), row.text(column), "a number above zero");
  return value;
}

void check_columns(const CsvTable& table) {
  for (const char* column : columns) {
    if (!table.has_column(column)) {
      throw Error(table.name(), fmt::format("no column '{}'", column),
                  "the columns that tools/gpu_microbenchmarks.py writes");
    }
  }
  const std::vector<std::string> known(columns.begin(), columns.end());
  for (const std::string& column : table.columns()) {
    if (!has(known, column)) throw unknown_name(table.name() + ": column", column, known);
  }
  if (table.size() == 0) throw Error(table.name(), "no rows", "micro-benchmarks");
}

DType dtype_of(const CsvRow& row) {
  try {
    return parse_dtype(row.text("dtype"));
  } catch (const Error& e) {
    throw Error(row.place("dtype") + ": " + e.what());
  }
}

Benchmark read_benchmark(const CsvRow& row) {
  Benchmark b;
  b.name = row.text("benchmark");
  b.dtype = row.text("dtype");
  b.shape = row.text("shape");
  const bool size = has(of_sizes, b.name);
  if (!size && !has(of_flops, b.name) && !has(of_bytes, b.name)) {
    std::vector<std::string> known = of_flops;
    known.insert(known.end(), of_bytes.begin(), of_bytes.end());
    known.insert(known.end(), of_sizes.begin(), of_sizes.end());
    throw unknown_name(row.place("benchmark") + ": benchmark", b.name, known);
  }
  b.bytes = above_zero(row, "bytes");
  if (size) return b;
  dtype_of(row);
  if (has(of_flops, b.name)) b.flops = above_zero(row, "flops");
  b.median_s = above_zero(row, "median_s");
  b.q1_s = above_zero(row, "q1_s");
  b.q3_s = above_zero(row, "q3_s");
  if (b.q1_s > b.median_s || b.median_s > b.q3_s) {
    throw Error(row.place("median_s"), row.text("median_s"),
                fmt::format("a median between its quartiles {} and {}", row.text("q1_s"),
                            row.text("q3_s")));
  }
  b.repeats = row.whole("repeats");
  return b;
}

/// A number of "1x32x4096x128", counted from its end; none where the shape has other words.
std::optional<std::uint64_t> dimension(std::string_view shape, std::size_t from_end) {
  for (; from_end > 1; --from_end) {
    const std::size_t x = shape.rfind('x');
    if (x == std::string_view::npos) return {};
    shape = shape.substr(0, x);
  }
  const std::size_t x = shape.rfind('x');
  if (x != std::string_view::npos) shape = shape.substr(x + 1);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), number);
  if (error != std::errc() || end != shape.data() + shape.size() || number == 0) return {};
  return number;
}

/// From rows to factors: peaks first, then what is measured against them.
class Importer {
 public:
  Importer(const CsvTable& table, const roofline::Hardware* base) : table_(table), base_(base) {}

  ImportedBenchmarks result;

  void read() {
    check_columns(table_);
    const CsvRow first = table_[0];
    result.device = first.text("device");
    result.driver = first.text("driver");
    result.software = first.text("software");
    result.date = first.text("date");
    if (result.device.empty() || result.date.empty()) {
      throw Error(first.place("device"), "no device or no date", "both");
    }
    std::set<std::string> seen;
    for (const CsvRow& row : table_.rows()) {
      for (const char* column : {"device", "kind", "driver", "software", "date"}) {
        if (row.text(column) != first.text(column)) {
          throw Error(row.place(column), row.text(column),
                      first.text(column) + " as in the first row: one file is one run");
        }
      }
      const Benchmark b = read_benchmark(row);
      if (!seen.insert(b.name + "," + b.dtype + "," + b.shape).second) {
        throw Error(row.place("benchmark"), b.name + " " + b.dtype + " " + b.shape + " again",
                    "each benchmark once");
      }
      if (b.median_s > 0) {
        result.rows.push_back(b);
      } else {
        sizes_[b.name] = b.bytes;
      }
    }
  }

  void describe() {
    roofline::Hardware& hw = result.hardware;
    const std::string kind = table_[0].text("kind");
    if (kind != "gpu" && kind != "cpu") {
      throw Error(table_[0].place("kind"), kind, "gpu or cpu");
    }
    if (base_ != nullptr) {
      hw = *base_;
      if (kind != hw.kind) {
        throw Error("--hardware " + hw.name, "a " + hw.kind, "a " + kind + " as " + result.device);
      }
    } else {
      hw.kind = kind;
      best_rates();
    }
    hw.description = fmt::format("{}, as measured ({})", result.device, result.software);
    matrix_rates();
    const auto share = [&](const char* benchmark, std::optional<roofline::Sourced>& factor) {
      const std::vector<double> rates = rates_of(benchmark, "", false);
      if (!rates.empty()) {
        factor = share_of(median(rates), hw.memory_bandwidth, benchmark, rates.size());
      }
    };
    share("copy", hw.memory_bandwidth_factor);
    share("elementwise", hw.elementwise_bandwidth);
    share("softmax", hw.softmax_bandwidth);
    if (!rates_of("softmax", "", false).empty()) {
      set_by_length("softmax", "", 1, false, hw.memory_bandwidth, *hw.softmax_bandwidth);
    }
    latencies(kind);
  }

 private:
  /// An empty dtype: of all.
  static bool is_of(const Benchmark& b, const std::string& benchmark, const std::string& dtype) {
    return b.name == benchmark && (dtype.empty() || b.dtype == dtype);
  }
  static double rate_of(const Benchmark& b, bool flops) {
    return (flops ? b.flops : b.bytes) / b.median_s;
  }
  /// FLOP/s or bytes/s of the rows of a benchmark.
  std::vector<double> rates_of(const std::string& benchmark, const std::string& dtype,
                               bool flops) const {
    std::vector<double> rates;
    for (const Benchmark& b : result.rows) {
      if (is_of(b, benchmark, dtype)) rates.push_back(rate_of(b, flops));
    }
    return rates;
  }

  /// Gives a factor its shares of a peak at each length that shapes have at `from_end` (1: the last
  /// number), where there are several. Lengths whose rows took no longer than a shorter one's are
  /// left out, which its note says.
  void set_by_length(const std::string& benchmark, const std::string& dtype, std::size_t from_end,
                     bool flops, const roofline::Sourced& peak, roofline::Sourced& factor) const {
    std::map<std::uint64_t, std::vector<double>> rates;
    for (const Benchmark& b : result.rows) {
      if (!is_of(b, benchmark, dtype)) continue;
      if (const auto length = dimension(b.shape, from_end)) {
        rates[*length].push_back(rate_of(b, flops));
      }
    }
    std::vector<roofline::FactorAt> points;
    std::vector<std::uint64_t> left_out;
    double longest_row = 0;
    for (const auto& [length, of_length] : rates) {
      const std::string what = fmt::format("{} at {}", benchmark, length);
      // As it is written.
      const double share = std::round(share_of(median(of_length), peak, what, 0).value * 1e4) / 1e4;
      const double row = static_cast<double>(length) / share;
      if (share == 0 || row <= longest_row) {
        left_out.push_back(length);
        continue;
      }
      longest_row = row;
      points.push_back({length, share});
    }
    if (points.size() < 2) return;
    factor.by_length = points;
    if (!left_out.empty()) {
      factor.note += fmt::format("; lengths {} took no longer than shorter ones and are left out",
                                 fmt::join(left_out, ", "));
    }
  }

  roofline::Sourced measured(double value, std::string note) const {
    return {value, roofline::Source::Measured,
            fmt::format("{} of {}, {}, driver {}",
                        std::filesystem::path(table_.name()).filename().string(), result.date,
                        result.software, result.driver),
            std::move(note)};
  }

  roofline::Sourced share_of(double rate, const roofline::Sourced& peak, const std::string& what,
                             std::size_t rows) const {
    const double share = rate / peak.value;
    if (share > 1) {
      throw Error(fmt::format("{}: {}", table_.name(), what),
                  fmt::format("{:.3g} of the peak {:.4g} of {}", share, peak.value,
                              base_ == nullptr ? result.device : base_->name),
                  "a share of at most 1: another device, or times that are too short");
    }
    return measured(share, fmt::format("{} rows of {}", rows, what));
  }

  /// The best rate of several benchmarks; the first must be there.
  roofline::Sourced best_of(const std::vector<std::string>& benchmarks, const std::string& dtype,
                            bool flops) const {
    if (rates_of(benchmarks.front(), dtype, flops).empty()) {
      throw Error(
          table_.name(),
          fmt::format("no {} row{}", benchmarks.front(), dtype.empty() ? "" : " in " + dtype),
          "one, or --hardware with the datasheet's peaks");
    }
    double best = 0;
    for (const std::string& benchmark : benchmarks) {
      for (const double rate : rates_of(benchmark, dtype, flops)) best = std::max(best, rate);
    }
    return measured(best, fmt::format("the best of the rows of {}; not a datasheet's",
                                      fmt::join(benchmarks, ", ")));
  }

  double size(const std::string& name) const {
    const auto found = sizes_.find(name);
    if (found != sizes_.end()) return found->second;
    throw Error(table_.name(), "no row " + name, "one, or --hardware with the datasheet's");
  }

  /// Without a datasheet the best that was seen stands for the peak.
  void best_rates() {
    roofline::Hardware& hw = result.hardware;
    for (const std::string& dtype : dtypes_of("matmul")) {
      hw.peak_flops_per_second[parse_dtype(dtype)] = best_of(of_flops, dtype, true);
    }
    hw.vector_flops_per_second = best_of({"matmul"}, "fp32", true);
    hw.memory_bandwidth = best_of({"copy", "elementwise", "softmax"}, "", false);
    hw.memory_capacity = measured(size("memory_capacity"), "as the driver says");
    const auto cache = sizes_.find("on_chip_memory");
    // Without it, what the smallest parts have: nothing larger is then taken to stay on the chip.
    hw.on_chip_memory_capacity =
        measured(cache == sizes_.end() ? 1 << 20 : cache->second,
                 cache == sizes_.end() ? "not in the file; a lower bound" : "as the driver says");
  }

  std::vector<std::string> dtypes_of(const std::string& benchmark) const {
    std::set<std::string> dtypes;
    for (const Benchmark& b : result.rows) {
      if (b.name == benchmark) dtypes.insert(b.dtype);
    }
    return {dtypes.begin(), dtypes.end()};
  }

  const roofline::Sourced& peak_of(const std::string& dtype, const std::string& what) const {
    const auto& peaks = result.hardware.peak_flops_per_second;
    const auto found = peaks.find(parse_dtype(dtype));
    if (found != peaks.end()) return found->second;
    throw Error(table_.name() + ": " + what,
                base_ == nullptr ? dtype + " without a matmul row in " + dtype
                                 : "in " + dtype + ", of which " + base_->name + " has no peak",
                "rows of dtypes with a peak");
  }

  void matrix_rates() {
    roofline::Hardware& hw = result.hardware;
    for (const std::string& dtype : dtypes_of("matmul")) {
      const std::vector<double> rates = rates_of("matmul", dtype, true);
      const std::string what = "matmul in " + dtype;
      hw.matrix_rate[parse_dtype(dtype)] =
          share_of(median(rates), peak_of(dtype, what), what, rates.size());
    }
    for (const std::string& dtype : dtypes_of("batched_matmul")) {
      const std::vector<double> rates = rates_of("batched_matmul", dtype, true);
      double inverse = 0;
      for (const double rate : rates) inverse += 1 / rate;
      const std::string what = "batched_matmul in " + dtype;
      hw.batched_matrix_rate[parse_dtype(dtype)] = share_of(
          static_cast<double>(rates.size()) / inverse, peak_of(dtype, what), what, rates.size());
    }
    for (const std::string& dtype : dtypes_of("attention")) {
      const Benchmark* longest = nullptr;
      for (const Benchmark& b : result.rows) {
        const bool candidate = b.name == "attention" && b.dtype == dtype;
        if (candidate && (longest == nullptr || b.flops > longest->flops)) longest = &b;
      }
      const std::string what = "attention in " + dtype;
      roofline::Sourced& rate = hw.tiled_attention_rate[parse_dtype(dtype)] =
          share_of(longest->flops / longest->median_s, peak_of(dtype, what), what, 1);
      rate.note = "the longest prompt, " + longest->shape;
      set_by_length("attention", dtype, 2, true, peak_of(dtype, what), rate);
    }
  }

  void latencies(const std::string& kind) {
    roofline::Hardware& hw = result.hardware;
    const auto median_seconds = [&](const char* benchmark) -> std::optional<roofline::Sourced> {
      std::vector<double> seconds;
      for (const Benchmark& b : result.rows) {
        if (b.name == benchmark) seconds.push_back(b.median_s);
      }
      if (seconds.empty()) return {};
      return measured(median(seconds), fmt::format("{} rows of {}", seconds.size(), benchmark));
    };
    const auto set = [&](const char* benchmark, roofline::Sourced& latency) {
      if (const auto seconds = median_seconds(benchmark)) {
        latency = *seconds;
      } else if (base_ == nullptr) {
        throw Error(table_.name(), fmt::format("no row {}", benchmark),
                    "one, or --hardware with a device that has it");
      }
    };
    set("small_kernel", hw.operator_latency);
    if (kind == "cpu" && !median_seconds("host_operator")) {
      hw.host_operator_latency = measured(0, "on a CPU the host is the device");
    } else {
      set("host_operator", hw.host_operator_latency);
    }
  }

  const CsvTable& table_;
  const roofline::Hardware* base_;
  std::map<std::string, double> sizes_;
};

}  // namespace

const Benchmark& ImportedBenchmarks::noisiest() const {
  return *std::max_element(rows.begin(), rows.end(), [](const Benchmark& a, const Benchmark& b) {
    return a.spread() < b.spread();
  });
}

ImportedBenchmarks import_benchmarks(const std::filesystem::path& csv,
                                     const roofline::Hardware* base) {
  const CsvTable table = CsvTable::read(csv);
  Importer importer(table, base);
  importer.read();
  if (importer.result.rows.empty()) throw Error(csv.string(), "no times", "micro-benchmarks");
  importer.describe();
  return std::move(importer.result);
}

std::string to_json(const ImportedBenchmarks& imported, const std::string& name) {
  roofline::Hardware hardware = imported.hardware;
  hardware.name = name;
  nlohmann::ordered_json j = roofline::hardware_entries(hardware);
  j["calibration"] = {{"version", roofline::calibration_version},
                      {"date", imported.date},
                      {"device", imported.device},
                      {"driver", imported.driver},
                      {"software", imported.software}};
  for (const Benchmark& b : imported.rows) {
    j["calibration"]["measurements"].push_back(
        {{"name", fmt::format("{} {} {}", b.name, b.dtype, b.shape)},
         {"unit", "s"},
         {"median", b.median_s},
         {"low", b.q1_s},
         {"high", b.q3_s},
         {"unrest", b.spread()},
         {"rounds", b.repeats}});
  }
  return json_text(j, 2) + "\n";
}

}  // namespace kvcast::measure
