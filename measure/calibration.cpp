#include "measure/calibration.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "measure/calibration_bench.h"
#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/order_statistics.h"
#include "model/execute/link_probe.h"
#include "model/execute/machine_probe.h"
#include "roofline/hardware_writer.h"
#include "roofline/op_cost.h"

namespace kvcast::measure {
namespace {

/// Solves the formula for its rates, each from the sample that depends on it most. Repeated, since
/// each depends a little on the other rate too.
void solve_rates(Formula& f, const Samples& computing, const Samples& loading) {
  f.bytes_per_second = loading.work.bytes / loading.median_s();
  for (int i = 0; i < 50; ++i) {
    const double waiting = f.exposed * computing.work.bytes / f.bytes_per_second;
    f.flops_per_second = computing.work.flops / std::max(computing.median_s() - waiting, 1e-12);
    double memory = loading.median_s();
    const double compute = loading.work.flops / f.flops_per_second;
    if (f.exposed > 0) memory = std::min(memory, std::max(memory - compute, 1e-12) / f.exposed);
    f.bytes_per_second = loading.work.bytes / memory;
  }
}

/// The exposed part, measured on products near the ridge.
double exposed_part(const Formula& f, const std::vector<const Samples*>& ridge) {
  std::vector<double> parts;
  for (const Samples* s : ridge) {
    const double compute = s->work.flops / f.flops_per_second;
    const double memory = s->work.bytes / f.bytes_per_second;
    parts.push_back(std::clamp((s->median_s() - compute) / memory, 0.0, 0.99));
  }
  return kvcast::median(parts);
}

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
      return line.substr(line.find(": ") + 2);
    }
  }
  return "unknown processor";
}

/// The last-level cache that the first processor shares; 1 MiB where the system does not list it.
/// sysconf is no source: in a part of a machine it gives the whole machine's cache.
double on_chip_memory() {
  double bytes = 1 << 20;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    double kib = 0;
    if (file >> kib) bytes = std::max(bytes, kib * 1024);
  }
  return bytes;
}

roofline::Sourced measured(double value, const std::string& reference,
                           const std::string& note = "") {
  return {value, roofline::Source::Measured, reference, note};
}

/// The rates and latencies that fit the bench's times.
struct FittedRates {
  double fma = 0;   ///< FLOP/s, multiply-adds in registers
  double peak = 0;  ///< FLOP/s
  double read = 0;  ///< bytes/s
  Formula product;
  /// By rows: few are multiplied slower than many, their loads deducted.
  std::map<std::uint64_t, double> product_flops_per_second;
  Formula decode;  ///< attention of one query
  Formula tiled;   ///< attention of a prompt
  double batched_flops_per_second = 0;
  double elementwise_bytes_per_second = 0;
  double softmax_bytes_per_second = 0;
  double on_chip_bytes_per_second = 0;
  double operator_s = 0;  ///< latencies
  double elementwise_s = 0;
  double product_s = 0;
  double decode_attention_s = 0;
};

/// Rates and overlap of products, found together.
Formula fit_products(const CalibrationBench& b) {
  Formula product;
  const Samples& large = b.get(fmt::format("linear {} rows", large_rows));
  std::vector<const Samples*> ridge;
  for (const std::uint64_t rows : ridge_rows) {
    ridge.push_back(&b.get(fmt::format("linear {} rows", rows)));
  }
  for (int i = 0; i < 20; ++i) {
    solve_rates(product, large, b.get("linear 1 rows"));
    product.exposed = exposed_part(product, ridge);
  }
  return product;
}

/// The rates of products by their rows; those of one have the formula's.
std::map<std::uint64_t, double> rates_by_rows(const CalibrationBench& b, const Formula& product) {
  std::map<std::uint64_t, double> rates{{1, product.flops_per_second}};
  const auto add = [&](std::uint64_t rows) {
    const Samples& s = b.get(fmt::format("linear {} rows", rows));
    const double waiting = product.exposed * s.work.bytes / product.bytes_per_second;
    rates[rows] =
        std::min(product.flops_per_second, s.work.flops / std::max(s.median_s() - waiting, 1e-12));
  };
  for (const std::uint64_t rows : rows_of_decode) add(rows);
  for (const std::uint64_t rows : rows_of_prefill) add(rows);
  return rates;
}

/// The rate of eager attention's products, which write their scores and read them again.
double batched_rate(const Samples& s, const Formula& product, double on_chip_bytes_per_second) {
  const bool on_the_chip =
      s.work.bytes / s.work.operators <= roofline::most_intermediate_bytes(on_chip_memory());
  const double bytes_per_second = on_the_chip ? on_chip_bytes_per_second : product.bytes_per_second;
  const double loading = product.exposed * s.work.bytes / bytes_per_second;
  return s.work.flops / std::max(s.median_s() - loading, s.median_s() / 2);
}

FittedRates fit_rates(const CalibrationBench& b) {
  const auto attention = [&](const Formula& product, const std::string& computing,
                             const std::string& loading) {
    Formula f{.exposed = product.exposed};
    solve_rates(f, b.get(computing), b.get(loading));
    return f;
  };
  const auto rate = [&](const std::string& name) { return b.get(name).measurement().median(); };
  // Estimates charge an operator's bytes in addition to its latency.
  const auto latency = [&](const char* name, double bytes_per_second) {
    const Samples& s = b.get(name);
    return std::max(0.0, s.median_s() - s.work.bytes / bytes_per_second);
  };
  FittedRates r;
  r.product = fit_products(b);
  r.product_flops_per_second = rates_by_rows(b, r.product);
  r.fma = b.get("FMA").median_s();
  // Large products may come out a few per cent above the FMA rate, once their loads are deducted.
  r.peak = std::max(r.fma, r.product.flops_per_second);
  // Ranks read at the same time, but run products of one row one after the other.
  r.read = std::max(b.get("streaming read").median_s(), r.product.bytes_per_second);
  for (const CalibrationBench::WeightReads& reads : b.weight_reads()) {
    if (reads.rows > 1) continue;
    r.read = std::max(r.read, r.product.bytes_per_second * reads.ratio.median());
  }
  r.decode = attention(r.product, "decode attention, slim K-cache", "decode attention");
  // A short prompt spends most of its time reordering keys and values, which grows linearly with
  // the tokens. The products grow quadratically.
  r.tiled = attention(r.product, fmt::format("tiled attention {} tokens", large_rows),
                      fmt::format("tiled attention {} tokens", short_prompt));
  r.elementwise_bytes_per_second = rate(fmt::format("element-wise {} tokens, scores", large_rows));
  r.on_chip_bytes_per_second = std::max(
      rate(fmt::format("element-wise {} tokens, states", large_rows)), r.product.bytes_per_second);
  r.batched_flops_per_second =
      batched_rate(b.get(fmt::format("attention products {} tokens", large_rows)), r.product,
                   r.on_chip_bytes_per_second);
  r.softmax_bytes_per_second = rate(fmt::format("softmax {} tokens", large_rows));
  r.operator_s = latency("operator", r.read);
  r.elementwise_s = latency("element-wise operator", r.on_chip_bytes_per_second);
  // Kernels that wake every thread: what their rates do not explain.
  const auto beyond = [&](const char* name, const Formula& f) {
    const Samples& smallest = b.get(name);
    return std::max(0.0, smallest.median_s() - f.time(smallest.work));
  };
  r.product_s = beyond("product", r.product);
  r.decode_attention_s = beyond("decode attention operator", r.decode);
  return r;
}

/// The numbers of a hardware file, each with a note on what it was measured.
roofline::Hardware hardware_of(const CalibrationBench& b, const Calibration& c) {
  const FittedRates r = fit_rates(b);
  const std::string how =
      fmt::format("kvcast calibrate, {}, {} threads{}", c.date, c.threads,
                  c.ranks > 1 ? fmt::format(", on each of {} ranks at once", c.ranks) : "");
  const std::string alone = c.ranks > 1 ? ", one rank at a time" : "";
  const auto here = [&](double value, const std::string& note) {
    return measured(value, how, note);
  };
  const auto of_peak = [&](double flops_per_second, const std::string& note) {
    return here(std::clamp(flops_per_second / r.peak, 0.001, 1.0), note);
  };
  const auto of_read = [&](double bytes_per_second, const std::string& note) {
    return here(std::clamp(bytes_per_second / r.read, 0.001, 1.0), note);
  };
  const std::string heads = "24 heads of 64";
  const std::string os = "the operating system";

  roofline::Hardware hw;
  hw.description = fmt::format("{}, {} threads, as measured", c.processor, c.threads);
  hw.kind = "cpu";
  hw.peak_flops_per_second[DType::FP32] =
      here(r.peak, "multiply-adds in registers, or products if faster");
  hw.vector_flops_per_second = here(r.fma, "multiply-adds in registers");
  hw.memory_bandwidth = here(r.read, "reading 256 MiB, or products of one row if faster");
  hw.memory_capacity = measured(execute::machine_memory_bytes(), os);
  hw.on_chip_memory_capacity = measured(on_chip_memory(), os, "the last-level cache");
  hw.on_chip_memory_bandwidth =
      here(r.on_chip_bytes_per_second,
           fmt::format("sums and products of the states of {} tokens", large_rows));
  hw.operator_latency =
      here(r.operator_s, "norms, rotations and sums of one token, and the loop around");
  hw.elementwise_latency =
      here(r.elementwise_s, "eager operators of one token, and the loop around");
  hw.product_latency = here(r.product_s, "products of 256 x 256 and one row, and the loop around");
  hw.decode_attention_latency =
      here(r.decode_attention_s, "attention of 4 heads of 64 over 64 slots, and the loop around");
  hw.host_operator_latency = measured(0, "on a CPU the host is the device");
  roofline::Sourced& matrix_rate = hw.matrix_rate[DType::FP32];
  matrix_rate = of_peak(r.product.flops_per_second, fmt::format("products of {} rows", large_rows));
  hw.tiled_attention_rate[DType::FP32] =
      of_peak(r.tiled.flops_per_second, fmt::format("{} tokens, {}", large_rows, heads));
  hw.tiled_attention_bandwidth =
      of_read(r.tiled.bytes_per_second, fmt::format("{} tokens, {}", short_prompt, heads));
  hw.decode_attention_rate[DType::FP32] =
      of_peak(r.decode.flops_per_second, "a Slim K-cache of " + heads + alone);
  hw.decode_attention_bandwidth =
      of_read(r.decode.bytes_per_second, fmt::format("{} slots, {}{}", decode_slots, heads, alone));
  hw.memory_bandwidth_factor = of_read(r.product.bytes_per_second, "products of one row" + alone);
  hw.batched_matrix_rate[DType::FP32] =
      of_peak(r.batched_flops_per_second,
              fmt::format("scores and values of {} tokens, {}", large_rows, heads));
  hw.softmax_bandwidth =
      of_read(r.softmax_bytes_per_second, fmt::format("rows of {} scores, 24 heads", large_rows));
  hw.elementwise_bandwidth =
      of_read(r.elementwise_bytes_per_second,
              fmt::format("sums and products of the scores of {} tokens", large_rows));
  // Attention is computed in fp32, whatever products are.
  const double products = b.get("products in fp32").measurement().median();
  for (const auto& [dtype, type] :
       {std::pair{DType::BF16, "bf16"}, std::pair{DType::INT8, "int8"}}) {
    const double ratio =
        b.get(std::string("products in ") + type).measurement().median() / products;
    hw.peak_flops_per_second[dtype] = here(
        r.peak * ratio, fmt::format("fp32's, times {:.3g}: products of 512 rows in turn", ratio));
    hw.matrix_rate[dtype] = matrix_rate;
    for (auto* rate :
         {&hw.tiled_attention_rate, &hw.decode_attention_rate, &hw.batched_matrix_rate}) {
      (*rate)[dtype] = of_peak(rate->at(DType::FP32).value * r.peak / ratio, "as in fp32");
    }
  }
  for (const auto& [rows, flops_per_second] : r.product_flops_per_second) {
    add_share(matrix_rate.by_length, rows, of_peak(flops_per_second, "").value);
  }
  const double int8_rate = matrix_rate.value * hw.peak_flops_per_second[DType::INT8].value;
  for (const auto& reads : b.weight_reads()) {
    const bool int8 = reads.arithmetic == execute::Arithmetic::INT8;
    auto& of_type = (int8 ? hw.int8_weight_bandwidth : hw.weight_bandwidth)[reads.dtype];
    Formula fp32 = r.product;
    fp32.flops_per_second = r.product_flops_per_second.at(reads.rows);
    const roofline::Sourced factor = of_read(
        stored_rate(reads, fp32, int8 ? int8_rate : fp32.flops_per_second),
        fmt::format("products of {} row{}{}, in turn with fp32's{}",
                    fmt::join(b.rows_of_reads(), ", "), b.rows_of_reads().size() == 1 ? "" : "s",
                    int8 ? " in int8" : "", alone));
    if (reads.rows == b.rows_of_reads()[0]) of_type = factor;
    add_share(of_type.by_length, reads.rows, factor.value);
  }
  hw.overlap = here(1 - r.product.exposed, "products of 8, 16 and 32 rows");
  if (c.ranks > 1) {
    const auto share = [&](const char* name) {
      return std::clamp(b.get(name).median_s(), 0.001, 1.0);
    };
    hw.lockstep = here(share(lockstep_name),
                       "layers of 32 tokens, on all ranks at the same time; of one row: products, "
                       "beside those of a rank alone");
    hw.lockstep->by_length = {{1, share(decode_lockstep_name)}};
  }
  return hw;
}

/// Adds the link between ranks, measured with the messages of kvcast's runs.
void add_link(Calibration& c, const std::vector<execute::LinkSample>& samples) {
  Measurement latency{"message", "s", {}};
  Measurement bandwidth{"messages of 8 MiB", "bytes/s", {}};
  for (const execute::LinkSample& s : samples) {
    latency.rounds.push_back(s.latency_s);
    bandwidth.rounds.push_back(s.bytes_per_s);
  }
  const std::string how = fmt::format("kvcast calibrate, {}, ranks 0 and 1 of {}", c.date, c.ranks);
  c.hardware.links["mpi"] = {measured(bandwidth.median(), how, "messages of 8 MiB"),
                             measured(latency.median(), how, "half of a byte's way and back")};
  c.measurements.push_back(std::move(latency));
  c.measurements.push_back(std::move(bandwidth));
}

nlohmann::ordered_json statistics(const Measurement& m) {
  return {{"median", m.median()},
          {"low", m.low()},
          {"high", m.high()},
          {"unrest", m.unrest()},
          {"rounds", m.rounds.size()}};
}

}  // namespace

double Formula::time(const Sample& w) const {
  return roofline::busy_seconds(w.flops / flops_per_second, w.bytes / bytes_per_second, exposed);
}

double stored_rate(const CalibrationBench::WeightReads& reads, const Formula& fp32,
                   double flops_per_second) {
  // Of one weight:
  const double flops = 2.0 * static_cast<double>(reads.rows);
  const double bytes = bits_per_element(reads.dtype) / 8;
  const double fp32_bytes = sizeof(float);
  const double seconds =
      fp32.time({flops, fp32_bytes, 0, 1}) * bytes / fp32_bytes / reads.ratio.median();
  const double left = seconds - flops / flops_per_second;
  if (left <= 0) return std::numeric_limits<double>::infinity();
  return bytes / std::min(left / fp32.exposed, seconds);
}

void add_share(std::vector<roofline::FactorAt>& shares, std::uint64_t rows, double share) {
  if (!shares.empty()) {
    const double more = static_cast<double>(rows) / static_cast<double>(shares.back().length);
    share = std::min(share, 0.99 * shares.back().value * more);  // 1 %: beyond a file's digits
  }
  shares.push_back({rows, share});
}

double Measurement::median() const { return kvcast::median(rounds); }
double Measurement::low() const { return *std::min_element(rounds.begin(), rounds.end()); }
double Measurement::high() const { return *std::max_element(rounds.begin(), rounds.end()); }

double Measurement::unrest() const {
  if (rounds.size() < 2) return 0;
  const auto middle = rounds.begin() + static_cast<std::ptrdiff_t>(rounds.size() / 2);
  const double first = kvcast::median({rounds.begin(), middle});
  const double second = kvcast::median({middle, rounds.end()});
  // For any distribution, the number of n rounds below the true median is n/2 with a standard
  // deviation of sqrt(n)/2. So the true median lies between the rounds of these two ranks.
  std::vector<double> sorted = rounds;
  std::sort(sorted.begin(), sorted.end());
  const double half = static_cast<double>(sorted.size()) / 2;
  const double deviation = std::sqrt(static_cast<double>(sorted.size())) / 2;
  const auto low = static_cast<std::size_t>(std::max(1.0, std::floor(half - deviation)));
  const auto high =
      std::min(sorted.size(), static_cast<std::size_t>(std::ceil(half + deviation)) + 1);
  const double standard_error = (sorted[high - 1] - sorted[low - 1]) / 2;
  return std::max(std::abs(first - second), standard_error) / median();
}

const Measurement& Calibration::noisiest() const {
  return *std::max_element(
      measurements.begin(), measurements.end(),
      [](const Measurement& a, const Measurement& b) { return a.unrest() < b.unrest(); });
}

Calibration calibrate(const CalibrationOptions& options) {
  Calibration c;
  c.threads = execute::use_threads(options.threads);
  if (options.messenger != nullptr) c.ranks = options.messenger->ranks();
  c.processor = processor_name();
  c.date = fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
  CalibrationBench bench(options);
  const int rounds = options.rounds > 0 ? options.rounds : options.quick ? 3 : 16;
  bench.run(rounds);
  c.hardware = hardware_of(bench, c);
  for (const Samples& s : bench.all()) c.measurements.push_back(s.measurement());
  for (const auto& reads : bench.weight_reads()) c.measurements.push_back(reads.ratio);
  for (const Samples& s : bench.by_threads()) c.by_threads.push_back(s.measurement());
  c.matrix_rates = bench.grid();
  if (c.ranks > 1) add_link(c, execute::measure_link(*options.messenger, rounds));
  return c;
}

std::string to_json(const Calibration& c, const std::string& name) {
  roofline::Hardware hardware = c.hardware;
  hardware.name = name;
  nlohmann::ordered_json j = roofline::hardware_entries(hardware);
  nlohmann::ordered_json& calibration = j["calibration"];
  calibration = {{"version", roofline::calibration_version},
                 {"date", c.date},
                 {"processor", c.processor},
                 {"threads", c.threads}};
  if (c.ranks > 1) calibration["ranks"] = c.ranks;
  for (const auto& [key, list] :
       {std::pair{"measurements", &c.measurements}, std::pair{"by_threads", &c.by_threads}}) {
    for (const Measurement& m : *list) {
      nlohmann::ordered_json entry{{"name", m.name}, {"unit", m.unit}};
      entry.update(statistics(m));
      calibration[key].push_back(std::move(entry));
    }
  }
  for (const MatrixRate& r : c.matrix_rates) {
    nlohmann::ordered_json entry{
        {"rows", r.rows}, {"out", r.out}, {"in", r.in}, {"threads", r.threads}};
    entry["unit"] = r.rate.unit;
    entry.update(statistics(r.rate));
    calibration["matrix_rates"].push_back(std::move(entry));
  }
  return json_text(j, 2) + "\n";
}

}  // namespace kvcast::measure
