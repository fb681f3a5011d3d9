#include "roofline/calibration.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "model/config_reader.h"
#include "model/error.h"
#include "model/execute/machine_probe.h"
#include "model/execute/pass_timer.h"
#include "model/work.h"

namespace kvcast::roofline {
namespace {

using execute::PassSeconds;
using execute::PassSizes;
using execute::PassTimer;

/// Attention as wide as a half-billion-parameter model's, a feed-forward of another ratio.
constexpr const char* probe_config = R"({
  "model_type": "llama", "hidden_size": 1536, "num_hidden_layers": 3, "num_attention_heads": 24,
  "num_key_value_heads": 24, "intermediate_size": 4224, "vocab_size": 8192,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "hidden_act": "silu"})";

/// Products of these many rows; the first are decode steps of so many sequences.
constexpr std::uint64_t rows_of_decode[] = {1, 8, 16, 32};
constexpr std::uint64_t rows_of_prefill[] = {64, 128, 512};
/// Rows from which a product's time is its arithmetic's, and where loading takes about as long.
constexpr std::uint64_t large_rows = 512;
constexpr std::uint64_t ridge_rows[] = {16, 32};
/// The shortest prompt.
constexpr std::uint64_t short_prompt = rows_of_prefill[0];
/// Cache slots of the decode steps: far more than the caches of a core hold.
constexpr std::uint64_t decode_slots = 2048;
constexpr std::uint64_t decode_batch = 4;

double median_of(std::vector<double> values) {
  KVCAST_ASSERT(!values.empty());
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// What one kind of operator did in one pass: sums over its nodes.
struct Sample {
  double flops = 0;
  double bytes = 0;
  double seconds = 0;
};

/// One kind of operator at one size, over the rounds.
struct Samples {
  std::string name;
  Sample work;  ///< seconds unused
  std::vector<double> seconds;

  double median_s() const { return median_of(seconds); }
};

template <typename Wanted>
Sample sum_of(const Graph& graph, const SymbolValues& values, const PassSeconds& run,
              Wanted wanted) {
  Sample s;
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (!wanted(node)) continue;
    const Work w = work(graph, node);
    s.flops += static_cast<double>(w.flops.at(values));
    s.bytes += static_cast<double>(w.bytes().at(values));
    s.seconds += run.nodes[n];
  }
  return s;
}

bool is_linear(const Node& node) { return std::holds_alternative<Linear>(node.op); }
bool is_attention(const Node& node) { return std::holds_alternative<TiledAttention>(node.op); }
bool is_small(const Node& node) {
  return std::holds_alternative<Elementwise>(node.op) || std::holds_alternative<RmsNorm>(node.op) ||
         std::holds_alternative<Rope>(node.op);
}

/// The rates of the roofline's formula: time = longer + exposed · shorter of compute and memory.
struct Formula {
  double flops_per_second = 0;
  double bytes_per_second = 0;
  double exposed = 0;

  double time(const Sample& w) const {
    const double compute = w.flops / flops_per_second;
    const double memory = w.bytes / bytes_per_second;
    return std::max(compute, memory) + exposed * std::min(compute, memory);
  }
};

/// Solves the formula for its rates, each from the sample that depends on it most: repeated, since
/// each depends a little on the others.
void solve_rates(Formula& f, const Samples& computing, const Samples& loading) {
  f.flops_per_second = computing.work.flops / computing.median_s();
  f.bytes_per_second = loading.work.bytes / loading.median_s();
  for (int i = 0; i < 50; ++i) {
    const double hidden = f.exposed * loading.work.flops / f.flops_per_second;
    f.bytes_per_second = loading.work.bytes / std::max(loading.median_s() - hidden, 1e-12);
    const double loaded = f.exposed * computing.work.bytes / f.bytes_per_second;
    f.flops_per_second = computing.work.flops / std::max(computing.median_s() - loaded, 1e-12);
  }
}

/// The exposed part that products at the ridge show.
double exposed_part(const Formula& f, const std::vector<const Samples*>& ridge) {
  std::vector<double> parts;
  for (const Samples* s : ridge) {
    const double compute = s->work.flops / f.flops_per_second;
    const double memory = s->work.bytes / f.bytes_per_second;
    const double rest = s->median_s() - std::max(compute, memory);
    parts.push_back(std::clamp(rest / std::min(compute, memory), 0.0, 0.99));
  }
  return median_of(parts);
}

class Bench {
 public:
  explicit Bench(const CalibrationOptions& options)
      : options_(options),
        model_(read_probe()),
        checkpoint_(model_, 1),
        plain_(checkpoint_, {}),
        slim_(checkpoint_, {.methods = parse_methods("slim:option=kcache")}) {}

  void run(int rounds) {
    const std::uint64_t all = static_cast<std::uint64_t>(rounds) * steps_of_a_round;
    for (int round = 0; round < rounds; ++round) {
      step(all);
      at("FMA").seconds.push_back(execute::measure_fma_rate());
      step(all);
      at("streaming read").seconds.push_back(execute::measure_read_bandwidth());
      for (const std::uint64_t rows : rows_of_decode) {
        step(all);
        const PassSizes sizes{rows, 1, 64};
        const PassSeconds run = plain_.decode(sizes, 1).front();
        add(fmt::format("linear {} rows", rows), plain_, false, sizes, run, is_linear);
        if (rows == 1) add_latency(sizes, run);
      }
      for (const std::uint64_t rows : rows_of_prefill) {
        step(all);
        const PassSizes sizes{1, rows, rows};
        const PassSeconds run = plain_.prefill(sizes, 1).front();
        add(fmt::format("linear {} rows", rows), plain_, true, sizes, run, is_linear);
        add(fmt::format("tiled attention {} tokens", rows), plain_, true, sizes, run, is_attention);
      }
      const PassSizes sizes{decode_batch, 1, decode_slots};
      step(all);
      add("decode attention", plain_, false, sizes, plain_.decode(sizes, 1).front(), is_attention);
      step(all);
      add("decode attention, slim K-cache", slim_, false, sizes, slim_.decode(sizes, 1).front(),
          is_attention);
    }
  }

  const Samples& get(const std::string& name) const {
    const auto found = std::find_if(samples_.begin(), samples_.end(),
                                    [&](const Samples& s) { return s.name == name; });
    KVCAST_ASSERT(found != samples_.end());
    return *found;
  }
  const std::vector<Samples>& all() const { return samples_; }

 private:
  static constexpr std::uint64_t steps_of_a_round =
      2 + std::size(rows_of_decode) + std::size(rows_of_prefill) + 2;

  static Architecture read_probe() {
    return read_config(nlohmann::json::parse(probe_config), "calibration-probe", "the probe model");
  }
  void step(std::uint64_t all) {
    if (options_.on_step) options_.on_step(done_, all);
    ++done_;
  }
  Samples& at(const std::string& name) {
    const auto found = std::find_if(samples_.begin(), samples_.end(),
                                    [&](const Samples& s) { return s.name == name; });
    if (found != samples_.end()) return *found;
    samples_.push_back({name, {}, {}});
    return samples_.back();
  }
  template <typename Wanted>
  void add(const std::string& name, const PassTimer& timer, bool prefill, const PassSizes& sizes,
           const PassSeconds& run, Wanted wanted) {
    const Recording& r = timer.recording();
    const SymbolValues values = r.symbols.resolve({sizes.batch, sizes.prompt_len, sizes.kv_len});
    const Sample s = sum_of(prefill ? r.prefill : r.decode, values, run, wanted);
    Samples& samples = at(name);
    samples.work = s;
    samples.seconds.push_back(s.seconds);
  }
  /// Constant seconds of an operator: of the smallest ones, and of the loop around all.
  void add_latency(const PassSizes& sizes, const PassSeconds& run) {
    const Graph& graph = plain_.recording().decode;
    const SymbolValues values =
        plain_.recording().symbols.resolve({sizes.batch, sizes.prompt_len, sizes.kv_len});
    const Sample small = sum_of(graph, values, run, is_small);
    const auto count =
        static_cast<double>(std::count_if(graph.nodes().begin(), graph.nodes().end(), is_small));
    double nodes = 0;
    for (const double s : run.nodes) nodes += s;
    const double around = (run.total - nodes) / static_cast<double>(graph.nodes().size());
    at("operator").seconds.push_back(small.seconds / count + around);
  }

  const CalibrationOptions& options_;
  Architecture model_;
  Checkpoint checkpoint_;
  PassTimer plain_;
  PassTimer slim_;
  std::vector<Samples> samples_;
  std::uint64_t done_ = 0;
};

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
      return line.substr(line.find(": ") + 2);
    }
  }
  return "unknown processor";
}

double physical_memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
}

/// The last-level cache that the first processor shares, or what the systems that do not say have
/// at least. Of a part of a machine sysconf gives the whole machine's.
double on_chip_memory() {
  double bytes = 1 << 20;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    double kib = 0;
    if (file >> kib) bytes = std::max(bytes, kib * 1024);
  }
  return bytes;
}

Sourced measured(double value, const std::string& reference, const std::string& note = "") {
  return {value, Source::Measured, reference, note};
}

Hardware hardware_of(const Bench& b, const Calibration& c) {
  const std::string how = fmt::format("kvcast calibrate, {}, {} threads", c.date, c.threads);
  const double peak = b.get("FMA").median_s();
  const double read = b.get("streaming read").median_s();

  // Products: rates and overlap together.
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
  Formula decode;
  decode.exposed = product.exposed;
  solve_rates(decode, b.get("decode attention, slim K-cache"), b.get("decode attention"));
  // Of a short prompt most of the time goes into ordering keys and values, which grows with the
  // tokens; the products grow with their square.
  Formula tiled;
  tiled.exposed = product.exposed;
  solve_rates(tiled, b.get(fmt::format("tiled attention {} tokens", large_rows)),
              b.get(fmt::format("tiled attention {} tokens", short_prompt)));

  const auto share = [&](double rate, double of) { return std::clamp(rate / of, 0.001, 1.0); };
  Hardware hw;
  hw.description = fmt::format("{}, {} threads, as measured", c.processor, c.threads);
  hw.kind = "cpu";
  hw.peak_flops_per_second[DType::FP32] = measured(peak, how, "multiply-adds in registers");
  hw.vector_flops_per_second = measured(peak, how, "multiply-adds in registers");
  hw.memory_bandwidth = measured(read, how, "reading 256 MiB");
  hw.memory_capacity = measured(physical_memory(), "the operating system");
  hw.on_chip_memory_capacity =
      measured(on_chip_memory(), "the operating system", "the last-level cache");
  hw.operator_latency = measured(b.get("operator").median_s(), how,
                                 "norms, rotations and sums of one token, and the loop around");
  hw.host_operator_latency = measured(0, "on a CPU the host is the device");
  hw.matrix_rate[DType::FP32] = measured(share(product.flops_per_second, peak), how,
                                         fmt::format("products of {} rows", large_rows));
  hw.tiled_attention_rate[DType::FP32] =
      measured(share(tiled.flops_per_second, peak), how,
               fmt::format("{} tokens, 24 heads of 64", large_rows));
  hw.tiled_attention_bandwidth = measured(share(tiled.bytes_per_second, read), how,
                                          fmt::format("{} tokens, 24 heads of 64", short_prompt));
  hw.decode_attention_rate[DType::FP32] =
      measured(share(decode.flops_per_second, peak), how, "a Slim K-cache of 24 heads of 64");
  hw.decode_attention_bandwidth = measured(share(decode.bytes_per_second, read), how,
                                           fmt::format("{} slots, 24 heads of 64", decode_slots));
  hw.memory_bandwidth_factor =
      measured(share(product.bytes_per_second, read), how, "products of one row");
  hw.overlap = measured(1 - product.exposed, how, "products of 16 and 32 rows");
  return hw;
}

}  // namespace

double Measurement::median() const { return median_of(rounds); }

double Measurement::unrest() const {
  if (rounds.size() < 2) return 0;
  const auto middle = rounds.begin() + static_cast<std::ptrdiff_t>(rounds.size() / 2);
  const double first = median_of({rounds.begin(), middle});
  const double second = median_of({middle, rounds.end()});
  return std::abs(first - second) / median();
}

const Measurement& Calibration::noisiest() const {
  return *std::max_element(
      measurements.begin(), measurements.end(),
      [](const Measurement& a, const Measurement& b) { return a.unrest() < b.unrest(); });
}

Calibration calibrate(const CalibrationOptions& options) {
  Calibration c;
  c.threads = execute::use_threads(options.threads);
  c.processor = processor_name();
  c.date = fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
  Bench bench(options);
  bench.run(options.quick ? 4 : 16);
  c.hardware = hardware_of(bench, c);
  for (const Samples& s : bench.all()) {
    const bool rate = s.work.bytes == 0;
    const char* unit = s.name == "operator"         ? "s"
                       : s.name == "streaming read" ? "bytes/s"
                                                    : "FLOP/s";
    Measurement m{s.name, unit, s.seconds};
    if (!rate) {
      for (double& x : m.rounds) x = s.work.flops / x;
    }
    c.measurements.push_back(std::move(m));
  }
  return c;
}

std::string to_json(const Calibration& c, const std::string& name) {
  using nlohmann::ordered_json;
  const auto sourced = [](const Sourced& s, ordered_json value) {
    ordered_json j{{"value", std::move(value)},
                   {"source", kvcast::roofline::name(s.source)},
                   {"reference", s.reference}};
    if (!s.note.empty()) j["note"] = s.note;
    return j;
  };
  const auto quantity = [&](const Sourced& s, double unit, const char* unit_name) {
    return sourced(s, fmt::format("{:.5g} {}", s.value / unit, unit_name));
  };
  const auto factor = [&](const Sourced& s) { return sourced(s, std::round(s.value * 1e4) / 1e4); };
  const Hardware& hw = c.hardware;
  ordered_json j{{"name", name}, {"description", hw.description}, {"kind", hw.kind}};
  j["peak_flops_per_second"]["fp32"] =
      quantity(hw.peak_flops_per_second.at(DType::FP32), 1e9, "GFLOP/s");
  j["vector_flops_per_second"] = quantity(hw.vector_flops_per_second, 1e9, "GFLOP/s");
  j["memory_bandwidth"] = quantity(hw.memory_bandwidth, 1e9, "GB/s");
  j["memory_capacity"] = quantity(hw.memory_capacity, 1e9, "GB");
  j["on_chip_memory_capacity"] = quantity(hw.on_chip_memory_capacity, 1 << 20, "MiB");
  j["links"] = ordered_json::object();
  j["latency"]["operator"] = quantity(hw.operator_latency, 1e-6, "us");
  j["latency"]["host_operator"] = quantity(hw.host_operator_latency, 1e-6, "us");
  ordered_json& factors = j["factors"];
  factors["matrix_rate"]["fp32"] = factor(hw.matrix_rate.at(DType::FP32));
  factors["tiled_attention_rate"]["fp32"] = factor(hw.tiled_attention_rate.at(DType::FP32));
  factors["tiled_attention_bandwidth"] = factor(*hw.tiled_attention_bandwidth);
  factors["decode_attention_rate"]["fp32"] = factor(hw.decode_attention_rate.at(DType::FP32));
  factors["decode_attention_bandwidth"] = factor(*hw.decode_attention_bandwidth);
  factors["memory_bandwidth"] = factor(*hw.memory_bandwidth_factor);
  factors["overlap"] = factor(*hw.overlap);

  ordered_json& calibration = j["calibration"];
  calibration = {{"date", c.date}, {"processor", c.processor}, {"threads", c.threads}};
  for (const Measurement& m : c.measurements) {
    const auto [low, high] = std::minmax_element(m.rounds.begin(), m.rounds.end());
    calibration["measurements"].push_back({{"name", m.name},
                                           {"unit", m.unit},
                                           {"median", m.median()},
                                           {"low", *low},
                                           {"high", *high},
                                           {"unrest", m.unrest()},
                                           {"rounds", m.rounds.size()}});
  }
  return j.dump(2) + "\n";
}

}  // namespace kvcast::roofline
