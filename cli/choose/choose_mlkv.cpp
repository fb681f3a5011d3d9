#include <array>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "cli/choose/choose_parts.h"
#include "cli/choose/ranking.h"
#include "cli/frame/request_options.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "reports/reproduce/reproduce.h"
#include "search/mlkv_choice.h"

namespace kvcast::cli {
namespace {

using search::MlkvCandidate;
using search::MlkvGoal;

struct ChooseMlkvOptions {
  RequestOptions request;  ///< the model, device, kernels and batch
  std::string context = "2k";
  std::string memory_budget;
  std::string widen = "preserve";
  bool max_batch = false;
  RowsOutput output;
};

/// Published accuracies by layers and heads with keys and values, and by parameters.
using Accuracies = std::map<std::array<std::uint64_t, 3>, double>;

/// Table 3 of the paper, averages over four tasks; empty for models that the paper did not measure.
/// Keyed by parameters too: the paper's models have widened MLPs, and their accuracies do not hold
/// for other widths.
Accuracies published_accuracies(const Catalog& catalog, const Architecture& a) {
  Accuracies by_shape;
  // The paper uptrained pythia-160m. Its folder may have any name, and a changed model its name, so
  // compare type and size.
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

void choose_mlkv(const ChooseMlkvOptions& o, const Globals& globals) {
  o.output.check();
  const Catalog catalog = globals.catalog();
  search::MlkvRequest request;
  request.configuration = parse_configuration(o.request, catalog);
  request.has_hardware = !o.request.hardware.empty();
  request.widening = parse_flag("--widen", o.widen, parse_mlp_widening);
  request.batch = parse_token_count(o.request.batch, "--batch");
  request.kv_len = parse_token_count(o.context, "--context");
  if (!o.memory_budget.empty()) {
    request.memory_budget = parse_bytes(o.memory_budget, "--memory-budget");
  }
  request.goal = o.max_batch ? MlkvGoal::MaxBatch : MlkvGoal::Fit;

  const std::vector<MlkvCandidate> candidates = search::choose_mlkv(request);
  const Architecture& a = request.configuration.architecture;
  const Accuracies accuracies = published_accuracies(catalog, a);
  for (const std::string& line :
       roofline::context_warnings(a, {request.batch, request.kv_len - 1, 1})) {
    globals.warn(line);
  }
  Ranking ranking;
  ranking.head = {
      {"model", a.name},
      {"hardware",
       request.has_hardware ? ordered_json(request.configuration.hardware.name) : nullptr},
      {"batch", request.batch},
      {"context", request.kv_len},
      {"memory_bytes",
       request.memory_budget.value_or(request.configuration.hardware.memory_capacity.value)},
      {"goal", o.max_batch ? "max_batch" : "fit"}};
  ranking.rows = rows_of(candidates, [&](const MlkvCandidate& c) {
    return candidate_json(c, o.widen, accuracy_of(accuracies, c));
  });
  ranking.table = {{"layers", "kv_layers"},
                   {"heads", "kv_heads"},
                   {"KV heads", "total_kv_heads"},
                   {"KV cache", "kv_cache_bytes", in_bytes},
                   {"of plain", "kv_cache_ratio", in("{:.3g}")},
                   {"largest batch", "largest_batch"},
                   {"TPOT", "",
                    [](const ordered_json& row) {
                      return row["tpot_s"].is_null() ? "-" : in_seconds(row["tpot_s"]);
                    }},
                   {"memory", "peak_memory_bytes", in_bytes},
                   {"MLP width", "intermediate_size"}};
  if (!accuracies.empty()) {
    ranking.table.push_back({"accuracy, published", "published_accuracy_pct", in("{:.2f} %")});
  }
  ranking.csv = columns_of({"kv_layers", "kv_heads", "intermediate_size", "parameters",
                            "kv_cache_bytes", "kv_cache_ratio", "peak_memory_bytes",
                            "largest_batch", "tpot_s", "published_accuracy_pct"});
  ranking.rejected = [](const ordered_json& row) {
    return fmt::format("{} layers of {} heads", row["kv_layers"].dump(), row["kv_heads"].dump());
  };
  if (!request.has_hardware) ranking.note = "TPOT needs --hardware\n";
  print_ranking(ranking, o.output);
}

}  // namespace

void add_choose_mlkv(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "mlkv",
      "Choose how many layers keep keys and values, and with how many heads.\n\nExamples:\n"
      "  kvcast choose mlkv --model pythia-160m --hardware rtx-3060-12gb --batch 100 "
      "--context 2k\n"
      "  kvcast choose mlkv --model llama-2-7b --hardware a100-80gb --context 4k --max-batch\n"
      "  kvcast choose mlkv --model llama-2-7b --memory-budget '40 GB' --batch 16 --context 4k");
  c.footer(
      "Forms that fit are ranked by expected quality. First come those that keep all layers or one "
      "head per layer:\nsharing within layers costs less quality than sharing across them. Within "
      "each group, more KV heads in total\ncome first, then more layers. --max-batch ranks by the "
      "largest batch before that.\nWithout --hardware, --memory-budget is required and no times "
      "are "
      "printed.");
  const auto o = std::make_shared<ChooseMlkvOptions>();
  o->request.needs_hardware = false;
  o->request.add_choice_flags_to(c);
  c.add("--context TOKENS", o->context, "tokens in the KV cache of each sequence");
  c.add("--memory-budget BYTES", o->memory_budget,
        "memory for weights, KV cache and activations, \"8 GB\" or in bytes; "
        "default: the memory of --hardware");
  c.add("--max-batch", o->max_batch, "rank by largest batch first");
  c.add("--widen HOW", o->widen, "widen the MLPs: none, copy or preserve");
  o->output.add_to(c);
  c.callback([o, &globals] { choose_mlkv(*o, globals); });
}

}  // namespace kvcast::cli
