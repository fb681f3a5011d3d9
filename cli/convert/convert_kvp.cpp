#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "cli/convert/convert_options.h"
#include "cli/convert/convert_parts.h"
#include "cli/frame/request_options.h"
#include "cli/run/pair_text.h"
#include "model/base/quantity.h"
#include "model/convert/kvp_fit.h"
#include "reports/plot/plot.h"
#include "reports/plot/prediction_errors.h"

namespace kvcast::cli {
namespace {

struct KvpOptions {
  ConvertOptions common;
  std::string auxiliary;
  std::string map = "code";
  std::string text;
  bool identity = false;
  double ridge = KvpFit{}.ridge;
  double held_out = KvpFit{}.held_out;
  std::string window = std::to_string(KvpFit{}.window);
  std::string csv;
  std::string plot;
  std::string plot_positions;
};

ordered_json errors_json(const std::vector<PredictionError>& keys,
                         const std::vector<PredictionError>& values) {
  ordered_json rows = ordered_json::array();
  const auto finite = [](double x) { return std::isfinite(x) ? ordered_json(x) : nullptr; };
  for (std::size_t i = 0; i < keys.size(); ++i) {
    rows.push_back({{"index", i},
                    {"key_l1", keys[i].l1},
                    {"key_r2", finite(keys[i].r2)},
                    {"value_l1", values[i].l1},
                    {"value_r2", finite(values[i].r2)}});
  }
  return rows;
}

ordered_json kvp_json(const KvpOptions& o, const KvpFitReport& r) {
  return {{"base", r.config.base.name},
          {"auxiliary", r.config.auxiliary.name},
          {"output", o.common.out},
          {"layer_map", r.config.map},
          {"parameters", r.parameters},
          {"fitted_tokens", r.fitted_tokens},
          {"held_out_tokens", r.held_out_tokens},
          {"layers", errors_json(r.key_layers, r.value_layers)},
          {"positions", errors_json(r.key_positions, r.value_positions)},
          {"dtype", o.common.dtype}};
}

std::string kvp_text(const KvpFitReport& r) {
  std::string text;
  if (!r.key_layers.empty()) {
    ordered_json rows = errors_json(r.key_layers, r.value_layers);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i]["from"] = r.config.map[i];
    const Words number = in("{:.4g}");
    text = table_text({{"layer", "index"},
                       {"from", "from"},
                       {"key L1", "key_l1", number},
                       {"key R2", "key_r2", number},
                       {"value L1", "value_l1", number},
                       {"value R2", "value_r2", number}},
                      rows) +
           fmt::format("fitted on {} tokens, errors measured on {} others\n", r.fitted_tokens,
                       r.held_out_tokens);
  }
  return text + fmt::format("predictor of {} parameters\n", r.parameters);
}

/// Warns in one line when maps predict held-out tokens worse than a constant would.
void warn_of_misfits(const KvpFitReport& r, const Globals& globals) {
  std::size_t misfits = 0;
  double worst = 0;
  for (const auto* errors : {&r.key_layers, &r.value_layers}) {
    for (const PredictionError& e : *errors) {
      if (e.r2 < 0) ++misfits;
      worst = std::min(worst, e.r2);
    }
  }
  if (misfits == 0) return;
  globals.warn(fmt::format(
      "{} of {} maps predict the held-out tokens worse than the fitted tokens' mean does (R2 down "
      "to {:.3g}): {} tokens are too few, or the auxiliary model tells too little",
      misfits, r.key_layers.size() + r.value_layers.size(), worst, r.fitted_tokens));
}

void convert_kvp(const KvpOptions& o, const Globals& globals) {
  const Checkpoint base(o.common.in);
  const Checkpoint auxiliary(o.auxiliary);
  check_pair(base.architecture(), auxiliary.architecture());
  KvpFit fit;
  fit.map = parse_flag("--map", o.map, [&](const std::string& text) {
    return read_layer_map(text, base.architecture(), auxiliary.architecture());
  });
  fit.ridge = o.ridge;
  fit.held_out = o.held_out;
  fit.window = parse_token_count(o.window, "--window");
  fit.dtype = parse_flag("--dtype", o.common.dtype, parse_dtype);
  if (o.identity == !o.text.empty()) {
    throw Error("convert kvp: expected --fit TEXT, or --identity without --fit");
  }
  check_rows_alone(o.csv, {{"--json", o.common.json}});
  const std::string csv = csv_target(o.csv);
  // The text is read first: a tokenizer that differs on it gives the clearer message.
  const auto text = o.identity ? std::vector<execute::TokenId>()
                               : read_pair_text("--fit", o.text, base, auxiliary);
  check_pair_tokenizers(base, auxiliary);
  const KvpFitReport report = with_progress(globals, [&](auto progress) {
    return o.identity ? write_identity_predictor(base, auxiliary, o.common.out, fit)
                      : fit_predictor(base, auxiliary, text, o.common.out, fit, progress);
  });
  warn_of_misfits(report, globals);
  if (!csv.empty()) reports::write_prediction_csv(report, csv);
  const auto draw = [&](auto plot_of, const std::string& picture) {
    if (picture.empty()) return;
    reports::write_plot(plot_of(report, reports::ErrorMeasure::L1), picture);
    reports::write_plot(plot_of(report, reports::ErrorMeasure::R2),
                        reports::picture_beside(picture, "-r2"));
  };
  draw(reports::prediction_layer_plot, o.plot);
  draw(reports::prediction_position_plot, o.plot_positions);
  if (o.csv == "-") return;
  print_result(o.common.json, kvp_json(o, report), kvp_text(report));
}

}  // namespace

void add_convert_kvp(Command convert, const Globals& globals) {
  Command c = convert.add_subcommand(
      "kvp",
      "Fit KV Prediction's linear maps from an auxiliary model's keys and values to the base "
      "model's.\n\nExamples:\n"
      "  kvcast convert prune tests/oracle/openelm openelm-lp --keep 0.5\n"
      "  kvcast convert kvp --base tests/oracle/openelm --auxiliary openelm-lp --fit ids.json "
      "predictor");
  c.footer(
      "Errors are those of held-out windows, for values and for keys before the base's norm and "
      "rotation.\n"
      "The fitted part of the text needs at least as many tokens as a map has unknowns per "
      "output:\n"
      "KV heads times head size of the auxiliary layer, plus one.");
  const auto o = std::make_shared<KvpOptions>();
  c.add("OUT", o->common.out, "the new folder: config.json and model.safetensors").required();
  add_convert_output_options(c, o->common);
  c.add("--base", o->common.in).required();
  c.add("--auxiliary", o->auxiliary).required();
  c.add("--map MAP", o->map,
        "the auxiliary layer of each base layer: code, paper, or a file of indices");
  c.add("--fit TEXT", o->text, "a text file, or token ids in a .json");
  c.add("--identity", o->identity, "no fit: use the auxiliary's keys and values unchanged");
  c.add("--ridge X", o->ridge, "ridge penalty on the weights, relative to the inputs' variance");
  c.add("--window", o->window);
  c.add("--held-out F", o->held_out, "share of the text held out to measure errors");
  c.add("--csv", o->csv, "write errors over layers and positions as CSV; - is stdout");
  const auto both = [](const std::filesystem::path& picture) {
    return std::vector{picture, reports::picture_beside(picture, "-r2")};
  };
  c.add("--plot", o->plot,
        "draw errors over layers, .svg or .png; also writes R2, to layers-r2.svg for layers.svg")
      .draws(both);
  c.add("--plot-positions FILE", o->plot_positions, "draw errors over positions, likewise")
      .draws(both);
  c.need({"--ridge", "--window", "--held-out", "--csv", "--plot", "--plot-positions"}, {"--fit"});
  c.callback([o, &globals] { convert_kvp(*o, globals); });
}

}  // namespace kvcast::cli
