/// The micro-benchmarks of `kvcast calibrate`. calibration.cpp makes a hardware file of their
/// times.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "measure/calibration.h"
#include "model/config/architecture.h"
#include "model/execute/narrow_product.h"
#include "model/execute/pass_timer.h"

namespace kvcast::execute {
class WeightReads;
}

namespace kvcast::measure {

/// Rows of products of prompts, and of decode steps of so many sequences (and of one).
inline constexpr std::uint64_t rows_of_prefill[] = {64, 128, 512};
inline constexpr std::uint64_t rows_of_decode[] = {2, 4, 8, 16, 32};
/// Rows of products that are bound by arithmetic, and of those near the ridge of the roofline,
/// which decode steps have.
inline constexpr std::uint64_t large_rows = 512;
inline constexpr std::uint64_t ridge_rows[] = {8, 16, 32};
/// The shortest prompt.
inline constexpr std::uint64_t short_prompt = rows_of_prefill[0];
/// Cache slots of the decode steps: far more than the caches of a core hold.
inline constexpr std::uint64_t decode_slots = 1024;
inline constexpr std::uint64_t decode_batch = 1;

/// Names of the rates of products, in turn in each arithmetic.
struct ProductArithmetic {
  const char* name;
  execute::Arithmetic arithmetic;
};
inline constexpr ProductArithmetic product_arithmetic[] = {
    {"products in fp32", execute::Arithmetic::FP32},
    {"products in bf16", execute::Arithmetic::BF16},
    {"products in int8", execute::Arithmetic::INT8}};

/// Names of the shares of lockstep: of a short prompt, and of decode steps.
inline constexpr const char* lockstep_name = "ranks in lockstep";
inline constexpr const char* decode_lockstep_name = "decode steps in lockstep";

/// What one kind of operator did in one pass: sums over its nodes.
struct Sample {
  double flops = 0;
  double bytes = 0;
  double seconds = 0;
  double operators = 0;
};

/// The rates of busy_seconds (roofline/op_cost.h).
struct Formula {
  double flops_per_second = 0;
  double bytes_per_second = 0;
  double exposed = 0;

  double time(const Sample& work) const;
};

/// One kind of operator at one size, over the rounds.
struct Samples {
  std::string name;
  std::string unit;  ///< "FLOP/s", "bytes/s", "s"
  Sample work;       ///< seconds unused; zero where `seconds` holds rates
  std::vector<double> seconds;
  /// For operators bound by arithmetic: the FMA rate measured next to each of `seconds`.
  bool computing = false;
  std::vector<double> fma_rates = {};

  double median_s() const;
  /// Scales the seconds that have an FMA rate to this rate, as if the clock had not changed.
  void scale_to(double fma_rate);
  /// In `unit`.
  Measurement measurement() const;
};

/// A pass that was timed, at its sizes.
struct TimedPass {
  const Graph* graph = nullptr;
  SymbolValues values;
  execute::PassSeconds seconds;
};

/// Ranks down, steps across, as many of each: the sum of the ranks' mean seconds alone over the sum
/// of the slowest one's together, step by step.
double lockstep(const std::vector<std::vector<double>>& alone,
                const std::vector<std::vector<double>>& together);

class CalibrationBench {
 public:
  explicit CalibrationBench(const CalibrationOptions& options);
  /// Runs all benchmarks once a round, so that a disturbance of seconds spoils one round of each.
  /// Shared machines change their clock within seconds: times of arithmetic are scaled from the FMA
  /// rate right before and after them to the median FMA rate.
  void run(int rounds);

  /// Of a name that run() has measured.
  const Samples& get(const std::string& name) const;
  const std::vector<Samples>& all() const { return samples_; }
  const std::vector<MatrixRate>& grid() const { return grid_; }
  /// Reads of weights of each stored type, relative to fp32's (execute::WeightReads).
  struct WeightReads {
    DType dtype;
    execute::Arithmetic arithmetic;
    std::size_t rows;
    Measurement ratio;
  };
  const std::vector<WeightReads>& weight_reads() const { return weight_reads_; }
  /// Rows of these products, with --quick one: up to execute::max_strip_rows() stored weights are
  /// read their own way.
  std::span<const std::size_t> rows_of_reads() const;
  /// Roofs of fewer threads.
  const std::vector<Samples>& by_threads() const { return by_threads_; }

 private:
  using Step = std::function<void()>;
  using Wanted = std::function<bool(const Node&)>;

  std::vector<Step> steps();
  void in_turns(const Step& step) const;
  void note_fma_rate(double rate);
  void add_fewer_threads(std::vector<Step>& steps);
  static Samples& at(std::vector<Samples>& list, const std::string& name, const char* unit);
  Samples& at(const std::string& name, const char* unit) { return at(samples_, name, unit); }
  /// How well the ranks keep up with each other: layer by layer of a short prompt, and product by
  /// product of a decode step, beside the products of a rank that has the memory to itself.
  void time_lockstep();
  /// On all ranks, of the seconds that each of them has.
  double lockstep_of_ranks(const std::vector<double>& alone, const std::vector<double>& together);
  void time_weight_reads(execute::WeightReads& reads, DType dtype, execute::Arithmetic arithmetic,
                         int rounds);
  void time_decode(std::uint64_t rows, int threads);
  void time_prefill(std::uint64_t rows, int threads);
  /// What the wanted operators of a pass took together.
  Samples& add(const std::string& name, const char* unit, const TimedPass& pass,
               const Wanted& wanted);
  /// What one of them took, and the loop around all.
  void add_latency(const char* name, const TimedPass& pass, const Wanted& wanted);
  void add_latencies(const execute::PassSizes& sizes);
  void add_products(const TimedPass& pass, std::uint64_t rows, int threads);

  const CalibrationOptions& options_;
  int threads_;
  Checkpoint checkpoint_;
  execute::PassTimer plain_;
  execute::PassTimer slim_;
  execute::PassTimer eager_;
  Checkpoint narrow_checkpoint_;
  execute::PassTimer narrow_plain_;
  execute::PassTimer narrow_eager_;
  std::vector<Samples> samples_;
  std::vector<Samples> by_threads_;
  std::vector<MatrixRate> grid_;
  std::vector<WeightReads> weight_reads_;
};

/// The bytes a second at which weights of a type are loaded, by what their products take beside
/// fp32's of as many rows: what arithmetic at `flops_per_second` leaves of that; infinite where it
/// leaves nothing.
double stored_rate(const CalibrationBench::WeightReads& reads, const Formula& fp32,
                   double flops_per_second);

}  // namespace kvcast::measure
