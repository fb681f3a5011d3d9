#include <charconv>
#include <map>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/config/kv_predictor.h"
#include "model/config/layer_pruning.h"
#include "model/record/recording.h"
#include "reports/reproduce/reproduce_kvp.h"

namespace kvcast::reports {
namespace {

/// Base and auxiliary of a row.
struct Pair {
  Architecture base;
  Architecture auxiliary;
};

Pair pair_of(const Catalog& catalog, const CsvRow& row) {
  const std::string& base = row.text("base_model");
  const std::string place = row.place("aux_model");
  return {openelm_of(catalog, base, base, place),
          openelm_of(catalog, row.text("aux_model"), base, place)};
}

/// Table 1, held against the maps of the released configurations: where the print differs, E9.
std::vector<ReproducedRow> layer_maps(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvp_table1_layer_map.csv");
  std::map<std::string, LayerMap> maps;
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& name = row.text("kvp_model");
    if (!maps.contains(name)) {
      const Pair pair = pair_of(catalog, row);
      maps[name] = code_layer_map(pair.base, pair.auxiliary);
    }
    const std::uint64_t layer = row.whole("base_layer_index");
    const LayerMap& map = maps.at(name);
    if (layer >= map.size()) {
      throw Error(row.place("base_layer_index"), std::to_string(layer),
                  fmt::format("a layer below {}", map.size()));
    }
    rows.push_back(published.compare(row, "aux_layer_index",
                                     fmt::format("{}: layer {}", name, layer),
                                     static_cast<double>(map[layer])));
  }
  return rows;
}

std::vector<ReproducedRow> predictors(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvp_predictor_parameters.csv");
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const Pair pair = pair_of(catalog, row);
    const std::string& name = row.text("kvp_model");
    rows.push_back(published.compare(row, "auxiliary_parameters", name + ": auxiliary",
                                     static_cast<double>(count_parameters(pair.auxiliary))));
    const std::uint64_t predictor =
        predictor_parameters(pair.base, pair.auxiliary, code_layer_map(pair.base, pair.auxiliary));
    rows.push_back(published.compare(row, "predictor_parameters", name + ": predictor",
                                     static_cast<double>(predictor)));
  }
  return rows;
}

}  // namespace

Architecture openelm_of(const Catalog& catalog, const std::string& printed, const std::string& base,
                        const std::string& place) {
  const auto load = [&](const std::string& name) {
    return load_model(catalog, catalog_spelling("openelm-" + name.substr(2)));
  };
  constexpr std::string_view pruned = "OE-LP-";
  if (printed.starts_with(pruned)) {
    double keep = 0;
    const char* end = printed.data() + printed.size();
    const auto [rest, error] = std::from_chars(printed.data() + pruned.size(), end, keep);
    if (error != std::errc() || rest != end) {
      throw Error(place, "'" + printed + "'", "OE-LP- and a fraction");
    }
    const Architecture whole = load(base);
    return prune_layers(whole, retained_layers(whole.num_hidden_layers(), keep));
  }
  if (!printed.starts_with("OE")) throw Error(place, "'" + printed + "'", "OE and a size");
  return load(printed);
}

PublishedTable kvp_layer_map_table() {
  return {"kvp-table1", "kvp", "KV Prediction, Table 1: auxiliary layer of each base layer",
          TableKind::Exact, layer_maps};
}

PublishedTable kvp_predictor_table() {
  return {"kvp-predictors", "kvp",
          "KV Prediction: parameters of auxiliaries and predictors, as released", TableKind::Exact,
          predictors};
}

}  // namespace kvcast::reports
