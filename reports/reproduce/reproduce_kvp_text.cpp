#include "model/base/error.h"
#include "model/config/layer_pruning.h"
#include "model/record/recording.h"
#include "reports/reproduce/reproduce_kvp.h"

namespace kvcast::reports {
namespace {

/// Table 4: the base layer at each place of a pruned model.
std::vector<ReproducedRow> retained(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvp_table4_retained_layers.csv");
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const Architecture base = load_model(catalog, catalog_spelling(row.text("base_model")));
    const std::vector<std::size_t> kept =
        retained_layers(base.num_hidden_layers(), row.number("retained_fraction"));
    const std::size_t position = row.whole("position_in_pruned_model");
    if (position >= kept.size()) {
      throw Error(row.place("position_in_pruned_model"), std::to_string(position),
                  "below " + std::to_string(kept.size()));
    }
    rows.push_back(
        published.compare(row, "retained_base_layer_index",
                          row.text("pruned_model") + ": layer " + std::to_string(position),
                          static_cast<double>(kept[position])));
  }
  return rows;
}

std::vector<ReproducedRow> prose(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvp_prose.csv");
  const auto said = [&](const char* id) { return published.claim("kvp_prose.csv", id); };
  const double ttft = said("kvp_p01");
  const double step = ttft / said("kvp_p02");
  const auto parameters = [&](const std::string& model, const std::string& base) {
    return static_cast<double>(count_parameters(openelm_of(catalog, model, base, table.name())));
  };
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& id = row.text("claim_id");
    const auto add = [&](const char* cell, double ours) {
      rows.push_back(published.compare(row, "value", cell, ours));
    };
    if (id == "kvp_p03") add("OpenELM 3B: TTFT over the printed ratio, s", step);
    if (id == "kvp_p04") add("OpenELM 3B: TTFT and one step, s", ttft + step);
    if (id == "kvp_p05") add("share of TTFT in that, percent", 100 * ttft / (ttft + step));
    if (id == "kvp_p20") {
      add("parameters of OpenELM 3B at 0.75 of its layers over OpenELM 1.1B",
          parameters("OE-LP-0.75", "OE3B") / parameters("OE1.1B", "OE1.1B"));
    }
  }
  return rows;
}

}  // namespace

PublishedTable kvp_retained_layers_table() {
  return {"kvp-table4", "kvp", "KV Prediction, Table 4: layers that pruned models keep",
          TableKind::Exact, retained};
}

PublishedTable kvp_prose_table() {
  return {"kvp-prose", "kvp", "KV Prediction, text: what is arithmetic", TableKind::Exact, prose};
}

}  // namespace kvcast::reports
