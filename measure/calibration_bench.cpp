#include "measure/calibration_bench.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/execute/machine_probe.h"
#include "model/execute/messenger.h"
#include "model/execute/stored_blocks.h"
#include "model/execute/weight_reads.h"
#include "model/families/config_reader.h"
#include "model/graph/work.h"

namespace kvcast::measure {
namespace {

using execute::PassSeconds;
using execute::PassSizes;

/// Attention as wide as in a model of half a billion parameters, with another MLP ratio.
constexpr const char* probe_config = R"({
  "model_type": "llama", "hidden_size": 1536, "num_hidden_layers": 3, "num_attention_heads": 24,
  "num_key_value_heads": 24, "intermediate_size": 4224, "vocab_size": 8192,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "hidden_act": "silu"})";

/// Narrow layers with the smallest operators, and products between them that push these out of a
/// core's caches, as in real models. Many layers, so that work done once a pass counts little.
constexpr const char* narrow_config = R"({
  "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 16, "num_attention_heads": 4,
  "num_key_value_heads": 4, "intermediate_size": 4096, "vocab_size": 1024,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "hidden_act": "silu"})";

/// Fits the caches of one core (L2 of today's processors: 0.5 to 2 MiB).
constexpr std::size_t cached_bytes_of_a_thread = std::size_t{256} << 10;

/// Seconds of FMAs before and after each benchmark: about ten of the probe's samples.
constexpr double fma_seconds = 0.01;

/// Decode steps of attention in a round, which are short and noisy.
constexpr int attention_repeats = 3;

/// Prompt tokens for which a layer takes about as long as between two exchanges of a short prompt;
/// and prompts in a sample, since slow moments are rare.
constexpr std::uint64_t lockstep_rows = 32;
constexpr int lockstep_repeats = 4;

/// Decode steps with one row in a sample; their mean counts, as in a time per token.
constexpr int step_repeats = 4;

Architecture read_probe(const char* config) {
  return read_config(nlohmann::json::parse(config), "calibration-probe", "the probe model");
}

Sample sum_of(const TimedPass& pass, const std::function<bool(const Node&)>& wanted) {
  Sample s;
  for (std::size_t n = 0; n < pass.graph->nodes().size(); ++n) {
    const Node& node = pass.graph->nodes()[n];
    if (!wanted(node)) continue;
    const Work w = work(*pass.graph, node);
    s.flops += static_cast<double>(w.flops.at(pass.values));
    s.bytes += static_cast<double>(w.bytes().at(pass.values));
    s.seconds += pass.seconds.nodes[n];
    ++s.operators;
  }
  return s;
}

bool is_linear(const Node& node) { return std::holds_alternative<Linear>(node.op); }

/// Seconds of each layer, of one run after the other.
std::vector<double> layer_seconds(const Graph& graph, const std::vector<PassSeconds>& runs) {
  std::vector<double> seconds;
  for (const PassSeconds& run : runs) {
    int layer = no_layer;
    for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
      const Node& node = graph.nodes()[n];
      if (node.layer == no_layer) continue;
      if (node.layer != layer) seconds.push_back(0);
      layer = node.layer;
      seconds.back() += run.nodes[n];
    }
  }
  return seconds;
}

/// Seconds of each product, of one run after the other.
std::vector<double> product_seconds(const Graph& graph, const std::vector<PassSeconds>& runs) {
  std::vector<double> seconds;
  for (const PassSeconds& run : runs) {
    for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
      if (is_linear(graph.nodes()[n])) seconds.push_back(run.nodes[n]);
    }
  }
  return seconds;
}

PassSeconds mean_of(const std::vector<PassSeconds>& runs) {
  PassSeconds mean = runs.front();
  for (std::size_t r = 1; r < runs.size(); ++r) {
    for (std::size_t n = 0; n < mean.nodes.size(); ++n) mean.nodes[n] += runs[r].nodes[n];
    mean.between += runs[r].between;
  }
  const auto count = static_cast<double>(runs.size());
  for (double& seconds : mean.nodes) seconds /= count;
  mean.between /= count;
  return mean;
}

SymbolValues values_of(const execute::PassTimer& timer, const PassSizes& sizes) {
  return timer.recording().symbols.resolve({sizes.batch, sizes.prompt_len, sizes.kv_len});
}

/// The mean of several decode steps.
TimedPass timed_decode(execute::PassTimer& timer, const PassSizes& sizes, int repeats) {
  return {&timer.recording().decode(), values_of(timer, sizes),
          mean_of(timer.decode(sizes, repeats))};
}

TimedPass timed_prefill(execute::PassTimer& timer, std::uint64_t tokens) {
  const PassSizes sizes{1, tokens, tokens};
  return {&timer.recording().prefill(), values_of(timer, sizes), timer.prefill(sizes, 1).front()};
}

bool is_attention(const Node& node) { return std::holds_alternative<TiledAttention>(node.op); }
/// Operators whose latency is measured.
bool is_small(const Node& node) {
  return std::holds_alternative<Elementwise>(node.op) || std::holds_alternative<RmsNorm>(node.op) ||
         std::holds_alternative<Rope>(node.op) || std::holds_alternative<RowMean>(node.op) ||
         std::holds_alternative<RotateHalf>(node.op);
}
/// Adds and scales. Those of attention scores have the shape [batch, heads, tokens, keys].
bool is_sum_or_product(const Graph& graph, const Node& node, bool of_scores) {
  const auto* op = std::get_if<Elementwise>(&node.op);
  if (op == nullptr || (graph.tensor(node.output()).shape.size() == 4) != of_scores) return false;
  return op->function == Function::Add || op->function == Function::Multiply ||
         op->function == Function::Scale;
}
bool is_softmax(const Node& node) { return std::holds_alternative<Softmax>(node.op); }
bool is_attention_product(const Node& node) {
  return std::holds_alternative<AttentionScores>(node.op) ||
         std::holds_alternative<AttentionValues>(node.op);
}

}  // namespace

double lockstep(const std::vector<std::vector<double>>& alone,
                const std::vector<std::vector<double>>& together) {
  double mean = 0;
  double slowest = 0;
  for (std::size_t step = 0; step < together.front().size(); ++step) {
    double longest = 0;
    for (std::size_t rank = 0; rank < together.size(); ++rank) {
      mean += alone[rank][step] / static_cast<double>(alone.size());
      longest = std::max(longest, together[rank][step]);
    }
    slowest += longest;
  }
  return mean / slowest;
}

double Samples::median_s() const { return Measurement{name, unit, seconds}.median(); }

void Samples::scale_to(double fma_rate) {
  for (std::size_t i = 0; i < fma_rates.size(); ++i) seconds[i] *= fma_rates[i] / fma_rate;
  fma_rates.clear();
}

Measurement Samples::measurement() const {
  Measurement m{name, unit, seconds};
  if (unit == "s") return m;
  const double amount = unit == "FLOP/s" ? work.flops : work.bytes;
  if (amount > 0) {
    for (double& x : m.rounds) x = amount / x;
  }
  return m;
}

CalibrationBench::CalibrationBench(const CalibrationOptions& options)
    : options_(options),
      threads_(execute::use_threads(options.threads)),
      checkpoint_(read_probe(probe_config), 1),
      plain_(checkpoint_, {}),
      slim_(checkpoint_, {.methods = parse_methods("slim:option=kcache")}),
      eager_(plain_, Kernels::Eager),
      narrow_checkpoint_(read_probe(narrow_config), 1),
      narrow_plain_(narrow_checkpoint_, {}),
      narrow_eager_(narrow_plain_, Kernels::Eager) {}

void CalibrationBench::run(int rounds) {
  const std::vector<Step> round = steps();
  std::vector<std::pair<DType, execute::Arithmetic>> stored;
  for (const DType dtype : execute::stored_types()) {
    for (const auto arithmetic : {execute::Arithmetic::FP32, execute::Arithmetic::INT8}) {
      stored.emplace_back(dtype, arithmetic);
    }
  }
  const std::uint64_t all = static_cast<std::uint64_t>(rounds) * round.size() + stored.size();
  std::uint64_t done = 0;
  for (int r = 0; r < rounds; ++r) {
    if (options_.messenger != nullptr) execute::meet(*options_.messenger);
    double before = execute::measure_fma_rate(fma_seconds);
    for (const Step& step : round) {
      if (options_.on_step) options_.on_step(done, all);
      ++done;
      step();
      const double after = execute::measure_fma_rate(fma_seconds);
      note_fma_rate((before + after) / 2);
      before = after;
    }
  }
  // Of several ranks the first one's file has these, which it measures alone.
  const bool is_first = options_.messenger == nullptr || options_.messenger->rank() == 0;
  std::optional<execute::WeightReads> reads;
  for (const auto& [dtype, arithmetic] : stored) {
    if (options_.on_step) options_.on_step(done, all);
    ++done;
    if (!is_first) continue;
    if (!reads) reads.emplace();
    time_weight_reads(*reads, dtype, arithmetic, rounds);
  }
  if (options_.messenger != nullptr) execute::meet(*options_.messenger);
  const double usual = get("FMA").median_s();
  for (Samples& s : samples_) s.scale_to(usual);
}

/// Runs the step on one rank after the other. Decode steps have the memory to themselves too.
void CalibrationBench::in_turns(const Step& step) const {
  if (options_.messenger == nullptr) return step();
  execute::Messenger& messenger = *options_.messenger;
  for (std::size_t rank = 0; rank < messenger.ranks(); ++rank) {
    execute::meet(messenger);
    if (rank == messenger.rank()) step();
  }
  execute::meet(messenger);
}

/// Notes the rate for the samples of the last step.
void CalibrationBench::note_fma_rate(double rate) {
  for (Samples& s : samples_) {
    if (s.computing) s.fma_rates.resize(s.seconds.size(), rate);
  }
}

std::vector<CalibrationBench::Step> CalibrationBench::steps() {
  std::vector<Step> list;
  list.push_back([this] {
    at("FMA", "FLOP/s").seconds.push_back(execute::measure_fma_rate());
    at("streaming read", "bytes/s").seconds.push_back(execute::measure_read_bandwidth());
  });
  list.push_back([this] {
    const std::size_t block = cached_bytes_of_a_thread * static_cast<std::size_t>(threads_);
    at("read in cache", "bytes/s").seconds.push_back(execute::measure_read_bandwidth(0.02, block));
  });
  list.push_back([this] { in_turns([this] { time_decode(1, threads_); }); });
  list.push_back([this] {
    for (const auto& [name, arithmetic] : product_arithmetic) {
      at(name, "FLOP/s").seconds.push_back(execute::measure_product_rate(arithmetic));
    }
  });
  for (const std::uint64_t rows : rows_of_decode) {
    list.push_back([this, rows] { time_decode(rows, threads_); });
  }
  for (const std::uint64_t rows : rows_of_prefill) {
    list.push_back([this, rows] { time_prefill(rows, threads_); });
  }
  const auto attention = [this](execute::PassTimer& timer, const char* name, bool computing) {
    const PassSizes sizes{decode_batch, 1, decode_slots};
    for (const PassSeconds& run : timer.decode(sizes, attention_repeats)) {
      add(name, "FLOP/s", {&timer.recording().decode(), values_of(timer, sizes), run}, is_attention)
          .computing = computing;
    }
  };
  list.push_back([=, this] { in_turns([&] { attention(plain_, "decode attention", false); }); });
  list.push_back(
      [=, this] { in_turns([&] { attention(slim_, "decode attention, slim K-cache", true); }); });
  list.push_back([this] {
    const TimedPass pass = timed_prefill(eager_, large_rows);
    add(fmt::format("attention products {} tokens", large_rows), "FLOP/s", pass,
        is_attention_product)
        .computing = true;
    add(fmt::format("softmax {} tokens", large_rows), "bytes/s", pass, is_softmax);
    for (const bool of_scores : {true, false}) {
      add(fmt::format("element-wise {} tokens, {}", large_rows, of_scores ? "scores" : "states"),
          "bytes/s", pass,
          [&](const Node& node) { return is_sum_or_product(*pass.graph, node, of_scores); });
    }
  });
  if (options_.messenger != nullptr) list.push_back([this] { time_lockstep(); });
  add_fewer_threads(list);
  return list;
}

std::span<const std::size_t> CalibrationBench::rows_of_reads() const {
  // Of the last number weights are unpacked once for all rows, as they are for longer prompts.
  static constexpr std::size_t rows[] = {1, 2, 4, 8, 64};
  return std::span(rows).first(options_.quick ? 1 : std::size(rows));
}

void CalibrationBench::time_weight_reads(execute::WeightReads& reads, DType dtype,
                                         execute::Arithmetic arithmetic, int rounds) {
  const std::vector<std::vector<double>> ratios =
      reads.measure(dtype, arithmetic, rows_of_reads(), rounds);
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    const std::size_t rows = rows_of_reads()[i];
    const std::string name = fmt::format(
        "weights in {}{}, {} row{}, over fp32", kvcast::name(dtype),
        arithmetic == execute::Arithmetic::INT8 ? " in int8" : "", rows, rows == 1 ? "" : "s");
    weight_reads_.push_back({dtype, arithmetic, rows, {name, "", ratios[i]}});
  }
}

void CalibrationBench::time_lockstep() {
  const PassSizes prompt{1, lockstep_rows, lockstep_rows};
  execute::meet(*options_.messenger);
  const std::vector<double> layers = layer_seconds(narrow_plain_.recording().prefill(),
                                                   narrow_plain_.prefill(prompt, lockstep_repeats));
  at(lockstep_name, "").seconds.push_back(lockstep_of_ranks(layers, layers));

  const PassSizes token{1, 1, 64};
  const auto products = [&] {
    return product_seconds(plain_.recording().decode(), plain_.decode(token, step_repeats));
  };
  std::vector<double> alone;
  in_turns([&] { alone = products(); });
  at(decode_lockstep_name, "").seconds.push_back(lockstep_of_ranks(alone, products()));
}

double CalibrationBench::lockstep_of_ranks(const std::vector<double>& alone,
                                           const std::vector<double>& together) {
  execute::Messenger& messenger = *options_.messenger;
  double share = 1;
  if (messenger.rank() == 0) {
    std::vector<std::vector<double>> all_alone(messenger.ranks(), alone);
    std::vector<std::vector<double>> all_together(messenger.ranks(), together);
    for (std::size_t r = 1; r < messenger.ranks(); ++r) {
      for (std::vector<double>* own : {&all_alone[r], &all_together[r]}) {
        execute::receive_bytes(messenger, r, own->data(), own->size() * sizeof(double));
      }
    }
    share = lockstep(all_alone, all_together);
    for (std::size_t r = 1; r < messenger.ranks(); ++r) {
      execute::send_bytes(messenger, r, &share, sizeof(share));
    }
  } else {
    for (const std::vector<double>* own : {&alone, &together}) {
      execute::send_bytes(messenger, 0, own->data(), own->size() * sizeof(double));
    }
    execute::receive_bytes(messenger, 0, &share, sizeof(share));
  }
  return share;
}

/// Adds products and roofs with half the threads, a quarter, ... and one. Not with several ranks,
/// which share the processors.
void CalibrationBench::add_fewer_threads(std::vector<Step>& list) {
  if (options_.messenger != nullptr) return;
  for (int threads = threads_ / 2; threads >= 1; threads /= 2) {
    list.push_back([this, threads] {
      execute::use_threads(threads);
      at(by_threads_, fmt::format("FMA, {} threads", threads), "FLOP/s")
          .seconds.push_back(execute::measure_fma_rate());
      at(by_threads_, fmt::format("streaming read, {} threads", threads), "bytes/s")
          .seconds.push_back(execute::measure_read_bandwidth(0.05));
      time_decode(1, threads);
      time_prefill(options_.quick ? rows_of_prefill[0] : large_rows, threads);
      execute::use_threads(threads_);
    });
  }
}

void CalibrationBench::time_decode(std::uint64_t rows, int threads) {
  const PassSizes sizes{rows, 1, 64};
  const TimedPass pass = timed_decode(plain_, sizes, rows == 1 ? step_repeats : 1);
  if (threads == threads_) {
    add(fmt::format("linear {} rows", rows), "FLOP/s", pass, is_linear);
    if (rows == 1) add_latencies(sizes);
  }
  add_products(pass, rows, threads);
}

void CalibrationBench::time_prefill(std::uint64_t rows, int threads) {
  const TimedPass pass = timed_prefill(plain_, rows);
  if (threads == threads_) {
    add(fmt::format("linear {} rows", rows), "FLOP/s", pass, is_linear).computing = true;
    add(fmt::format("tiled attention {} tokens", rows), "FLOP/s", pass, is_attention).computing =
        true;
  }
  add_products(pass, rows, threads);
}

const Samples& CalibrationBench::get(const std::string& name) const {
  const auto found = std::find_if(samples_.begin(), samples_.end(),
                                  [&](const Samples& s) { return s.name == name; });
  KVCAST_ASSERT(found != samples_.end());
  return *found;
}

Samples& CalibrationBench::at(std::vector<Samples>& list, const std::string& name,
                              const char* unit) {
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const Samples& s) { return s.name == name; });
  if (found != list.end()) return *found;
  list.push_back({name, unit, {}, {}, false, {}});
  return list.back();
}

Samples& CalibrationBench::add(const std::string& name, const char* unit, const TimedPass& pass,
                               const Wanted& wanted) {
  Samples& samples = at(name, unit);
  samples.work = sum_of(pass, wanted);
  samples.seconds.push_back(samples.work.seconds);
  return samples;
}

void CalibrationBench::add_latency(const char* name, const TimedPass& pass, const Wanted& wanted) {
  Samples& samples = add(name, "s", pass, wanted);
  Sample& s = samples.work;
  s = {s.flops / s.operators, s.bytes / s.operators, s.seconds / s.operators, 1};
  samples.seconds.back() = s.seconds + pass.seconds.between;
}

/// Adds the rate of each weight shape. The last product of a prefill has one row and is skipped.
void CalibrationBench::add_products(const TimedPass& pass, std::uint64_t rows, int threads) {
  const auto shape_of = [&](const Node& node) {
    const auto& shape = pass.graph->tensor(node.inputs[1]).shape;
    return std::pair(shape[0].at(pass.values), shape[1].at(pass.values));
  };
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  for (const Node& node : pass.graph->nodes()) {
    if (!is_linear(node)) continue;
    const auto shape = shape_of(node);
    const auto [out, in] = shape;
    const std::uint64_t flops = work(*pass.graph, node).flops.at(pass.values);
    if (flops != 2 * rows * out * in || !seen.insert(shape).second) continue;
    const Sample s = sum_of(
        pass, [&](const Node& other) { return is_linear(other) && shape_of(other) == shape; });
    const std::string name = fmt::format("product {}x{}x{}, {} threads", rows, out, in, threads);
    auto found = std::find_if(grid_.begin(), grid_.end(),
                              [&](const MatrixRate& g) { return g.rate.name == name; });
    if (found == grid_.end()) {
      found = grid_.insert(grid_.end(), {rows, out, in, threads, {name, "FLOP/s", {}}});
    }
    found->rate.rounds.push_back(s.flops / s.seconds);
  }
}

/// Adds the latencies of operators, measured on the smallest ones of a decode step.
void CalibrationBench::add_latencies(const PassSizes& sizes) {
  const std::uint64_t hidden_size = narrow_plain_.recording().model.hidden_size;
  const auto add_small = [&](const char* name, const TimedPass& pass) {
    add_latency(name, pass, [&](const Node& node) {
      const TensorInfo& out = pass.graph->tensor(node.output());
      return is_small(node) && out.elements().at(pass.values) <= hidden_size;
    });
  };
  const TimedPass pass = timed_decode(narrow_plain_, sizes, step_repeats);
  add_small("operator", pass);
  add_latency("product", pass, [&](const Node& node) {
    if (!is_linear(node)) return false;
    const auto& weight = pass.graph->tensor(node.inputs[1]).shape;
    return weight[0].at(pass.values) == hidden_size && weight[1].at(pass.values) == hidden_size;
  });
  add_latency("decode attention operator", pass, is_attention);
  add_small("element-wise operator", timed_decode(narrow_eager_, sizes, step_repeats));
}

}  // namespace kvcast::measure
