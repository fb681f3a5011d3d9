#include <algorithm>

#include "model/base/error.h"
#include "reports/reproduce/reproduce.h"
#include "roofline/estimator.h"

namespace kvcast::reports {
namespace {

using roofline::DesignPoint;
using roofline::Estimate;

bool known(const Catalog& catalog, std::string_view folder, const std::string& name) {
  const std::vector<std::string> names = catalog.names(folder);
  return std::binary_search(names.begin(), names.end(), name);
}

/// Our value of a measured metric, in the row's unit.
double forecast(const CsvRow& row, const DesignPoint& p, const Estimate& e) {
  const std::string& metric = row.text("metric");
  const std::string& unit = row.text("unit");
  const double per_second = unit == "ms" ? 1e3 : 1;
  const auto batch = static_cast<double>(p.batch);
  const auto later_tokens = static_cast<double>(p.output_len - 1);
  if (metric == "ttft_s") return e.ttft_s * per_second;
  if (metric == "tpot_s") return e.tpot_s * per_second;
  if (metric == "throughput_output_tokens_per_s") {
    return batch * static_cast<double>(p.output_len) / (e.ttft_s + later_tokens * e.tpot_s);
  }
  if (metric == "decode_tokens_per_s") return batch / e.tpot_s;
  if (metric == "prefill_tokens_per_s") {
    return batch * static_cast<double>(p.prompt_len) / e.ttft_s;
  }
  throw Error(row.place("metric"), "'" + metric + "'",
              "ttft_s, tpot_s or a rate in tokens per second");
}

/// Fused element-wise kernels, calibrated. Rows of models and devices that are not in the catalog
/// are left out.
std::vector<ReproducedRow> public_latency(const Catalog& catalog) {
  const CsvTable table = CsvTable::read(catalog.root() / "measurements" / "public_llm_latency.csv");
  const Published published(catalog);
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& model = row.text("model");
    const std::string& hardware = row.text("hardware");
    if (!known(catalog, "models", model) || !known(catalog, "hardware", hardware)) continue;
    roofline::Configuration c;
    c.architecture = load_model(catalog, model);
    c.hardware = roofline::load_hardware(catalog, hardware);
    c.lowering.attention = row.text("attention") == "eager" ? Kernels::Eager : Kernels::Fused;
    c.lowering.weights = parse_dtype(row.text("weight_dtype"));
    c.lowering.activations = parse_dtype(row.text("activation_dtype"));
    c.lowering.cache = parse_dtype(row.text("cache_dtype"));
    // llama-bench runs prefill and decode on their own and prints 0 for the other's length.
    const DesignPoint p{row.whole("batch"), std::max<std::uint64_t>(row.whole("prompt_len"), 1),
                        std::max<std::uint64_t>(row.whole("output_len"), 1)};
    const Estimate e = roofline::Estimator(c).at(p);
    rows.push_back(published.compare(row, "value", row.text("id") + ": " + row.text("metric"),
                                     forecast(row, p, e), TableKind::Measured));
  }
  return rows;
}

}  // namespace

std::vector<PublishedTable> measurement_tables() {
  return {{"public-latency", "measurements",
           "TTFT, TPOT and throughput that engines publish, one device", TableKind::Measured,
           public_latency}};
}

}  // namespace kvcast::reports
