#include <array>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/choose/choose_devices.h"
#include "cli/choose/choose_keep_rate.h"
#include "cli/choose/choose_slim.h"
#include "cli/frame/command.h"
#include "cli/frame/csv_output.h"
#include "cli/frame/request_options.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/io/files/csv_writer.h"
#include "reports/reproduce/reproduce.h"
#include "search/mlkv_choice.h"

namespace kvcast::cli {
namespace {

using nlohmann::ordered_json;
using search::MlkvCandidate;
using search::MlkvGoal;

struct MlkvOptions {
  RequestOptions request;  ///< model, device, kernels and batch of it
  std::string context = "2k";
  std::string memory_budget;
  std::string widen = "preserve";
  std::string csv;
  bool max_batch = false;
  bool json = false;
};

/// Published accuracies by layers, heads and parameters.
using Accuracies = std::map<std::array<std::uint64_t, 3>, double>;

/// Table 3 of the paper, the averages over four tasks; nothing for models that it does not have.
/// Its models are widened: others of their layers and heads are not those that were measured.
Accuracies published_accuracies(const Catalog& catalog, const Architecture& a) {
  Accuracies by_shape;
  // The model that was uptrained, whatever a folder of it is called; not a changed one of its name.
  const Architecture pythia = load_model(catalog, "pythia-160m");
  if (a.model_type != pythia.model_type || count_parameters(a) != count_parameters(pythia)) {
    return by_shape;
  }
  const reports::Published published(catalog);
  std::map<std::string, double> by_model;
  const CsvTable scores = published.read("mlkv_table3_benchmarks.csv");
  for (const CsvRow& row : scores.rows()) {
    if (row.text("task") != "average_as_printed") continue;
    by_model[row.text("model")] = row.number("accuracy_pct");
  }
  const CsvTable variants = published.read("mlkv_table2_variants.csv");
  for (const CsvRow& row : variants.rows()) {
    const auto score = by_model.find(row.text("model"));
    if (score == by_model.end()) continue;
    by_shape[{row.whole("n_layers_with_kv_m"), row.whole("n_kv_groups_g"), row.whole("n_params")}] =
        score->second;
  }
  return by_shape;
}

const double* accuracy_of(const Accuracies& accuracies, const MlkvCandidate& c) {
  const auto found = accuracies.find({c.layers, c.heads, c.parameters});
  return found == accuracies.end() ? nullptr : &found->second;
}

std::string method_of(const MlkvCandidate& c, const std::string& widen) {
  return fmt::format("mlkv:layers={},heads={}{}", c.layers, c.heads,
                     widen == "preserve" ? "" : ",widen=" + widen);
}

/// "8 GB" or bytes.
double parse_bytes(const std::string& text, const char* flag) {
  const bool bare = text.find_first_not_of("0123456789") == std::string::npos;
  const double bytes = parse_quantity(bare ? text + " B" : text, Dimension::Bytes, flag);
  if (bytes < 1) throw Error(flag, "'" + text + "'", "at least 1 byte");
  return bytes;
}

ordered_json candidate_json(const MlkvCandidate& c, const std::string& widen,
                            const double* accuracy) {
  ordered_json j{{"method", method_of(c, widen)},
                 {"kv_layers", c.layers},
                 {"kv_heads", c.heads},
                 {"total_kv_heads", c.layers * c.heads}};
  if (c.parameters > 0) {
    j["intermediate_size"] = c.intermediate_size;
    j["parameters"] = c.parameters;
    j["kv_cache_bytes"] = static_cast<std::uint64_t>(c.kv_cache_bytes);
    j["kv_cache_ratio"] = c.kv_cache_ratio;
    j["peak_memory_bytes"] = c.peak_memory_bytes;
    j["largest_batch"] = c.largest_batch;
    j["tpot_s"] = c.tpot_s ? ordered_json(*c.tpot_s) : nullptr;
  }
  if (accuracy != nullptr) j["published_accuracy_pct"] = *accuracy;
  if (!c.rejected.empty()) j["reason"] = c.rejected;
  return j;
}

void write_mlkv_csv(const std::string& path, const std::vector<MlkvCandidate>& candidates,
                    const Accuracies& accuracies) {
  CsvWriter csv(csv_target(path),
                {"rank", "kv_layers", "kv_heads", "intermediate_size", "parameters",
                 "kv_cache_bytes", "kv_cache_ratio", "peak_memory_bytes", "largest_batch", "tpot_s",
                 "published_accuracy_pct", "rejected"});
  std::uint64_t rank = 0;
  for (const MlkvCandidate& c : candidates) {
    if (c.rejected.empty()) {
      csv.cell(++rank);
    } else {
      csv.missing_cell();
    }
    csv.cell(c.layers).cell(c.heads).cell(c.intermediate_size).cell(c.parameters);
    csv.cell(c.kv_cache_bytes).cell(c.kv_cache_ratio).cell(c.peak_memory_bytes);
    csv.cell(c.largest_batch);
    if (c.tpot_s) {
      csv.cell(*c.tpot_s);
    } else {
      csv.missing_cell();
    }
    if (const double* accuracy = accuracy_of(accuracies, c)) {
      csv.cell(*accuracy);
    } else {
      csv.missing_cell();
    }
    csv.cell(c.rejected);
    csv.end_row();
  }
  csv.commit();
}

std::string mlkv_text(const std::vector<MlkvCandidate>& candidates, const Accuracies& accuracies) {
  std::vector<std::string> header{"rank",   "layers",        "heads",   "KV heads", "KV cache",
                                  "of all", "largest batch", "a token", "memory",   "MLP width"};
  if (!accuracies.empty()) header.emplace_back("accuracy, published");
  Table table(header);
  std::string rejected;
  std::uint64_t rank = 0;
  for (const MlkvCandidate& c : candidates) {
    if (!c.rejected.empty()) {
      rejected +=
          fmt::format("rejected: {} layers of {} heads: {}\n", c.layers, c.heads, c.rejected);
      continue;
    }
    std::vector<std::string> row{std::to_string(++rank),
                                 std::to_string(c.layers),
                                 std::to_string(c.heads),
                                 std::to_string(c.layers * c.heads),
                                 format_quantity(c.kv_cache_bytes, Dimension::Bytes),
                                 fmt::format("{:.3g}", c.kv_cache_ratio),
                                 std::to_string(c.largest_batch),
                                 c.tpot_s ? format_quantity(*c.tpot_s, Dimension::Seconds) : "-",
                                 format_quantity(c.peak_memory_bytes, Dimension::Bytes),
                                 std::to_string(c.intermediate_size)};
    if (!accuracies.empty()) {
      const double* accuracy = accuracy_of(accuracies, c);
      row.push_back(accuracy != nullptr ? fmt::format("{:.2f} %", *accuracy) : "");
    }
    table.add(row);
  }
  if (rank == 0) return "no form of the model fits\n" + rejected;
  return table.text() + rejected;
}

void choose_mlkv(const MlkvOptions& o, const Globals& globals) {
  check_rows_alone(o.csv, {{"--json", o.json}});
  const Catalog catalog = globals.catalog();
  search::MlkvRequest request;
  request.configuration = parse_configuration(o.request, catalog);
  request.has_hardware = !o.request.hardware.empty();
  request.widening = parse_flag("--widen", o.widen, parse_mlp_widening);
  request.batch = parse_token_count(o.request.batch, "--batch");
  request.context = parse_token_count(o.context, "--context");
  if (!o.memory_budget.empty()) {
    request.memory_budget = parse_bytes(o.memory_budget, "--memory-budget");
  }
  request.goal = o.max_batch ? MlkvGoal::MaxBatch : MlkvGoal::Fit;

  const std::vector<MlkvCandidate> candidates = search::choose_mlkv(request);
  const Architecture& a = request.configuration.architecture;
  const Accuracies accuracies = published_accuracies(catalog, a);
  for (const std::string& line :
       roofline::context_warnings(a, {request.batch, request.context - 1, 1})) {
    globals.warn(line);
  }
  if (!o.csv.empty()) write_mlkv_csv(o.csv, candidates, accuracies);
  if (o.csv == "-") return;
  if (!o.json) {
    print_text(mlkv_text(candidates, accuracies) +
               (request.has_hardware ? "" : "how fast a token is decoded takes a --hardware\n"));
    return;
  }
  ordered_json rows = ordered_json::array();
  ordered_json rejected = ordered_json::array();
  for (const MlkvCandidate& c : candidates) {
    (c.rejected.empty() ? rows : rejected)
        .push_back(candidate_json(c, o.widen, accuracy_of(accuracies, c)));
  }
  print_json({{"model", a.name},
              {"hardware",
               request.has_hardware ? ordered_json(request.configuration.hardware.name) : nullptr},
              {"batch", request.batch},
              {"context", request.context},
              {"memory_bytes", request.memory_budget.value_or(
                                   request.configuration.hardware.memory_capacity.value)},
              {"goal", o.max_batch ? "max_batch" : "fit"},
              {"rows", rows},
              {"rejected", rejected}});
}

void add_mlkv(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "mlkv",
      "How many layers should own keys and values, with how many heads.\n\nExamples:\n"
      "  kvcast choose mlkv --model pythia-160m --hardware rtx-3060-12gb --batch 100 "
      "--context 2k\n"
      "  kvcast choose mlkv --model llama-2-7b --hardware a100-80gb --context 4k --max-batch\n"
      "  kvcast choose mlkv --model llama-2-7b --memory-budget '40 GB' --batch 16 --context 4k");
  c.footer(
      "Of the forms that fit, those that keep all layers or one head a layer come first: sharing "
      "within\nlayers costs less quality than across them. Among either, more heads in all first, "
      "then more layers.\n--max-batch: larger batches before all that.\nWithout --hardware the "
      "budget has to be given, and nothing is said of speed.");
  const auto o = std::make_shared<MlkvOptions>();
  o->request.add_choice_flags_to(c);
  o->request.needs_hardware = false;
  c.flag("--hardware").required(false);
  c.add("--context TOKENS", o->context, "tokens in the cache of each sequence");
  c.add("--memory-budget BYTES", o->memory_budget,
        "for weights, cache and activations, \"8 GB\" or in bytes; "
        "default: the memory of --hardware");
  c.add("--max-batch", o->max_batch, "the form for the largest batch first");
  c.add("--widen HOW", o->widen, "of the MLPs: none, copy or preserve");
  c.add("--csv", o->csv);
  c.add("--json", o->json);
  c.callback([o, &globals] { choose_mlkv(*o, globals); });
}

}  // namespace

void add_choose(Command app, const Globals& globals) {
  Command command = app.add_subcommand(
      "choose",
      "Pick a method's options under a goal and a budget.\n\nExamples:\n"
      "  kvcast choose mlkv --model pythia-160m --hardware rtx-3060-12gb --batch 100 "
      "--context 2k\n"
      "  kvcast choose mlkv --help");
  command.require_subcommand(1);
  add_mlkv(command, globals);
  add_choose_slim(command, globals);
  add_choose_devices(command, globals);
  add_choose_keep_rate(command, globals);
}

}  // namespace kvcast::cli
