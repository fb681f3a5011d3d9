#include "roofline/rates.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/words.h"

namespace kvcast::roofline {
namespace {

constexpr Words<Mode, 2> modes = {
    {{Mode::Calibrated, "calibrated"}, {Mode::SpeedOfLight, "speed-of-light"}}};

/// The factor for `dtype`, or for the other 16-bit dtype, which runs at the same rate.
const Sourced* factor_for(const std::map<DType, Sourced>& factors, DType dtype) {
  const auto exact = factors.find(dtype);
  if (exact != factors.end()) return &exact->second;
  if (dtype != DType::FP16 && dtype != DType::BF16) return nullptr;
  const auto sibling = factors.find(dtype == DType::FP16 ? DType::BF16 : DType::FP16);
  return sibling == factors.end() ? nullptr : &sibling->second;
}

/// Below 16 bits: activations are quantised before such a product.
bool is_narrow(DType dtype) {
  return dtype == DType::FP8 || dtype == DType::INT8 || dtype == DType::INT4;
}

/// Whether a launch is an attention that was recorded as several operators.
bool fuses_attention(const Lowering& lowering) {
  return std::any_of(lowering.launches.begin(), lowering.launches.end(), [](const Launch& l) {
    const auto has = [&](const char* label) {
      return std::find(l.labels.begin(), l.labels.end(), label) != l.labels.end();
    };
    return has("scores") && has("values");
  });
}

class RateBuilder {
 public:
  RateBuilder(const Hardware& hw, Mode mode) : hw_(hw), mode_(mode) {}

  Rates rates;

  /// Attention products never run faster than large ones, so where only `matrix_rate` was measured
  /// it stands in for theirs.
  double matrix(const std::string& name, DType operands, const std::map<DType, Sourced>& factors,
                const Sourced* other_peak = nullptr) {
    const DType dtype = hw_.supported(operands);
    const Sourced& peak = other_peak != nullptr ? *other_peak : hw_.peak_flops_per_second.at(dtype);
    const std::string full = fmt::format("{} {}", name, kvcast::name(dtype));
    const Sourced* factor = factor_for(factors, dtype);
    const Sourced* stand_in = factor_for(hw_.matrix_rate, dtype);
    if (factor == nullptr && stand_in != nullptr && mode_ == Mode::Calibrated) {
      rates.missing_factors.push_back(
          fmt::format("no measured {} for {}: its matrix_rate is used", full, hw_.name));
      factor = stand_in;
    }
    return peak.value * apply(full, peak, factor);
  }
  /// Of the factor of that dtype itself.
  RateCurve curve(DType operands, const std::map<DType, Sourced>& factors) const {
    return curve(factor_for(factors, hw_.supported(operands)));
  }
  RateCurve curve(const Sourced* factor) const {
    if (factor == nullptr || mode_ == Mode::SpeedOfLight) return {};
    return RateCurve(factor->by_length, factor->value);
  }
  /// By rows: `one_row` of one, `several` of more.
  RateCurve by_rows(const Sourced* one_row, const Sourced& several) const {
    if (mode_ == Mode::SpeedOfLight) return {};
    return RateCurve({{1, one_row == nullptr ? 1 : one_row->value}, {2, several.value}},
                     several.value);
  }
  double bandwidth(const std::string& name, const Sourced* factor) {
    return hw_.memory_bandwidth.value * apply(name, hw_.memory_bandwidth, factor);
  }
  /// Absent: as products, where neither the device nor the mode says otherwise.
  std::optional<ExpertRate> expert_rate(const std::string& name, DType operands,
                                        const std::map<DType, Sourced>& factors) {
    const DType dtype = hw_.supported(operands);
    const Sourced* factor = factor_for(factors, dtype);
    if (factor == nullptr || mode_ == Mode::SpeedOfLight) return {};
    const double peak = hw_.peak_flops_per_second.at(dtype).value;
    note_experts(fmt::format("{} {}", name, kvcast::name(dtype)), peak, *factor);
    return ExpertRate{{peak * factor->value}, curve(factor)};
  }
  void note_experts(const std::string& name, double peak, const Sourced& factor) {
    note(name, peak, factor.value, factor);
    rates.factors.back().of_experts = true;
  }
  /// Of weights in `dtype`, unless all have another one.
  void stored(const std::string& name, DType dtype, const Sourced& factor,
              const WeightTypes& weights) {
    if (mode_ == Mode::SpeedOfLight || (weights.is_uniform() && weights.main != dtype)) return;
    rates.weight_bandwidth[dtype] = {
        {bandwidth(fmt::format("{} {}", name, kvcast::name(dtype)), &factor)}, curve(&factor)};
  }
  double latency(const std::string& name, const Sourced& value) {
    return mode_ == Mode::SpeedOfLight ? 0 : as_given(name, value);
  }
  double as_given(const std::string& name, const Sourced& value) {
    note(name, value.value, 1, value);
    return value.value;
  }
  double exposed(const std::string& name, const Sourced& overlap) {
    if (mode_ == Mode::SpeedOfLight) return 0;
    note(name, 1, overlap.value, overlap);
    return 1 - overlap.value;
  }

 private:
  double apply(const std::string& name, const Sourced& peak, const Sourced* factor) {
    if (mode_ == Mode::SpeedOfLight) factor = nullptr;
    if (factor == nullptr && mode_ == Mode::Calibrated) {
      rates.missing_factors.push_back(
          fmt::format("no measured {} for {}: its datasheet peak is used", name, hw_.name));
    }
    const double share = factor == nullptr ? 1 : factor->value;
    note(name, peak.value, share, factor == nullptr ? peak : *factor);
    return share;
  }
  void note(const std::string& name, double peak, double factor, const Sourced& origin) {
    rates.factors.push_back({name, peak, factor, std::string(kvcast::roofline::name(origin.source)),
                             origin.reference, origin.by_length});
  }

  const Hardware& hw_;
  Mode mode_;
};

/// Rates::uneven_loads of text, which prefers some experts. Loads fall geometrically over 1 : 75:
/// 65 of 128 experts have 90 % of the rows, as counted for Qwen3-30B-A3B on prose, code and
/// mathematics (58 of 128 on Python alone):
/// https://mcp-tool-shop-org.github.io/gpu-container/handbook/derisk/
/// Computed for 4 of 128 experts; the curves of 8 of 128, 4 of 32 and 8 of 256 are within 2 %.
RateCurve uneven_loads() {
  constexpr int experts = 128;
  constexpr double per_token = 4;
  constexpr double span = 75;
  std::vector<double> loads;
  for (int i = 0; i < experts; ++i) loads.push_back(std::pow(span, -(i + 0.5) / experts));
  const double all = std::accumulate(loads.begin(), loads.end(), 0.0);
  std::vector<double> rows;
  std::vector<double> ratios;
  for (double tokens = 1; tokens <= 4096; tokens *= 1.25) {
    const double uniform = experts * (1 - std::pow(1 - per_token / experts, tokens));
    double read = 0;
    for (const double load : loads) read += 1 - std::pow(1 - per_token * load / all, tokens);
    rows.push_back(tokens * per_token / uniform);
    ratios.push_back(uniform / read);
  }
  return {std::move(rows), std::move(ratios)};
}

const Sourced* pointer(const std::optional<Sourced>& s) { return s ? &*s : nullptr; }

template <typename Array, typename Class>
auto& at(Array& of_classes, Class c) {
  return of_classes[static_cast<std::size_t>(c)];
}

/// Of passes with one row a sequence, where the file has it.
double share_in_lockstep(const Sourced& lockstep, bool decodes) {
  const auto& by_rows = lockstep.by_length;
  const bool has_own = decodes && !by_rows.empty() && by_rows.front().length == 1;
  return has_own ? by_rows.front().value : lockstep.value;
}

/// All but latencies and messages.
void slow_down(Rates& r, double share) {
  const auto slow = [&](auto& rate) { rate.value *= share; };
  for (FlopsPerSecond& rate : r.flops_per_second) slow(rate);
  for (BytesPerSecond& rate : r.bytes_per_second) slow(rate);
  for (auto& [dtype, rate] : r.other_products) slow(rate);
  for (auto& [dtype, weights] : r.weight_bandwidth) slow(weights.bytes_per_second);
  for (std::optional<ExpertRate>* rate : {&r.experts, &r.quantized_experts}) {
    if (*rate) slow((*rate)->flops_per_second);
  }
}

}  // namespace

std::string_view name(Mode mode) { return word_for(mode, modes); }

Mode parse_mode(std::string_view word) { return parse_word("mode", word, modes); }

void wait_for_others(const Hardware& hw, Rates& r) {
  r.lockstep = hw.lockstep;
  if (!hw.lockstep) return;
  const Sourced& lockstep = *hw.lockstep;
  r.factors.push_back({"lockstep", 1, lockstep.value, std::string(name(lockstep.source)),
                       lockstep.reference, lockstep.by_length});
}

Rates in_pass(Rates rates, bool decodes) {
  if (rates.lockstep) slow_down(rates, share_in_lockstep(*rates.lockstep, decodes));
  const bool in_graph = rates.graphs == Graphs::All || (rates.graphs == Graphs::Decode && decodes);
  if (in_graph) {
    rates.host_operator_latency = {};
  } else {
    for (Seconds& latency : rates.latency) latency += rates.launch_gap;
  }
  return rates;
}

/// The rate of a state space's scan as a share of fused attention's. Source: aiconfigurator-core
/// 0.12.0 (NVIDIA), Gated DeltaNet on an H100: 391 us for 8192 tokens of 32 heads of 128, which is
/// 83 TFLOP/s by StateScan's count, beside 0.66 of a peak of 989 TFLOP/s. No other device was
/// measured.
constexpr double scan_share = 0.127;

Rates make_rates(const Hardware& hw, const Lowering& lowering, Mode mode, const Engine& engine) {
  RateBuilder b(hw, mode);
  Rates& r = b.rates;
  const bool eager_attention = lowering.attention == Kernels::Eager;
  const bool eager_elementwise = lowering.elementwise == Kernels::Eager;
  const bool eager = eager_attention || eager_elementwise;

  const auto flops = [&](RateClass c) -> FlopsPerSecond& { return at(r.flops_per_second, c); };
  const DType activations = lowering.operand_dtype();
  const DType products =
      hw.supported(lowering.products.value_or(product_dtype(activations, lowering.weights.main)));
  const bool fp16_sums = engine.accumulates_in_fp16 && products == DType::FP16;
  flops(RateClass::Matrix) = {
      b.matrix("matrix_rate", products, hw.matrix_rate,
               fp16_sums ? pointer(hw.fp16_accumulation_flops_per_second) : nullptr)};
  at(r.flops_by_length, RateClass::Matrix) = b.curve(products, hw.matrix_rate);
  if (bits_per_element(activations) < bits_per_element(DType::FP16)) {
    for (const WeightRule& rule : lowering.weights.rules) {
      const DType own = product_dtype(activations, rule.type);
      const bool multiplies = rule.of != "norm" && rule.of != "bias";
      if (!multiplies || own == product_dtype(activations, lowering.weights.main)) continue;
      if (r.other_products.contains(own)) continue;
      r.other_products[own] = {b.matrix("matrix_rate", own, hw.matrix_rate)};
    }
  }
  const DType dtype = product_dtype(activations, lowering.cache);
  const bool tiled_attention = !eager_attention || fuses_attention(lowering);
  if (eager_attention) {
    flops(RateClass::BatchedMatrix) = {
        b.matrix("batched_matrix_rate", dtype, hw.batched_matrix_rate)};
    // Of what has no eager form: a state's step, the choice of keys.
    flops(RateClass::TiledAttention) = flops(RateClass::DecodeAttention) =
        flops(RateClass::BatchedMatrix);
  }
  if (tiled_attention) {
    const FlopsPerSecond rate{b.matrix("tiled_attention_rate", dtype, hw.tiled_attention_rate)};
    double of_kernel = engine.attention_rate;
    if (hw.architecture == "hopper") of_kernel *= engine.hopper_attention;
    if (mode != Mode::Calibrated) of_kernel = 1;
    flops(RateClass::TiledAttention) = {rate.value * of_kernel};
    at(r.flops_by_length, RateClass::TiledAttention) = b.curve(dtype, hw.tiled_attention_rate);
    // For scores that a method asks for besides the attention; no device has a factor for these.
    if (!eager_attention) flops(RateClass::BatchedMatrix) = rate;
    // Decoding's attention runs as a prompt's does, unless it was measured apart.
    flops(RateClass::DecodeAttention) = rate;
    if (!hw.decode_attention_rate.empty()) {
      flops(RateClass::DecodeAttention) = {
          b.matrix("decode_attention_rate", dtype, hw.decode_attention_rate)};
    }
  }
  const RateClass like = tiled_attention ? RateClass::TiledAttention : RateClass::BatchedMatrix;
  flops(RateClass::StateScan) = {flops(like).value * (mode == Mode::Calibrated ? scan_share : 1)};
  flops(RateClass::Vector) = {b.as_given("vector_flops", hw.vector_flops_per_second)};

  const auto stream = [&](BandwidthClass c, const std::string& name, const Sourced* factor) {
    at(r.bytes_per_second, c) = {b.bandwidth(name, factor)};
  };
  const Sourced* memory = pointer(hw.memory_bandwidth_factor);
  stream(BandwidthClass::Memory, "memory_bandwidth", memory);
  // All others move at the memory's rate, unless they have their own.
  r.bytes_per_second.fill(at(r.bytes_per_second, BandwidthClass::Memory));
  if (eager) {
    const Sourced* elementwise = pointer(hw.elementwise_bandwidth);
    const Sourced* softmax = pointer(hw.softmax_bandwidth);
    stream(BandwidthClass::Elementwise, "elementwise_bandwidth",
           elementwise ? elementwise : memory);
    stream(BandwidthClass::Softmax, "softmax_bandwidth", softmax ? softmax : memory);
    at(r.bytes_by_length, BandwidthClass::Softmax) = b.curve(softmax);
  }
  const WeightTypes& weights = lowering.weights;
  const bool narrow = bits_per_element(weights.main) < bits_per_element(activations);
  const bool has_narrow = hw.quantized_product_bandwidth && (narrow || !weights.is_uniform());
  const bool all_narrow = has_narrow && weights.is_uniform();
  if (hw.product_bandwidth && !all_narrow) {
    stream(BandwidthClass::Product, "product_bandwidth", &*hw.product_bandwidth);
    at(r.bytes_by_length, BandwidthClass::Product) = hw.product_bandwidth->by_length.empty()
                                                         ? b.by_rows(memory, *hw.product_bandwidth)
                                                         : b.curve(&*hw.product_bandwidth);
  }
  const auto as_products = [](auto& of_classes) {
    at(of_classes, BandwidthClass::QuantizedProduct) = at(of_classes, BandwidthClass::Product);
  };
  if (has_narrow) {
    stream(BandwidthClass::QuantizedProduct, "quantized_product_bandwidth",
           &*hw.quantized_product_bandwidth);
  } else {
    as_products(r.bytes_per_second);
    as_products(r.bytes_by_length);
  }
  for (const auto& [type, factor] : hw.weight_bandwidth) {
    b.stored("weight_bandwidth", type, factor, weights);
  }
  if (products == DType::INT8) {
    for (const auto& [type, factor] : hw.int8_weight_bandwidth) {
      b.stored("int8_weight_bandwidth", type, factor, weights);
    }
  }
  if (tiled_attention && hw.decode_attention_bandwidth) {
    stream(BandwidthClass::Decode, "decode_attention_bandwidth", &*hw.decode_attention_bandwidth);
  }
  if (tiled_attention && hw.tiled_attention_bandwidth) {
    stream(BandwidthClass::Attention, "tiled_attention_bandwidth", &*hw.tiled_attention_bandwidth);
  }
  if (hw.overlap) r.exposed.fill(b.exposed("overlap", *hw.overlap));
  const auto waits = [&](BandwidthClass c, const std::string& name,
                         const std::optional<Sourced>& overlap) {
    if (overlap) at(r.exposed, c) = b.exposed(name, *overlap);
  };
  waits(BandwidthClass::Product, "product_overlap", hw.product_overlap);
  as_products(r.exposed);
  if (tiled_attention) {
    waits(BandwidthClass::Attention, "tiled_attention_overlap", hw.tiled_attention_overlap);
  }

  r.latency.fill({b.latency("operator_latency", hw.operator_latency)});
  const auto starts = [&](BandwidthClass c, const std::string& name,
                          const std::optional<Sourced>& latency) {
    if (latency) at(r.latency, c) = {b.latency(name, *latency)};
  };
  if (eager) starts(BandwidthClass::Elementwise, "elementwise_latency", hw.elementwise_latency);
  if (tiled_attention) {
    starts(BandwidthClass::Attention, "tiled_attention_latency", hw.tiled_attention_latency);
    starts(BandwidthClass::Decode, "decode_attention_latency", hw.decode_attention_latency);
  }
  const bool quantized =
      hw.quantized_product_latency && is_narrow(products) && !engine.fuses_quantization;
  starts(BandwidthClass::Product, quantized ? "quantized_product_latency" : "product_latency",
         quantized ? hw.quantized_product_latency : hw.product_latency);
  as_products(r.latency);
  const auto of_experts = [&](BandwidthClass c, BandwidthClass as, const std::string& name,
                              const std::optional<Sourced>& bandwidth) {
    at(r.bytes_per_second, c) = at(r.bytes_per_second, as);
    at(r.bytes_by_length, c) = at(r.bytes_by_length, as);
    at(r.exposed, c) = at(r.exposed, as);
    at(r.latency, c) = at(r.latency, as);
    if (mode == Mode::SpeedOfLight) return;
    if (bandwidth) {
      b.note_experts(name, hw.memory_bandwidth.value, *bandwidth);
      at(r.bytes_per_second, c) = {hw.memory_bandwidth.value * bandwidth->value};
      at(r.bytes_by_length, c) = {};
      at(r.exposed, c) = 0;
    }
    if (hw.expert_product_latency) at(r.latency, c) = {hw.expert_product_latency->value};
  };
  of_experts(BandwidthClass::Experts, BandwidthClass::Product, "expert_bandwidth",
             hw.expert_bandwidth);
  // The last rule counts, so any layer's experts tell; rows of whole blocks.
  const DType stored = lowering.weights.of("layers.0.experts.up.weight", 2, 256, nullptr);
  const auto& in_marlin = engine.marlin_experts;
  const bool marlin = !hw.marlin_expert_rate.empty() &&
                      std::find(in_marlin.begin(), in_marlin.end(), stored) != in_marlin.end();
  const std::string unpacked = marlin ? "marlin_expert" : "quantized_expert";
  of_experts(BandwidthClass::QuantizedExperts, BandwidthClass::QuantizedProduct,
             unpacked + "_bandwidth",
             marlin && hw.marlin_expert_bandwidth ? hw.marlin_expert_bandwidth
                                                  : hw.quantized_expert_bandwidth);
  if (hw.expert_combine_bandwidth && mode == Mode::Calibrated) {
    const Sourced& combine = *hw.expert_combine_bandwidth;
    b.note_experts("expert_combine_bandwidth", hw.memory_bandwidth.value, combine);
    at(r.bytes_per_second,
       BandwidthClass::CombineExperts) = {hw.memory_bandwidth.value * combine.value};
  }
  if (hw.expert_product_latency && mode == Mode::Calibrated) {
    b.note_experts("expert_product_latency", hw.expert_product_latency->value,
                   *hw.expert_product_latency);
    r.factors.back().factor = 1;
  }
  r.uneven_loads = uneven_loads();
  r.experts = b.expert_rate("expert_rate", hw.supported(product_dtype(activations, stored)),
                            hw.expert_rate);
  r.quantized_experts = b.expert_rate(unpacked + "_rate", lowering.operand_dtype(),
                                      marlin ? hw.marlin_expert_rate : hw.quantized_expert_rate);
  if (engine.host_launch && mode == Mode::Calibrated) {
    r.host_operator_latency = *engine.host_launch;
  } else if (eager_elementwise) {
    r.host_operator_latency = {b.latency("host_operator_latency", hw.host_operator_latency)};
  }
  if (mode == Mode::Calibrated) {
    r.launch_gap = engine.launch_gap;
    r.graphs = engine.graphs;
    r.host = engine.host;
  }
  if (lowering.reads_groups_again && hw.on_chip_read_bandwidth) {
    r.on_chip_read_bytes_per_second =
        b.as_given("on_chip_read_bandwidth", *hw.on_chip_read_bandwidth);
  }
  r.prefill_tokens = engine.prefill_tokens;
  r.prefill_at_least_context = engine.prefill_at_least_context;
  r.cuts_prompts = engine.cuts_prompts;
  r.on_chip_bytes = hw.on_chip_memory_capacity.value;
  if (eager && hw.on_chip_memory_bandwidth) {
    r.on_chip_bytes_per_second = {
        b.as_given("on_chip_memory_bandwidth", *hw.on_chip_memory_bandwidth)};
  }
  r.memory_capacity_bytes = hw.memory_capacity.value;
  return std::move(b.rates);
}

}  // namespace kvcast::roofline
