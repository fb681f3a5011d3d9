#include "cli/estimate/estimate_training.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/estimate/estimate_parts.h"
#include "measure/validation_store.h"
#include "model/base/quantity.h"
#include "reports/sweep/stored_validations.h"
#include "roofline/training_forecast.h"

namespace kvcast::cli {
namespace {

using roofline::Configuration;
using roofline::FlopsConventions;
using roofline::ShardedStates;
using roofline::TrainingForecast;
using roofline::TrainingForecaster;
using roofline::TrainingPoint;

constexpr const char* training_heading = "Training";

/// What stored validations say of such a step.
measure::BoundOrReason step_bound(const RequestOptions& request, const TrainingOutput& output,
                                  const Configuration& c, const Catalog& catalog) {
  if (c.mode == roofline::Mode::SpeedOfLight) {
    return {.reason = std::string(measure::speed_of_light_note)};
  }
  measure::ValidationStore store = reports::stored_validations(catalog, {request.hardware});
  if (!output.validation.empty()) store.add(output.validation);
  return store.bound({.hardware = c.hardware,
                      .engine = c.engine.name,
                      .methods = to_string(c.methods),
                      .lowering = c.lowering},
                     measure::Regime::Training);
}

/// Flags of requests that a step of training does not have.
void refuse_request_flags(const RequestOptions& o) {
  const RequestOptions none;
  for (const auto& [flag, given] : {std::pair{"--prompt-len", o.prompt_len.has_value()},
                                    {"--encoder-tokens", o.encoder_tokens.has_value()},
                                    {"--output-len", o.output_len != none.output_len},
                                    {"--cache-dtype", !o.cache_dtype.empty()},
                                    {"--logits", o.logits != none.logits},
                                    {"--skip-unread-rows", o.skip_unread_rows}}) {
    if (given) throw Error(flag, "a step of training", "--batch and --seq-len");
  }
}

TrainingPoint parse_point(const RequestOptions& o, const TrainingFlags& flags,
                          const Architecture& a, const TrainingForecaster& forecaster) {
  TrainingPoint p;
  p.batch = parse_token_count(o.batch, "--batch");
  p.seq_len = default_seq_len;
  if (a.max_position_embeddings > 0) p.seq_len = std::min(p.seq_len, a.max_position_embeddings);
  if (!flags.seq_len.empty()) p.seq_len = parse_token_count(flags.seq_len, "--seq-len");
  if (!o.micro_batches.empty()) {
    p.micro_batches = parse_token_count(o.micro_batches, "--micro-batches");
  } else {
    p.micro_batches = forecaster.default_micro_batches(p.batch);
  }
  return p;
}

ordered_json training_json(const Configuration& c, const TrainingFlags& flags,
                           const TrainingPoint& p, const TrainingForecast& f,
                           const TrainingForecaster& forecaster,
                           const measure::BoundOrReason& bound,
                           const std::vector<std::string>& warnings) {
  const TrainingRecording& r = forecaster.recording();
  const FlopsConventions others = forecaster.conventions(p.seq_len);
  const double tokens = static_cast<double>(p.batch) * static_cast<double>(p.seq_len);
  const double peak = f.model_flops / (f.mfu * f.step_s);
  const auto convention = [&](double a_token) {
    return ordered_json{{"flops_per_token", count_json(a_token)},
                        {"mfu", a_token * tokens / (peak * f.step_s)}};
  };
  ordered_json j{
      {"model", c.architecture.name},
      {"hardware", c.hardware.name},
      {"engine", c.engine.name},
      {"method", to_string(c.methods)},
      {"attention", kernels_name(c.lowering.attention)},
      {"elementwise", c.lowering.elementwise == Kernels::Eager ? "eager" : "fused"},
      {"weight_dtype", c.lowering.weights.text},
      {"activation_dtype", name(c.lowering.operand_dtype())},
      {"optimizer", flags.optimizer},
      {"recompute", flags.recompute},
      {"zero", flags.zero},
      {"dropout", flags.dropout},
      {"loss_chunks", parse_token_count(flags.loss_chunks, "--loss-chunks")},
      {"gradient_dtype", name(forecaster.gradient_dtype())},
      {"state_dtype", flags.state_dtype},
      {"mode", roofline::name(c.mode)},
      {"batch", p.batch},
      {"seq_len", p.seq_len},
      {"micro_batches", p.micro_batches},
      {"tp", c.parallelism.tp},
      {"pp", c.parallelism.pp},
      {"virtual_stages", forecaster.virtual_stages()},
      {"stages", c.stage_layers},
      {"dp", c.parallelism.dp},
      {"sequence_parallel", c.parallelism.sequence_parallel},
      {"platform", c.interconnect ? c.interconnect->name() : ""},
      {"parameters", r.parameters},
      {"trained_parameters", r.trained_parameters},
      {"step_s", f.step_s},
      {"forward_s", f.forward_s},
      {"backward_s", f.backward_s},
      {"update_s", f.update_s},
      {"communication_s", f.communication_s},
      {"bubble_s", f.bubble_s},
      {"tokens_per_s", f.tokens_per_s},
      {"tokens_per_s_per_device", f.tokens_per_s / static_cast<double>(c.parallelism.devices())},
      {"model_flops", count_json(f.model_flops)},
      {"hardware_flops", count_json(f.hardware_flops)},
      {"all_flops", count_json(f.flops)},
      {"bytes", count_json(f.bytes)},
      {"mfu", f.mfu},
      {"hfu", f.hfu},
      {"conventions",
       {{"palm", convention(others.palm)},
        {"llm.c", convention(others.llm_c)},
        {"megatron", convention(others.megatron)}}},
      {"weight_bytes", count_json(f.weight_bytes)},
      {"gradient_bytes", count_json(f.gradient_bytes)},
      {"optimizer_bytes", count_json(f.optimizer_bytes)},
      {"saved_activation_bytes", count_json(f.saved_activation_bytes)},
      {"activation_bytes", count_json(f.activation_bytes)},
      {"peak_memory_bytes", count_json(f.peak_memory_bytes)},
      {"memory_capacity_bytes", count_json(c.hardware.memory_capacity.value)},
      {"fits", f.fits},
      {"bound", roofline::name(f.bound)}};
  add_bound(j, "step", bound.bound);
  j["error_bound_note"] = bound.reason;
  j["rests_on"] = rests_on(forecaster.rates().factors);
  j["factors"] = rows_of(forecaster.rates().factors, factor_json);
  j["warnings"] = warnings;
  return j;
}

std::string training_text(const RequestOptions& request, const Configuration& c,
                          const TrainingFlags& flags, const TrainingPoint& p,
                          const TrainingForecast& f, const TrainingForecaster& forecaster,
                          const measure::BoundOrReason& bound) {
  const auto seconds = [](double s) { return format_quantity(s, Dimension::Seconds); };
  const auto bytes = [](double b) { return format_quantity(b, Dimension::Bytes); };
  const auto share = [&](double s) { return fmt::format("{:.1f} %", 100 * s / f.step_s); };
  std::string text = fmt::format(
      "training {} on {}{}, {}, {} sequences of {} tokens a step, {} attention, recomputing {}, "
      "{}{}{}\n",
      c.architecture.name,
      c.parallelism.is_one() ? "" : fmt::format("{} x ", c.parallelism.devices()),
      c.hardware.description, to_string(c.methods), p.batch, p.seq_len,
      kernels_name(c.lowering.attention), flags.recompute,
      flags.loss_chunks == "1" ? "" : fmt::format("loss in {} chunks, ", flags.loss_chunks),
      roofline::name(c.mode), default_dtype_text(request, c.architecture));
  if (!c.parallelism.is_one()) {
    text += fmt::format("{} on {}", to_string(c.parallelism), c.interconnect->name());
    if (const std::uint64_t v = forecaster.virtual_stages(); v > 1) {
      text += fmt::format(", {} virtual stages each", v);
    }
    if (p.micro_batches > 1)
      text += fmt::format(", {} micro-batches of a replica", p.micro_batches);
    text += "\n";
  }
  Table table({"", "value", "", ""});
  table.add({"step", seconds(f.step_s), fmt::format("{}-bound", roofline::name(f.bound)),
             bound_text(bound.bound)});
  table.add({"  forward", seconds(f.forward_s), share(f.forward_s), ""});
  table.add({"  backward", seconds(f.backward_s), share(f.backward_s), ""});
  table.add({"  update", seconds(f.update_s), share(f.update_s), ""});
  if (!c.parallelism.is_one()) {
    table.add({"  messages", seconds(f.communication_s), share(f.communication_s), ""});
  }
  if (c.parallelism.pp > 1) {
    table.add({"  bubble", seconds(f.bubble_s), share(f.bubble_s), ""});
  }
  table.add({"tokens a second", format_count(f.tokens_per_s), "", ""});
  table.add(
      {"model FLOPs", format_count(f.model_flops), fmt::format("MFU {:.1f} %", 100 * f.mfu), ""});
  table.add({"hardware FLOPs", format_count(f.hardware_flops),
             fmt::format("HFU {:.1f} %", 100 * f.hfu), ""});
  table.add({"weights", bytes(f.weight_bytes), "", ""});
  table.add({"gradients", bytes(f.gradient_bytes), "", ""});
  table.add({"optimizer states", bytes(f.optimizer_bytes), "", ""});
  table.add({"activations", bytes(f.activation_bytes),
             fmt::format("{} saved", bytes(f.saved_activation_bytes)), ""});
  table.add({"peak memory", bytes(f.peak_memory_bytes),
             fmt::format("{} {}", f.fits ? "fits" : "does not fit",
                         bytes(c.hardware.memory_capacity.value)),
             ""});
  const std::string rows = table.text();
  text += rows.substr(rows.find('\n') + 1);
  if (bound.bound) text += "step's bound: " + bound.bound->population + "\n";
  return text + fmt::format("rests on {} figures\n",
                            fmt::join(rests_on(forecaster.rates().factors), ", "));
}

}  // namespace

void TrainingFlags::add_to(Command c) {
  c.add("--train", train, "forecast a step of training").group(training_heading);
  c.add("--seq-len TOKENS", seq_len, "tokens of a sequence [2048]").group(training_heading);
  c.add("--recompute WHAT", recompute,
        "on the way back: none; selective: scores and probabilities; full: every layer")
      .group(training_heading);
  c.add("--optimizer NAME", optimizer, "adamw").group(training_heading);
  c.add("--gradient-dtype DTYPE", gradient_dtype,
        "dtype of the weights' gradients; default: the engine's, else that of the weights")
      .group(training_heading);
  c.add("--state-dtype DTYPE", state_dtype,
        "dtype of the optimizer's moments, and of a copy of weights that are narrower")
      .group(training_heading);
  c.add("--zero STAGE", zero,
        "with --dp, what replicas do not hold each: 1 optimizer states, 2 gradients too, 3 weights "
        "too")
      .group(training_heading);
  c.add("--dropout P", dropout,
        "chance of a number to be dropped from embeddings, branches and eager probabilities")
      .group(training_heading);
  c.add("--loss-chunks N", loss_chunks,
        "parts of each sequence whose logits and loss are computed one by one, there and back")
      .group(training_heading);
  c.add("--virtual-stages N", virtual_stages,
        "with --pp, parts of the layers that each stage has and works on in turn")
      .group(training_heading);
}

void TrainingFlags::check() const {
  if (train) return;
  const TrainingFlags none;
  for (const auto& [flag, given] : {std::pair{"--seq-len", !seq_len.empty()},
                                    {"--recompute", recompute != none.recompute},
                                    {"--optimizer", optimizer != none.optimizer},
                                    {"--zero", zero != none.zero},
                                    {"--dropout", dropout != none.dropout},
                                    {"--loss-chunks", loss_chunks != none.loss_chunks},
                                    {"--virtual-stages", virtual_stages != none.virtual_stages},
                                    {"--gradient-dtype", !gradient_dtype.empty()},
                                    {"--state-dtype", state_dtype != none.state_dtype}}) {
    if (given) throw Error(flag, "a forecast of a request", "--train");
  }
}

void estimate_training(const RequestOptions& request, const TrainingFlags& flags,
                       const TrainingOutput& output, const Globals& globals) {
  refuse_request_flags(request);
  RequestOptions of_model = request;
  of_model.micro_batches.clear();  // of a replica, not of a pipeline
  const Configuration c = parse_configuration(of_model, globals.catalog());
  if (flags.optimizer != "adamw") {
    throw unknown_name("--optimizer", flags.optimizer, {"adamw"});
  }
  TrainingOptions options;
  options.recompute = parse_flag("--recompute", flags.recompute, parse_recompute);
  if (!flags.gradient_dtype.empty()) {
    options.gradients = parse_flag("--gradient-dtype", flags.gradient_dtype, parse_dtype);
  }
  options.states = parse_flag("--state-dtype", flags.state_dtype, parse_dtype);
  options.dropout = flags.dropout;
  options.loss_chunks = parse_token_count(flags.loss_chunks, "--loss-chunks");
  const ShardedStates sharded = parse_flag("--zero", flags.zero, roofline::parse_zero);
  const TrainingForecaster forecaster(c, options, sharded,
                                      parse_token_count(flags.virtual_stages, "--virtual-stages"));
  const TrainingPoint p = parse_point(request, flags, c.architecture, forecaster);
  const TrainingForecast f = forecaster.at(p);
  std::vector<std::string> warnings = roofline::context_warnings(
      c.architecture, {.batch = p.batch, .prompt_len = p.seq_len, .output_len = 0});
  const std::vector<std::string>& missing = forecaster.rates().missing_factors;
  warnings.insert(warnings.end(), missing.begin(), missing.end());
  for (const std::string& line : warnings) globals.warn(line);
  const measure::BoundOrReason bound = step_bound(request, output, c, globals.catalog());
  if (!bound.reason.empty()) globals.say("note: " + bound.reason);
  ordered_json breakdown;
  if (output.breakdown) breakdown = rows_of(forecaster.breakdown(p), operator_json);
  if (output.json) {
    ordered_json j = training_json(c, flags, p, f, forecaster, bound, warnings);
    if (output.breakdown) j["breakdown"] = breakdown;
    return print_json(j);
  }
  print_text(training_text(request, c, flags, p, f, forecaster, bound));
  if (output.breakdown) print_text("\n" + operators_text(breakdown));
}

}  // namespace kvcast::cli
