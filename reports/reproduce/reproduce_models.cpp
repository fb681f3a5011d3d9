#include "model/record/recording.h"
#include "reports/reproduce/reproduce.h"

namespace kvcast::reports {
namespace {

/// Not a paper's table: parameters and cache sizes computed without kvcast, many of them equal to
/// published counts (data/models/README.md).
std::vector<ReproducedRow> parameters(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = CsvTable::read(catalog.root() / "models" / "parameters.csv");
  Lowering lowering;
  lowering.cache = DType::FP8;  // one byte an element: cache bytes are elements
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& name = row.text("name");
    const Architecture a = load_model(catalog, name);
    const Recording recording = record(a, {}, lowering);
    const auto add = [&](const std::string& column, std::uint64_t ours) {
      rows.push_back(
          published.compare(row, column, name + ": " + column, static_cast<double>(ours)));
    };
    add("parameters", recording.parameters);
    add("kv_elements_per_token", recording.kv_cache_bytes_per_token.at({}));
    if (a.encoder_decoder) {
      add("cross_kv_elements_per_encoder_token", recording.cross_cache_bytes_per_token.at({}));
    }
  }
  return rows;
}

}  // namespace

std::vector<PublishedTable> model_tables() {
  return {{"models", "models", "Parameters and cache elements per token of catalog models",
           TableKind::Exact, parameters}};
}

}  // namespace kvcast::reports
