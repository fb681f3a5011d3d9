#include <optional>

#include "model/error.h"
#include "reports/reproduce_kvp.h"
#include "roofline/estimator.h"

namespace kvcast::reports {
namespace {

using roofline::Configuration;
using roofline::Hardware;

/// Of the table's first row.
constexpr const char* base_model = "OE1.1B";

/// What a row of the table was measured on.
struct Measured {
  Architecture architecture;
  std::vector<MethodSpec> methods;
};

/// What the paper measured with: PyTorch on the CPU (section 6.3), so eager kernels in fp32; the
/// released code takes the logits of all positions (apple/corenet, kv_prediction.py).
double ttft(const Measured& m, const Hardware& hardware, const roofline::DesignPoint& point) {
  Configuration c;
  c.architecture = m.architecture;
  c.methods = m.methods;
  c.hardware = hardware;
  c.lowering = {Kernels::Eager, Kernels::Eager, DType::FP32, DType::FP32, DType::FP32};
  c.logits = Logits::All;
  return roofline::Estimator(c).at(point).ttft_s;
}

/// The device with the one factor that nobody measured for it, the bandwidth of eager element-wise
/// kernels and softmax, chosen so that one model's TTFT comes out as measured.
Hardware calibrated(Hardware hardware, const Measured& base, const roofline::DesignPoint& point,
                    double measured, const std::string& place) {
  const auto set = [&](double factor) {
    roofline::Sourced sourced{factor, roofline::Source::Fitted, place, ""};
    hardware.elementwise_bandwidth = sourced;
    hardware.softmax_bandwidth = sourced;
    return ttft(base, hardware, point);
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

/// OpenELM models, their layer-pruned forms, and the base model with fewer of the prompt's tokens:
/// random (RP) and static pruning (SP) that keep a share of them, and LazyLLM (L) from a share to
/// another. Nothing for KV Prediction.
std::optional<Measured> measured_on(const Catalog& catalog, const std::string& model,
                                    const std::string& place) {
  const std::vector<std::string> parts = kvp_name_parts(model);
  const std::string& first = parts.front();
  const std::string& last = parts.back();
  if (first.starts_with("OE")) {
    if (parts.size() == 1) return Measured{openelm_of(catalog, model, model, place), {}};
    if (parts.size() == 3 && parts[1] == "LP") {
      return Measured{openelm_of(catalog, "OE-LP-" + last, first, place), {}};
    }
    return {};
  }
  std::string method;
  if (first == "RP") {
    method = "random-prune:keep=" + last;
  } else if (first == "SP") {
    method = "static-prune:keep=" + last;
  } else {
    method = "lazyllm:begin=" + first.substr(1) + ",end=" + last;
  }
  return Measured{openelm_of(catalog, base_model, base_model, place), parse_methods(method)};
}

/// Rows of LazyLLM, or the others.
std::vector<ReproducedRow> table5_ttft(const Catalog& catalog, bool of_lazyllm) {
  const Published published(catalog);
  const CsvTable table = published.read("kvp_table5_triviaqa_openelm_1p1b.csv");
  std::optional<Hardware> hardware;
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const auto wrong = published.erratum(row, "ttft_s");
    if (wrong && wrong->corrected.empty()) continue;  // E12: nobody knows it
    const KvpLabel label = kvp_label(published, row);
    const std::optional<Measured> measured = measured_on(catalog, label.model, row.place("model"));
    if (!measured) continue;
    const roofline::DesignPoint point{row.whole("batch_size"), row.whole("prompt_tokens"), 1};
    const bool calibrates = !hardware;
    if (calibrates) {
      KVCAST_ASSERT(label.model == base_model);
      hardware = calibrated(roofline::load_hardware(catalog, "m2-pro-cpu"), *measured, point,
                            row.number("ttft_s"), row.place("ttft_s"));
    }
    if (label.model.starts_with("L") != of_lazyllm) continue;
    rows.push_back(published.compare(row, "ttft_s", label.cell + ": TTFT",
                                     ttft(*measured, *hardware, point), TableKind::Measured));
    note_label(label, rows.back());
    rows.back().fitted = calibrates;
  }
  return rows;
}

}  // namespace

PublishedTable kvp_ttft_table() {
  return {"kvp-table5-ttft", "kvp",
          "KV Prediction, Table 5: TTFT on an M2 Pro's CPU, calibrated on OE1.1B's row alone",
          TableKind::Measured, [](const Catalog& catalog) { return table5_ttft(catalog, false); }};
}

PublishedTable kvp_lazyllm_ttft_table() {
  return {"kvp-table5-lazyllm", "kvp",
          "KV Prediction, Table 5: TTFT of LazyLLM, whose program is not released, as in "
          "kvp-table5-ttft",
          TableKind::Measured, [](const Catalog& catalog) { return table5_ttft(catalog, true); }};
}

}  // namespace kvcast::reports
