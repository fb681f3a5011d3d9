#include "reports/reproduce/reproduce_kvr.h"

#include <utility>

#include "model/record/recording.h"
#include "roofline/forecast.h"

namespace kvcast::reports {
namespace {

/// One GPU of the paper's node of A100s (80 GB: its 12k prompts need 49), fp16, batch 1, eager
/// attention as PyTorch ran it then. No factor of the hardware file is fitted to these numbers.
std::vector<ReproducedRow> table3_base(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvr_table3_ttft_low_bandwidth.csv");
  Lowering lowering;  // fp16
  lowering.attention = lowering.elementwise = Kernels::Eager;
  const roofline::Rates rates = roofline::make_rates(roofline::load_hardware(catalog, "a100-80gb"),
                                                     lowering, roofline::Mode::Calibrated);
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    if (row.whole("n_gpus") != 1) continue;
    const Architecture a = load_model(catalog, catalog_spelling(row.text("model")));
    const roofline::Forecaster forecaster(record(a, {}, lowering), lowering, rates);
    roofline::DesignPoint point;
    point.prompt_len = row.whole("context_tokens");
    const roofline::Forecast forecast = forecaster.at(point);
    const std::string cell = row.text("model") + ": ttft_s at " + row.text("context_label") + ", " +
                             std::string(name(forecast.ttft_bound)) + "-bound";
    ReproducedRow reproduced =
        published.compare(row, "ttft_s", cell, forecast.ttft_s, TableKind::Measured);
    reproduced.prompt_len = point.prompt_len;
    rows.push_back(std::move(reproduced));
  }
  return rows;
}

}  // namespace

std::vector<PublishedTable> kvr_tables() {
  std::vector<PublishedTable> tables = kvr_exact_tables();
  tables.push_back({"kvr-table3-base", "kvr",
                    "KV-Runahead, Table 3: TTFT on one A100 80GB, eager attention",
                    TableKind::Measured, table3_base});
  for (PublishedTable& table : kvr_parallel_tables()) tables.push_back(std::move(table));
  for (PublishedTable& table : kvr_text_tables()) tables.push_back(std::move(table));
  return tables;
}

}  // namespace kvcast::reports
