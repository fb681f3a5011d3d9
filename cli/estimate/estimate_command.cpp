#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/estimate/estimate_parts.h"
#include "cli/estimate/estimate_training.h"
#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "cli/simulate/parallel_options.h"
#include "measure/validation_store.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "reports/plot/study_plots.h"
#include "reports/sweep/stored_validations.h"
#include "roofline/interconnect.h"
#include "search/placed_estimator.h"

namespace kvcast::cli {
namespace {

using measure::ErrorBars;
using roofline::BreakdownRow;
using roofline::Configuration;
using roofline::DesignPoint;
using roofline::Estimate;
using roofline::Estimator;
using search::PlacedEstimator;
using search::PlacedPrefill;

struct EstimateOptions {
  RequestOptions request;
  LinkFlags link;
  TrainingFlags training;
  std::string plot;
  std::string validation;
  bool json = false;
  bool breakdown = false;
};

ordered_json input_json(const Configuration& c, const DesignPoint& p) {
  return {{"model", c.architecture.name},
          {"hardware", c.hardware.name},
          {"engine", c.engine.name},
          {"engine_version", c.engine.version},
          {"method", to_string(c.methods)},
          {"attention", kernels_name(c.lowering.attention)},
          {"elementwise", c.lowering.elementwise == Kernels::Eager ? "eager" : "fused"},
          {"weight_dtype", c.lowering.weights.text},
          {"activation_dtype", name(c.lowering.operand_dtype())},
          {"cache_dtype", name(c.lowering.cache)},
          {"arithmetic", name(c.lowering.products.value_or(
                             product_dtype(c.lowering.operand_dtype(), c.lowering.weights.main)))},
          {"mode", roofline::name(c.mode)},
          {"logits", name(c.logits)},
          {"skip_unread_rows", c.lowering.skip_unread_rows},
          {"batch", p.batch},
          {"prompt_len", p.prompt_len},
          {"output_len", p.output_len},
          {"tp", c.parallelism.tp},
          {"pp", c.parallelism.pp},
          {"ep", c.parallelism.ep},
          {"dp", c.parallelism.dp},
          {"sequence_parallel", c.parallelism.sequence_parallel},
          {"stages", c.stage_layers},
          {"micro_batches", roofline::used_micro_batches(c, p.batch)}};
}

/// The parts of a TTFT that there are, in the order in which they run.
std::vector<std::pair<std::string, double>> parts_of(const Estimate& e) {
  std::vector<std::pair<std::string, double>> parts;
  for (std::size_t i = 0; i < num_ttft_parts; ++i) {
    if (e.ttft_parts_s[i] > 0) {
      parts.emplace_back(name(static_cast<TtftPart>(i)), e.ttft_parts_s[i]);
    }
  }
  return parts;
}

/// The factors of a device and, if there are several devices, of the link between them.
std::vector<roofline::UsedFactor> used_factors(const PlacedEstimator& estimator,
                                               const Architecture& architecture) {
  std::vector<roofline::UsedFactor> factors = estimator.one_device().rates().factors;
  const std::vector<LayerShape>& layers = architecture.decoder.layers;
  if (std::none_of(layers.begin(), layers.end(),
                   [](const LayerShape& l) { return l.experts.has_value(); })) {
    std::erase_if(factors, [](const roofline::UsedFactor& f) { return f.of_experts; });
  }
  if (estimator.is_placed()) {
    const std::vector<roofline::UsedFactor>& of_link = estimator.link().factors;
    factors.insert(factors.end(), of_link.begin(), of_link.end());
  }
  return factors;
}

/// Whether devices are joined as the hardware says, whatever flags say so.
bool has_own_links(const Configuration& c, const search::HardwareLink& link) {
  if (c.hardware.links.empty()) return false;
  const search::ChainLink own = search::hardware_link(c.hardware, c.mode).link;
  const bool as_fast = link.link.bytes_per_s == own.bytes_per_s;
  return as_fast && (link.name == "node" || link.link.latency_s == own.latency_s);
}

/// What stored validations say of an estimate like this one.
ErrorBars error_bars(const EstimateOptions& o, const Configuration& c, const DesignPoint& p,
                     const PlacedEstimator& estimator, const Catalog& catalog) {
  if (c.mode == roofline::Mode::SpeedOfLight) {
    return {.note = std::string(measure::speed_of_light_note)};
  }
  measure::ValidationStore store = reports::stored_validations(catalog, {o.request.hardware});
  if (!o.validation.empty()) store.add(o.validation);
  const bool others = estimator.is_placed() && !has_own_links(c, estimator.link());
  return store.bars({.hardware = c.hardware,
                     .engine = c.engine.name,
                     .methods = to_string(c.methods),
                     .lowering = c.lowering,
                     .links = others ? measure::Links::Others : measure::Links::OfHardware},
                    p);
}

ordered_json estimate_json(const Configuration& c, const DesignPoint& p, const Estimate& e,
                           const PlacedEstimator& placed, const ErrorBars& bars) {
  const Estimator& estimator = placed.one_device();
  const std::vector<roofline::UsedFactor> factors = used_factors(placed, c.architecture);
  ordered_json j = input_json(c, p);
  j["parameters"] = estimator.recording().parameters;
  j["active_parameters"] = estimator.recording().active_parameters;
  j["ttft_s"] = e.ttft_s;
  for (const auto& [part, s] : parts_of(e)) j["ttft_parts_s"][part] = s;
  j["tpot_s"] = e.tpot_s;
  j["prefill_flops"] = count_json(e.prefill_flops);
  j["prefill_bytes"] = count_json(e.prefill_bytes);
  j["decode_flops_per_token"] = count_json(e.decode_flops_per_token);
  j["decode_bytes_per_token"] = count_json(e.decode_bytes_per_token);
  j["kv_cache_bytes"] = count_json(e.kv_cache_bytes);
  if (has_states(estimator.recording().model.decoder)) {
    const Recording& r = estimator.recording();
    j["state_bytes"] = r.state_bytes.at(r.symbols.resolve({p.batch, 1, 1}));
  }
  j["weight_bytes"] = count_json(e.weight_bytes);
  j["devices"] = e.devices;
  j["weight_bytes_per_device"] = count_json(e.weight_bytes_per_device);
  j["kv_cache_bytes_per_device"] = count_json(e.kv_cache_bytes_per_device);
  j["communication_s"] = e.communication_s;
  j["tpot_communication_s"] = e.tpot_communication_s;
  j["prefill_bubble"] = e.prefill_bubble;
  j["decode_bubble"] = e.decode_bubble;
  if (c.interconnect) j["platform"] = c.interconnect->name();
  j["peak_memory_bytes"] = count_json(e.peak_memory_bytes);
  j["memory_capacity_bytes"] = count_json(c.hardware.memory_capacity.value);
  j["fits"] = e.fits;
  j["bound"] = roofline::name(e.bound);
  j["ttft_bound"] = roofline::name(e.ttft_bound);
  j["tpot_bound"] = roofline::name(e.tpot_bound);
  j["ttft_speedup"] = e.ttft_speedup;
  j["tpot_speedup"] = e.tpot_speedup;
  j["kv_cache_ratio"] = e.kv_cache_ratio;
  add_bound(j, "ttft", bars.ttft);
  add_bound(j, "tpot", bars.tpot);
  j["error_bound_note"] = bars.note;
  j["rests_on"] = rests_on(factors);
  j["factors"] = rows_of(factors, factor_json);
  j["warnings"] = estimator.warnings(p);
  return j;
}

/// What a prefill on several devices adds.
void add_placed_json(const PlacedEstimator& estimator, const PlacedPrefill& placed,
                     ordered_json& j) {
  const search::HardwareLink& link = estimator.link();
  j["partition_tokens"] = placed.tokens;
  if (placed.found) {
    j["lower_bound_s"] = *placed.found->lower_bound_s;
    j["evaluations"] = placed.found->evaluations;
  }
  j["message_bytes"] = placed.run.message_bytes;
  j["messages"] = placed.run.messages;
  j["ttft_no_communication_s"] = placed.without_links_s;
  j["link_bytes_per_s"] = link.link.bytes_per_s;
  j["link_latency_s"] = link.link.latency_s;
}

ordered_json devices_json(const PlacedPrefill& placed) {
  ordered_json list = ordered_json::array();
  for (std::size_t i = 0; i < placed.tokens.size(); ++i) {
    const simulate::RankUsage& usage = placed.run.ranks[i];
    list.push_back({{"device", i},
                    {"tokens", placed.tokens[i]},
                    {"compute_s", placed.helpers_s + usage.compute_s},
                    {"waiting_s", usage.waiting_s},
                    {"transfer_s", usage.transfer_s},
                    {"finish_s", placed.helpers_s + placed.run.finish_s[i]}});
  }
  return list;
}

/// One device's operators; where several read the prompt, those of its helper passes and of a
/// decode step.
std::vector<BreakdownRow> operators(const PlacedEstimator& estimator, const DesignPoint& p) {
  std::vector<BreakdownRow> rows = estimator.one_device().breakdown(p);
  if (estimator.is_placed()) {
    std::erase_if(rows, [](const BreakdownRow& r) { return r.pass == "prefill"; });
  }
  return rows;
}

std::string estimate_text(const Configuration& c, const DesignPoint& p, const Estimate& e,
                          const RequestOptions& request,
                          const std::vector<roofline::UsedFactor>& factors, const ErrorBars& bars) {
  const auto seconds = [](double s) { return format_quantity(s, Dimension::Seconds); };
  const auto bytes = [](double b) { return format_quantity(b, Dimension::Bytes); };
  const std::string version = c.engine.version.empty() ? "" : " " + c.engine.version;
  const std::string engine = c.engine.is_ideal() ? "" : " in " + c.engine.name + version;
  const std::string several = e.devices == 1 ? "" : fmt::format("{} x ", e.devices);
  std::string text = fmt::format(
      "{}{} on {}{}, {}, batch {}, prompt {}, output {}, {} attention, {}{}\n", c.architecture.name,
      engine, several, c.hardware.description, to_string(c.methods), p.batch, p.prompt_len,
      p.output_len, kernels_name(c.lowering.attention), roofline::name(c.mode),
      default_dtype_text(request, c.architecture));
  if (c.interconnect != nullptr) {
    const std::string plan = to_string(c.parallelism);
    text += fmt::format("{} on {}\n", plan.empty() ? "ranks" : plan, c.interconnect->name());
  }
  Table table({"", "value", "", "", ""});
  const auto gain = [](double ratio) {
    return ratio == 1 ? std::string() : fmt::format("{:.2f}x plain", ratio);
  };
  table.add({"TTFT", seconds(e.ttft_s), fmt::format("{}-bound", roofline::name(e.ttft_bound)),
             gain(e.ttft_speedup), bound_text(bars.ttft)});
  const auto parts = parts_of(e);
  for (const auto& [part, s] : parts) {
    if (parts.size() < 2) break;  // all of it is the base's
    std::string label = "  " + part;
    std::replace(label.begin(), label.end(), '_', '-');
    table.add({label, seconds(s), fmt::format("{:.1f} %", 100 * s / e.ttft_s)});
  }
  const auto add_waits = [&](double messages_s, double all_s, double bubble) {
    if (!c.parallelism.is_one() || messages_s > 0) {
      table.add(
          {"  messages", seconds(messages_s), fmt::format("{:.1f} %", 100 * messages_s / all_s)});
    }
    if (c.parallelism.pp > 1) {
      table.add({"  bubble", fmt::format("{:.1f} %", 100 * bubble), "of the stages' time"});
    }
  };
  add_waits(e.communication_s, e.ttft_s, e.prefill_bubble);
  table.add({"TPOT", seconds(e.tpot_s), fmt::format("{}-bound", roofline::name(e.tpot_bound)),
             gain(e.tpot_speedup), bound_text(bars.tpot)});
  add_waits(e.tpot_communication_s, e.tpot_s, e.decode_bubble);
  table.add({"prefill", fmt::format("{}FLOP", format_count(e.prefill_flops)),
             bytes(e.prefill_bytes), ""});
  table.add({"decode, a token", fmt::format("{}FLOP", format_count(e.decode_flops_per_token)),
             bytes(e.decode_bytes_per_token), ""});
  const WeightTypes& weights = c.lowering.weights;
  const bool as_stored = weights == c.architecture.stored_weights;
  const std::optional<DType>& operands = c.lowering.operands;
  const bool quantises = operands && bits_per_element(*operands) < bits_per_element(DType::FP16);
  const std::string reads =
      quantises ? fmt::format("; products read {}", name(*operands)) : std::string();
  table.add({"weights", bytes(e.weight_bytes),
             weights.is_uniform() ? "" : weights.text + (as_stored ? ", as stored" : "") + reads,
             ""});
  table.add({"KV cache", bytes(e.kv_cache_bytes), "",
             e.kv_cache_ratio == 1 ? "" : fmt::format("{:.3g} of plain", e.kv_cache_ratio)});
  if (!c.parallelism.is_one()) {
    table.add({"  a device", bytes(e.weight_bytes_per_device), "weights", ""});
    table.add({"", bytes(e.kv_cache_bytes_per_device), "KV cache", ""});
  }
  table.add({"peak memory", bytes(e.peak_memory_bytes),
             fmt::format("{} {}", e.fits ? "fits" : "does not fit",
                         bytes(c.hardware.memory_capacity.value)),
             ""});
  const std::string rows = table.text();
  text += rows.substr(rows.find('\n') + 1) +
          fmt::format("rests on {} figures\n", fmt::join(rests_on(factors), ", "));
  if (bars.ttft) text += "TTFT's bound: " + bars.ttft->population + "\n";
  if (bars.tpot) text += "TPOT's bound: " + bars.tpot->population + "\n";
  return text;
}

void write_roofline(const std::string& path, const Configuration& c, const DesignPoint& p,
                    const Estimator& estimator) {
  using roofline::Mode;
  // Those of passes are of devices that wait for others.
  std::vector<reports::Roofs> roofs{reports::roofs_of(roofline::rates_of(c), c.mode)};
  if (c.mode == Mode::Calibrated) {
    const auto light = roofline::make_rates(c.hardware, c.lowering, Mode::SpeedOfLight);
    roofs.push_back(reports::roofs_of(light, Mode::SpeedOfLight));
  }
  if (const auto& on_chip = estimator.rates().on_chip_bytes_per_second) {
    roofs.push_back({"on-chip memory", roofs.front().compute, *on_chip});
  }
  const std::string title =
      fmt::format("{} on {}, {} attention, batch {}, prompt {}", c.architecture.name,
                  c.hardware.name, kernels_name(c.lowering.attention), p.batch, p.prompt_len);
  reports::write_plot(reports::roofline_plot(roofs, estimator.breakdown(p), title), path);
}

/// What requests share that differ in their sizes alone.
struct Prepared {
  RequestOptions request;  ///< sizes left out
  LinkFlags link;
  Configuration configuration;
  PlacedEstimator estimator;
};

std::shared_ptr<const Prepared> prepare(const EstimateOptions& o, const Globals& globals) {
  const RequestOptions defaults;
  RequestOptions request = o.request;
  request.batch = defaults.batch;
  request.prompt_len = defaults.prompt_len;
  request.encoder_tokens = defaults.encoder_tokens;
  request.output_len = defaults.output_len;
  static thread_local std::deque<std::shared_ptr<const Prepared>> kept;
  constexpr std::size_t most_kept = 4;
  const auto found = std::find_if(kept.begin(), kept.end(), [&](const auto& p) {
    return p->request == request && p->link == o.link;
  });
  if (globals.files_stay && found != kept.end()) return *found;
  const Configuration c = parse_configuration(o.request, globals.catalog());
  parse_sizes(o.request, c.architecture);  // wrong ones are found first
  auto prepared = std::make_shared<const Prepared>(
      Prepared{request, o.link, c, PlacedEstimator(c, parse_placement_link(o.link, c))});
  if (!globals.files_stay) return prepared;
  kept.push_front(prepared);
  if (kept.size() > most_kept) kept.pop_back();
  return prepared;
}

const std::vector<Column> device_columns{{"device", "device"},
                                         {"tokens", "tokens"},
                                         {"compute", "compute_s", in_seconds},
                                         {"waiting", "waiting_s", in_seconds},
                                         {"transfer", "transfer_s", in_seconds},
                                         {"finish", "finish_s", in_seconds}};
void run(const EstimateOptions& o, const Globals& globals) {
  o.training.check();
  if (o.training.train) {
    return estimate_training(o.request, o.training, {o.json, o.breakdown, o.validation}, globals);
  }
  const std::shared_ptr<const Prepared> prepared = prepare(o, globals);
  const Configuration& c = prepared->configuration;
  const PlacedEstimator& estimator = prepared->estimator;
  const DesignPoint p = parse_sizes(o.request, c.architecture);
  const Estimator& one_device = estimator.one_device();
  const search::PlacedEstimate e = estimator.at(p);
  const std::optional<PlacedPrefill>& placed = e.prefill;
  const ErrorBars bars = error_bars(o, c, p, estimator, globals.catalog());
  for (const std::string& line : one_device.warnings(p)) globals.warn(line);
  if (!bars.note.empty()) globals.say("note: " + bars.note);
  if (!o.plot.empty()) {
    if (placed) {
      throw Error("--plot", "method " + to_string(c.methods) + " on several devices",
                  "one device, or kvcast simulate prefill --plot");
    }
    write_roofline(o.plot, c, p, one_device);
  }
  ordered_json devices;
  ordered_json breakdown;
  if (o.breakdown && placed) devices = devices_json(*placed);
  if (o.breakdown) breakdown = rows_of(operators(estimator, p), operator_json);
  if (o.json) {
    ordered_json j = estimate_json(c, p, e, estimator, bars);
    if (placed) add_placed_json(estimator, *placed, j);
    if (!devices.is_null()) j["by_device"] = devices;
    if (o.breakdown) {
      const reports::Roofs roofs = reports::roofs_of(roofline::rates_of(c), c.mode);
      j["roof_flops_per_second"] = roofs.compute.value;
      j["roof_bytes_per_s"] = roofs.memory.value;
      j["breakdown"] = breakdown;
    }
    print_json(j);
    return;
  }
  print_text(estimate_text(c, p, e, o.request, used_factors(estimator, c.architecture), bars));
  if (!devices.is_null()) print_text("\n" + table_text(device_columns, devices));
  if (o.breakdown) print_text("\n" + operators_text(breakdown));
}

}  // namespace

void add_estimate(Command app, const Globals& globals) {
  Command command = app.add_subcommand(
      "estimate",
      "Forecast one request: TTFT, TPOT, KV cache and memory.\n\nExamples:\n"
      "  kvcast estimate --model llama-7b --hardware a100-80gb --attention eager --prompt-len 4k\n"
      "  kvcast estimate --model llama-7b --hardware a100-80gb --method "
      "kvr:p=4,partition=search --prompt-len 16k --breakdown\n"
      "  kvcast estimate --model whisper-large-v3 --hardware h100-sxm --encoder-tokens 1500 "
      "--json\n"
      "  kvcast estimate --train --model llama-7b --hardware a100-80gb --dtype bf16 --seq-len 2k "
      "--batch 4 --recompute full");
  const auto options = std::make_shared<EstimateOptions>();
  options->request.add_to(command);
  command.add("--json", options->json);
  options->link.add_to(command);
  options->training.add_to(command);
  command.add("--plot", options->plot, "draw the roofline of the device with every operator");
  command.add("--validation FILE|FOLDER", options->validation,
              "stored validations for the error bounds, in addition to the catalog's");
  command
      .add("--breakdown", options->breakdown,
           "add a row for every operator, and for every device if there are several")
      .group("Output");
  command.exclude("--train", {"--link", "--link-gb-per-s", "--link-latency-s", "--plot"},
                  "a step of training does not have it");
  command.callback([options, &globals] {
    options->request.use_this_machine(globals);
    run(*options, globals);
  });
}

}  // namespace kvcast::cli
