#include "measure/benchmark_import.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include <boost/algorithm/string/case_conv.hpp>
#include <boost/algorithm/string/split.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "measure/factor_fit.h"
#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/order_statistics.h"
#include "model/base/quantity.h"
#include "model/base/utf8_text.h"
#include "model/io/files/csv_table.h"
#include "model/io/files/number_text.h"
#include "roofline/hardware_fields.h"
#include "roofline/hardware_writer.h"

namespace kvcast::measure {
namespace {

using boost::algorithm::to_upper_copy;
using roofline::FactorAt;
using roofline::Hardware;
using roofline::Source;
using roofline::Sourced;

const std::vector<std::string> columns{"device",    "kind",  "driver", "software", "date",
                                       "benchmark", "dtype", "shape",  "flops",    "bytes",
                                       "median_s",  "q1_s",  "q3_s",   "repeats"};
/// The columns with one value in the whole file.
constexpr std::array columns_of_run{"device", "kind", "driver", "software", "date"};
/// Benchmarks with FLOPs, with bytes only, and those that give a size instead of a time.
const std::vector<std::string> of_flops{"matmul", "batched_matmul", "attention",
                                        "decode_attention"};
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
  for (const std::string& column : columns) {
    if (!table.has_column(column)) {
      throw Error(table.name(), fmt::format("no column '{}'", column),
                  "the columns that tools/gpu_microbenchmarks.py writes");
    }
  }
  for (const std::string& column : table.columns()) {
    if (has(columns, column)) continue;
    throw Error(table.name(), unknown_name("column", column, columns));
  }
  if (table.size() == 0) throw Error(table.name(), "no rows", "micro-benchmarks");
}

DType dtype_of(const CsvRow& row) {
  try {
    return parse_dtype(row.text("dtype"));
  } catch (const Error& e) {
    throw Error(row.place("dtype"), e);
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
    throw Error(row.place("benchmark"), unknown_name("benchmark", b.name, known));
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
  above_zero(row, "repeats");
  b.repeats = row.whole("repeats");
  return b;
}

/// A number of "1x32x4096x128", counted from the end; none where that word is no number.
std::optional<std::uint64_t> dimension(const std::string& shape, std::size_t from_end) {
  std::vector<std::string> words;
  boost::algorithm::split(words, shape, [](char c) { return c == 'x'; });
  std::uint64_t number = 0;
  if (from_end > words.size() || !parse_number(words[words.size() - from_end], number)) return {};
  return number == 0 ? std::nullopt : std::optional(number);
}

/// Turns rows into factors: peaks first, then shares of them.
class Importer {
 public:
  Importer(const CsvTable& table, const roofline::Hardware* base) : table_(table), base_(base) {}

  ImportedBenchmarks result;

  void read() {
    check_columns(table_);
    for (const CsvRow& row : table_.rows()) {
      for (const std::string& c : columns) text::require_utf8(row.text(c), row.place(c));
    }
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
      for (const char* column : columns_of_run) {
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
        throw Error(
            "--hardware " + hw.name, "a " + to_upper_copy(hw.kind),
            fmt::format("a {}, such as '{}' of the file", to_upper_copy(kind), result.device));
      }
    } else {
      hw.kind = kind;
      best_rates();
    }
    hw.description = fmt::format("{}, as measured ({})", result.device, result.software);
    matrix_rates();
    bandwidth("copy", hw.memory_bandwidth_factor);
    bandwidth("elementwise", hw.elementwise_bandwidth);
    bandwidth("softmax", hw.softmax_bandwidth);
    if (const Rows rows = rows_of("softmax"); !rows.empty()) {
      set_by_length(rows, 1, hw.memory_bandwidth, *hw.softmax_bandwidth);
    }
    latency("small_kernel", hw.operator_latency);
    if (kind == "cpu" && rows_of("host_operator").empty()) {
      hw.host_operator_latency = measured(0, "on a CPU the host is the device");
    } else {
      latency("host_operator", hw.host_operator_latency);
    }
  }

 private:
  using Rows = std::vector<const Benchmark*>;

  /// Without a dtype: in all.
  Rows rows_of(const std::string& benchmark, const std::string& dtype = "") const {
    Rows rows;
    for (const Benchmark& b : result.rows) {
      if (b.name == benchmark && (dtype.empty() || b.dtype == dtype)) rows.push_back(&b);
    }
    return rows;
  }

  static double median_rate(const Rows& rows) {
    std::vector<double> rates;
    for (const Benchmark* b : rows) rates.push_back(b->rate());
    return median(rates);
  }

  /// Gives a factor its shares of a peak at each length that shapes have at `from_end` (1: the last
  /// number), where there are several. Lengths whose rows took no longer than a shorter one's are
  /// left out, and its note lists them.
  void set_by_length(const Rows& rows, std::size_t from_end, const roofline::Sourced& peak,
                     roofline::Sourced& factor) const {
    std::map<std::uint64_t, Rows> by_length;
    for (const Benchmark* b : rows) {
      if (const auto length = dimension(b->shape, from_end)) by_length[*length].push_back(b);
    }
    std::vector<roofline::FactorAt> points;
    std::vector<std::uint64_t> left_out;
    double longest_row = 0;
    for (const auto& [length, of_length] : by_length) {
      const std::string what = fmt::format("{} at {}", rows.front()->name, length);
      // As it is written.
      const double rate = median_rate(of_length);
      const double share = std::round(share_of(rate, peak, what, 0).value * 1e4) / 1e4;
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
  roofline::Sourced best_of(const std::vector<std::string>& benchmarks,
                            const std::string& dtype = "") const {
    if (rows_of(benchmarks.front(), dtype).empty()) {
      throw Error(
          table_.name(),
          fmt::format("no {} row{}", benchmarks.front(), dtype.empty() ? "" : " in " + dtype),
          "one, or --hardware with the datasheet's peaks");
    }
    double best = 0;
    for (const std::string& benchmark : benchmarks) {
      for (const Benchmark* b : rows_of(benchmark, dtype)) best = std::max(best, b->rate());
    }
    return measured(best, fmt::format("the best of the rows of {}; not a datasheet's",
                                      fmt::join(benchmarks, ", ")));
  }

  double size(const std::string& name) const {
    const auto found = sizes_.find(name);
    if (found != sizes_.end()) return found->second;
    throw Error(table_.name(), "no row " + name, "one, or --hardware with the datasheet's");
  }

  /// Without a datasheet, the best rates of the file are the peaks.
  void best_rates() {
    roofline::Hardware& hw = result.hardware;
    for (const std::string& dtype : dtypes_of("matmul")) {
      hw.peak_flops_per_second[parse_dtype(dtype)] = best_of(of_flops, dtype);
    }
    hw.vector_flops_per_second = best_of({"matmul"}, "fp32");
    hw.memory_bandwidth = best_of({"copy", "elementwise", "softmax"});
    hw.memory_capacity = measured(size("memory_capacity"), "as the driver says");
    const auto cache = sizes_.find("on_chip_memory");
    // Without that row, the cache of the smallest parts: only what fits it counts as on chip.
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
                                 : "in " + dtype + ", for which " + base_->name + " has no peak",
                "rows of dtypes with a peak");
  }

  /// Sets the factor to rate(rows) / peak for each dtype that the benchmark has rows in.
  template <typename Rate>
  void set_rates(const std::string& benchmark, std::map<DType, Sourced>& factor, Rate rate) {
    for (const std::string& dtype : dtypes_of(benchmark)) {
      const std::string what = benchmark + " in " + dtype;
      const Rows rows = rows_of(benchmark, dtype);
      factor[parse_dtype(dtype)] = share_of(rate(rows), peak_of(dtype, what), what, rows.size());
    }
  }

  void matrix_rates() {
    roofline::Hardware& hw = result.hardware;
    set_rates("matmul", hw.matrix_rate, median_rate);
    set_rates("batched_matmul", hw.batched_matrix_rate, [](const Rows& rows) {
      double inverse = 0;
      for (const Benchmark* b : rows) inverse += 1 / b->rate();
      return static_cast<double>(rows.size()) / inverse;
    });
    const auto longest = [](const Rows& rows) {
      return *std::max_element(
          rows.begin(), rows.end(),
          [](const Benchmark* a, const Benchmark* b) { return a->flops < b->flops; });
    };
    set_rates("attention", hw.tiled_attention_rate,
              [&](const Rows& rows) { return longest(rows)->rate(); });
    for (const std::string& dtype : dtypes_of("attention")) {
      const Rows rows = rows_of("attention", dtype);
      roofline::Sourced& rate = hw.tiled_attention_rate.at(parse_dtype(dtype));
      rate.note = "the longest prompt, " + longest(rows)->shape;
      set_by_length(rows, 2, peak_of(dtype, "attention in " + dtype), rate);
    }
    fit_kernels();
  }

  /// Where the file has kernels of all sizes, constants, bandwidths and rates are fitted together:
  /// a large product says nothing of a small one.
  void fit_kernels() {
    roofline::Hardware& hw = result.hardware;
    using Kind = roofline::Kernel::Kind;
    const std::string dtype = has(dtypes_of("matmul"), "bf16") ? "bf16" : "fp16";
    const auto cases_of = [&](Kind kind) { return kernel_cases(kind, dtype, hw); };
    if (const auto cases = cases_of(Kind::Product); spans(cases, 64, 1024)) {
      // One row as several: files without this take the memory's bandwidth for it.
      hw.product_bandwidth = measured(0.8, "");
      hw.product_bandwidth->by_length = {{1, 0.8}, {2, 0.8}};
      fit_kernel(cases, {"matrix_rate", "product_bandwidth", "product_overlap", "product_latency"});
    }
    if (const auto cases = cases_of(Kind::PrefillAttention); spans(cases, 256, 2048)) {
      hw.tiled_attention_rate.at(parse_dtype(dtype)).by_length.clear();
      hw.tiled_attention_overlap = measured(0, "loads and arithmetic follow one another");
      fit_kernel(cases,
                 {"tiled_attention_rate", "tiled_attention_bandwidth", "tiled_attention_latency"});
    }
    if (const auto cases = cases_of(Kind::DecodeAttention); spans(cases, 512, 8192)) {
      fit_kernel(cases, {"decode_attention_bandwidth", "decode_attention_latency"});
    }
  }

  /// "MxNxK" of products, "BATCHxHEADSxTOKENSxHEAD_DIM" of prompts, "BATCHxHEADSxKV_HEADSxTOKENSx
  /// HEAD_DIM" of decode steps; none for other shapes.
  static std::optional<roofline::Kernel> kernel_of(roofline::Kernel::Kind kind,
                                                   const Benchmark& b) {
    using Kind = roofline::Kernel::Kind;
    const bool decodes = kind == Kind::DecodeAttention;
    std::vector<std::uint64_t> sizes;
    const std::size_t words = kind == Kind::Product ? 3 : decodes ? 5 : 4;
    for (std::size_t from_end = words; from_end > 0; --from_end) {
      const auto size = dimension(b.shape, from_end);
      if (!size) return {};
      sizes.push_back(*size);
    }
    if (dimension(b.shape, words + 1)) return {};
    roofline::Kernel k;
    k.kind = kind;
    k.dtype = parse_dtype(b.dtype);
    if (kind == Kind::Product) {
      k.rows = sizes[0];
      k.outputs = sizes[1];
      k.inner = sizes[2];
      return k;
    }
    k.batch = sizes[0];
    k.num_attention_heads = sizes[1];
    k.num_key_value_heads = decodes ? sizes[2] : sizes[1];
    k.length = sizes[words - 2];
    k.head_dim = sizes[words - 1];
    if (k.num_attention_heads % k.num_key_value_heads != 0) return {};
    return k;
  }

  std::vector<ValidationCase> kernel_cases(roofline::Kernel::Kind kind, const std::string& dtype,
                                           const roofline::Hardware& hw) const {
    using Kind = roofline::Kernel::Kind;
    const char* benchmark = kind == Kind::Product            ? "matmul"
                            : kind == Kind::PrefillAttention ? "attention"
                                                             : "decode_attention";
    std::vector<ValidationCase> cases;
    for (const Benchmark* b : rows_of(benchmark, dtype)) {
      const auto kernel = kernel_of(kind, *b);
      if (!kernel) continue;
      ValidationCase c;
      c.row.hardware = hw.name;
      c.row.kernel = kernel;
      c.row.lowering.weights = c.row.lowering.activations = c.row.lowering.cache = kernel->dtype;
      c.metric = kind == Kind::Product            ? Metric::Product
                 : kind == Kind::PrefillAttention ? Metric::PrefillAttention
                                                  : Metric::DecodeAttention;
      c.measured = b->median_s;
      c.forecast = std::make_shared<const ForecastOn>(kernel_forecast(*kernel));
      cases.push_back(std::move(c));
    }
    return cases;
  }

  /// Rows or tokens up to `small` and from `large` on, and enough of them to fit.
  static bool spans(const std::vector<ValidationCase>& cases, std::uint64_t small,
                    std::uint64_t large) {
    std::uint64_t least = ~std::uint64_t{0};
    std::uint64_t most = 0;
    for (const ValidationCase& c : cases) {
      const roofline::Kernel& k = *c.row.kernel;
      const std::uint64_t size = k.kind == roofline::Kernel::Kind::Product ? k.rows : k.length;
      least = std::min(least, size);
      most = std::max(most, size);
    }
    constexpr std::size_t fewest = 8;
    return cases.size() >= fewest && least <= small && most >= large;
  }

  void fit_kernel(const std::vector<ValidationCase>& cases, const std::vector<std::string>& names) {
    roofline::Hardware& hw = result.hardware;
    const FactorFit fit = fit_factors(cases, {{hw.name, hw}}, names);
    for (const FittedFactor& f : fit.factors) {
      if (!f.at_limit || f.name != "decode_attention_bandwidth") continue;
      throw Error(table_.name() + ": " + f.name,
                  "caches that are read faster than the memory's peak",
                  "times of this device, of caches above its on-chip memory");
    }
    hw = fit.hardware;
    const std::string note =
        fmt::format("fitted together with {} to {} rows, mean error {:.1f} %",
                    fmt::join(names, ", "), cases.size(), 100 * fit.after.mape);
    const DType dtype = cases.front().row.kernel->dtype;
    for (const roofline::Field& field : roofline::hardware_fields()) {
      if (!has(names, field.name())) continue;
      roofline::Sourced fitted = measured(field.find(hw, dtype)->value, note);
      fitted.by_length = field.find(hw, dtype)->by_length;
      field.set(hw, dtype, std::move(fitted));
    }
  }

  void bandwidth(const char* benchmark, std::optional<roofline::Sourced>& factor) {
    const Rows rows = rows_of(benchmark);
    if (rows.empty()) return;
    factor = share_of(median_rate(rows), result.hardware.memory_bandwidth, benchmark, rows.size());
  }

  void latency(const char* benchmark, roofline::Sourced& latency) {
    std::vector<double> seconds;
    for (const Benchmark* b : rows_of(benchmark)) seconds.push_back(b->median_s);
    if (!seconds.empty()) {
      latency = measured(median(seconds), fmt::format("{} rows of {}", seconds.size(), benchmark));
    } else if (base_ == nullptr) {
      throw Error(table_.name(), fmt::format("no row {}", benchmark),
                  "one, or --hardware with a device that has it");
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
