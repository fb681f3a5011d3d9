#include <optional>

#include "model/error.h"
#include "reports/reproduce_kvp.h"
#include "roofline/estimator.h"

namespace kvcast::reports {
namespace {

using roofline::Configuration;
using roofline::Hardware;

/// What the paper measured with: PyTorch on the CPU (section 6.3), so eager kernels in fp32; the
/// released code takes the logits of all positions (apple/corenet, kv_prediction.py).
double ttft(const Architecture& a, const Hardware& hardware, const roofline::DesignPoint& point) {
  Configuration c;
  c.architecture = a;
  c.hardware = hardware;
  c.lowering = {Kernels::Eager, Kernels::Eager, DType::FP32, DType::FP32, DType::FP32};
  c.logits = Logits::All;
  return roofline::Estimator(c).at(point).ttft_s;
}

/// The device with the one factor that nobody measured for it, the bandwidth of eager element-wise
/// kernels and softmax, chosen so that one model's TTFT comes out as measured.
Hardware calibrated(Hardware hardware, const Architecture& a, const roofline::DesignPoint& point,
                    double measured, const std::string& place) {
  const auto set = [&](double factor) {
    roofline::Sourced sourced{factor, roofline::Source::Fitted, place, ""};
    hardware.elementwise_bandwidth = sourced;
    hardware.softmax_bandwidth = sourced;
    return ttft(a, hardware, point);
  };
  double low = 1e-3;
  double high = 1;
  if (!(set(low) > measured && set(high) < measured)) {
    throw Error(place, "a TTFT that no bandwidth of element-wise kernels explains",
                "one between those of a factor of 0.001 and of 1");
  }
  constexpr int halvings = 40;
  for (int i = 0; i < halvings; ++i) {
    const double middle = (low + high) / 2;
    (set(middle) > measured ? low : high) = middle;
  }
  return hardware;
}

/// OpenELM models and their layer-pruned forms; what tokens are pruned is another question.
std::optional<Architecture> model_of(const Catalog& catalog, const CsvRow& row) {
  const std::string& printed = row.text("model");
  const std::string place = row.place("model");
  if (!printed.starts_with("OE") || printed.find("KVP") != std::string::npos) return {};
  const std::size_t pruned = printed.find("-LP-");
  if (pruned == std::string::npos) return openelm_of(catalog, printed, printed, place);
  return openelm_of(catalog, "OE" + printed.substr(pruned), printed.substr(0, pruned), place);
}

std::vector<ReproducedRow> table5_ttft(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvp_table5_triviaqa_openelm_1p1b.csv");
  std::optional<Hardware> hardware;
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::optional<Architecture> a = model_of(catalog, row);
    if (!a) continue;
    const roofline::DesignPoint point{row.whole("batch_size"), row.whole("prompt_tokens"), 1};
    std::string cell = row.text("model") + ": TTFT";
    const bool calibrates = !hardware;
    if (calibrates) {  // the table's first row is the base model, OE1.1B
      hardware = calibrated(roofline::load_hardware(catalog, "m2-pro-cpu"), *a, point,
                            row.number("ttft_s"), row.place("ttft_s"));
    }
    rows.push_back(
        published.compare(row, "ttft_s", cell, ttft(*a, *hardware, point), TableKind::Measured));
    rows.back().fitted = calibrates;
  }
  return rows;
}

}  // namespace

PublishedTable kvp_ttft_table() {
  return {"kvp-table5-ttft", "kvp",
          "KV Prediction, Table 5: TTFT on an M2 Pro's CPU, calibrated on OE1.1B's row alone",
          TableKind::Measured, table5_ttft};
}

}  // namespace kvcast::reports
