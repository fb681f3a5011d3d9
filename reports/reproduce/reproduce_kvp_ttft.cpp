#include <iterator>

#include "model/base/error.h"
#include "reports/reproduce/reproduce_kvp.h"
#include "roofline/estimator.h"

namespace kvcast::reports {
namespace {

using roofline::Configuration;
using roofline::DesignPoint;
using roofline::Forecast;

/// Whose layers are pruned and whose prompts.
constexpr const char* base_model = "OE1.1B";

/// What a row was measured on.
struct Measured {
  Architecture architecture;
  std::vector<MethodSpec> methods;
};

/// What the paper measured with: PyTorch on the CPU of an M2 Pro (section 6.3). Taken for granted:
/// fp32, and eager kernels, though newer versions of PyTorch than it may have had fuse the
/// attention that the released code asks for. It takes the logits of all positions (apple/corenet,
/// general_gpt.py).
Forecast forecast(const Catalog& catalog, const Measured& m, const DesignPoint& point) {
  Configuration c;
  c.architecture = m.architecture;
  c.methods = m.methods;
  c.hardware = roofline::load_hardware(catalog, "m2-pro-cpu");
  c.find_model = [&](const std::string& name) { return load_model(catalog, name); };
  c.lowering = {Kernels::Eager, Kernels::Eager, DType::FP32, DType::FP32, DType::FP32};
  c.logits = Logits::All;
  return roofline::Estimator(c).at(point);
}

/// KV Prediction as released, with a smaller sibling ("C") or the base's own layers ("LP").
std::string kv_prediction(std::string_view kind, const std::string& of, const std::string& place) {
  if (kind == "LP") return "kvp:auxiliary=lp-" + of;
  if (kind == "C") return "kvp:auxiliary=" + catalog_spelling("openelm-" + of);
  throw Error(place, "KVP-" + std::string(kind), "KVP-C or KVP-LP");
}

/// OpenELM models, their layer-pruned forms, KV Prediction (KVP), and the base model with fewer of
/// the prompt's tokens: random (RP) and static pruning (SP) that keep a share of them, and LazyLLM
/// (L) from a share to another.
Measured measured_on(const Catalog& catalog, const std::string& model, const std::string& place) {
  const std::vector<std::string> parts = kvp_name_parts(model);
  const std::string& first = parts.front();
  const std::string& last = parts.back();
  if (first.starts_with("OE") && parts.size() == 1) {
    return {openelm_of(catalog, model, model, place), {}};
  }
  if (first.starts_with("OE") && parts.size() == 3 && parts[1] == "LP") {
    return {openelm_of(catalog, "OE-LP-" + last, first, place), {}};
  }
  std::string method;
  if (first.starts_with("OE") && parts.size() == 4 && parts[1] == "KVP") {
    method = kv_prediction(parts[2], last, place);
  } else if (first == "RP") {
    method = "random-prune:keep=" + last;
  } else if (first == "SP") {
    method = "static-prune:keep=" + last;
  } else if (first.starts_with("L")) {
    method = "lazyllm:begin=" + first.substr(1) + ",end=" + last;
  } else {
    throw Error(place, "model '" + model + "'",
                "OE..., OE...-LP-F, OE...-KVP-C-..., OE...-KVP-LP-F, RP-F, SP-F or LF-F");
  }
  return {openelm_of(catalog, base_model, base_model, place), parse_methods(method)};
}

/// Rows of LazyLLM, or the others.
std::vector<ReproducedRow> ttfts(const Catalog& catalog, std::string_view file, bool of_lazyllm) {
  const Published published(catalog);
  const CsvTable table = published.read(file);
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const auto wrong = published.erratum(row, "ttft_s");
    if (wrong && wrong->corrected.empty()) continue;  // E12: nobody knows it
    const KvpLabel label = kvp_label(published, row);
    if (label.model.starts_with("L") != of_lazyllm) continue;
    const DesignPoint point{row.whole("batch_size"), row.whole("prompt_tokens"), 1};
    const Measured measured = measured_on(catalog, label.model, row.place("model"));
    rows.push_back(published.compare(row, "ttft_s", label.cell + ": TTFT",
                                     forecast(catalog, measured, point).ttft_s,
                                     TableKind::Measured));
    note_label(label, rows.back());
  }
  return rows;
}

constexpr std::string_view table5 = "kvp_table5_triviaqa_openelm_1p1b.csv";

/// Table 5, its rows of KV Prediction behind the others.
std::vector<ReproducedRow> table5_ttfts(const Catalog& catalog) {
  std::vector<ReproducedRow> rows = ttfts(catalog, table5, false);
  std::vector<ReproducedRow> predicted = ttfts(catalog, "kvp_table5_kv_prediction.csv", false);
  std::move(predicted.begin(), predicted.end(), std::back_inserter(rows));
  return rows;
}

/// Section 3: OpenELM 3B and one prompt. The device's memory bandwidth and matrix rate are fitted
/// to both times.
std::vector<ReproducedRow> section3(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvp_prose.csv");
  const auto prompt = static_cast<std::uint64_t>(published.claim("kvp_prose.csv", "kvp_p06"));
  const Forecast ours =
      forecast(catalog, {openelm_of(catalog, "OE3B", "OE3B", table.name()), {}}, {1, prompt, 2});
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& id = row.text("claim_id");
    if (id != "kvp_p01" && id != "kvp_p03") continue;
    const bool step = id == "kvp_p03";
    rows.push_back(published.compare(row, "value",
                                     step ? "a generation step behind it" : "1024 tokens: TTFT",
                                     step ? ours.tpot_s : ours.ttft_s, TableKind::Measured));
    rows.back().fitted = true;
  }
  return rows;
}

}  // namespace

PublishedTable kvp_ttft_table() {
  return {"kvp-table5-ttft", "kvp", "KV Prediction, Table 5: TTFT on an M2 Pro's CPU",
          TableKind::Measured, table5_ttfts};
}

PublishedTable kvp_lazyllm_ttft_table() {
  return {"kvp-table5-lazyllm", "kvp",
          "KV Prediction, Table 5: TTFT of LazyLLM, whose program is not released, as in "
          "kvp-table5-ttft",
          TableKind::Measured, [](const Catalog& catalog) { return ttfts(catalog, table5, true); }};
}

PublishedTable kvp_section3_table() {
  return {"kvp-section3", "kvp",
          "KV Prediction, section 3: OpenELM 3B on an M2 Pro's CPU, to which two factors of the "
          "device are fitted",
          TableKind::Measured, section3};
}

}  // namespace kvcast::reports
