#include "search/mlkv_choice.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/last_that.h"
#include "model/base/quantity.h"

namespace kvcast::search {
namespace {

using roofline::DesignPoint;
using roofline::Estimate;
using roofline::Estimator;

/// In a layer; no model is near it, a file may claim it.
constexpr std::uint64_t most_heads = 4096;
constexpr std::uint64_t most_sequences = (std::uint64_t{1} << 30) - 1;

/// For memory alone, which is the same on every device: one that runs every dtype.
roofline::Hardware any_device(double memory_bytes) {
  roofline::Hardware hw;
  hw.name = "any device";
  for (const DType dtype : {DType::FP32, DType::FP64}) hw.peak_flops_per_second[dtype].value = 1;
  hw.vector_flops_per_second.value = hw.memory_bandwidth.value = 1;
  hw.memory_capacity.value = memory_bytes;
  return hw;
}

/// `batch` sequences whose last token makes the kv_len full.
DesignPoint point_of(std::uint64_t batch, std::uint64_t kv_len) { return {batch, kv_len - 1, 1}; }

double peak_memory(const Estimator& estimator, const DesignPoint& point) {
  Estimate e;
  estimator.sweep({&point, 1}, {&e, 1});
  return e.peak_memory_bytes;
}

/// The largest batch within the budget: memory grows with the batch.
std::uint64_t largest_batch(const Estimator& estimator, std::uint64_t kv_len, double budget) {
  return last_that(1, most_sequences, [&](std::uint64_t batch) {
    return peak_memory(estimator, point_of(batch, kv_len)) <= budget;
  });
}

std::vector<std::uint64_t> divisors(std::uint64_t number) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t i = 1; i <= number; ++i) {
    if (number % i == 0) all.push_back(i);
  }
  return all;
}

MlkvCandidate evaluate(const MlkvRequest& request, const MlkvShape& shape, double budget,
                       double plain_cache_bytes) {
  MlkvCandidate c{.layers = shape.layers, .heads = shape.heads};
  roofline::Configuration configuration = request.configuration;
  configuration.methods.clear();
  try {
    configuration.architecture = to_mlkv(request.configuration.architecture, shape);
  } catch (const Error& e) {
    c.rejected = e.what();  // MLPs that are too narrow to be widened
    return c;
  }
  const Estimator estimator(configuration);
  const Estimate e = estimator.at(point_of(request.batch, request.kv_len));
  c.intermediate_size = configuration.architecture.decoder.layers.front().intermediate_size;
  c.parameters = estimator.recording().parameters;
  c.kv_cache_bytes = e.kv_cache_bytes;
  c.kv_cache_ratio = e.kv_cache_bytes / plain_cache_bytes;
  c.peak_memory_bytes = e.peak_memory_bytes;
  if (request.has_hardware) c.tpot_s = e.tpot_s;
  c.largest_batch = largest_batch(estimator, request.kv_len, budget);
  const std::uint64_t wanted = request.goal == MlkvGoal::Fit ? request.batch : 1;
  if (c.largest_batch < wanted) {
    const double needed = peak_memory(estimator, point_of(wanted, request.kv_len));
    c.rejected = fmt::format("batch {} needs {}, more than the {} there are", wanted,
                             format_quantity(needed, Dimension::Bytes),
                             format_quantity(budget, Dimension::Bytes));
  }
  return c;
}

}  // namespace

std::vector<MlkvCandidate> choose_mlkv(const MlkvRequest& given) {
  MlkvRequest request = given;
  if (!request.has_hardware) {
    if (!request.memory_budget) {
      throw Error("choose mlkv: expected --memory-budget or --hardware");
    }
    request.configuration.hardware = any_device(*request.memory_budget);
  }
  const Architecture& a = request.configuration.architecture;
  if (request.kv_len < 2) throw Error("context", "1 token", "at least 2: a prompt and a token");
  if (request.batch == 0) throw Error("batch", "0", "at least 1");
  const std::uint64_t heads = a.decoder.layers.front().heads.num_key_value_heads;
  if (heads > most_heads) {
    throw Error("MLKV forms of " + a.name, fmt::format("{} key-value heads in a layer", heads),
                fmt::format("at most {}", most_heads));
  }
  // Throws for families without an MLKV form; with all heads kept nothing is widened.
  to_mlkv(a, {a.decoder.layers.size(), heads});
  if (layers_with_experts(a.decoder) > 0) request.widening = MlpWidening::None;
  const double budget =
      request.memory_budget.value_or(request.configuration.hardware.memory_capacity.value);
  roofline::Configuration plain = request.configuration;
  plain.methods.clear();
  const double plain_cache_bytes =
      Estimator(plain).at(point_of(request.batch, request.kv_len)).kv_cache_bytes;

  std::vector<MlkvCandidate> candidates;
  for (const std::uint64_t m : divisors(a.decoder.layers.size())) {
    for (const std::uint64_t g : divisors(heads)) {
      candidates.push_back(evaluate(request, {m, g, request.widening}, budget, plain_cache_bytes));
    }
  }
  const auto rank = [&](const MlkvCandidate& c) {
    const std::uint64_t batch = request.goal == MlkvGoal::MaxBatch ? c.largest_batch : 0;
    const bool by_rule = c.layers == a.decoder.layers.size() || c.heads == 1;
    return std::tuple(c.rejected.empty(), batch, by_rule, c.layers * c.heads, c.layers);
  };
  std::sort(candidates.begin(), candidates.end(),
            [&](const auto& x, const auto& y) { return rank(x) > rank(y); });
  return candidates;
}

}  // namespace kvcast::search
