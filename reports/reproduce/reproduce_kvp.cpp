#include "reports/reproduce/reproduce_kvp.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/config/layer_pruning.h"
#include "model/record/recording.h"

namespace kvcast::reports {
namespace {

/// One of the paper's tables with a column "FLOPs reduction" (E10: a ratio of parameter counts).
struct KvpTable {
  std::string_view file;
  std::string_view base;  ///< size of the base model, "1.1B"
  std::string_view column;
};

/// Computes the FLOPs reduction of each model over a base model.
class Reductions {
 public:
  Reductions(const Catalog& catalog, const Published& published, std::string_view base)
      : catalog_(catalog),
        base_(base),
        probe_(published.claim("kvp_prose.csv", "kvp_p24")),
        prune_from_(published.claim("kvp_prose.csv", "kvp_p25")),
        prune_to_(published.claim("kvp_prose.csv", "kvp_p26")) {}

  /// `model` as printed.
  double of(const std::string& model, const std::string& place) {
    const std::vector<std::string> parts = kvp_name_parts(model);
    const std::string& first = parts.front();
    const std::string& last = parts.back();
    const std::size_t n = parts.size();
    if (n == 2 && first == "RP") return 1 / kvp_keep_rate(last, place);
    // A probe through the first layers with the whole prompt, then a run with what is kept of it.
    if (n == 2 && first == "SP") return 1 / (probe_ + kvp_keep_rate(last, place));
    if (n == 2 && first.starts_with("L")) {
      return lazyllm(kvp_keep_rate(first.substr(1), place), kvp_keep_rate(last, place));
    }
    if (first.starts_with("OE")) {
      // Of KVP models the auxiliary alone: the predictor and the base model's own step do not
      // count (E10).
      const bool kvp = n == 4 && parts[1] == "KVP";
      const bool layers_pruned =
          n == 2 || (n == 3 && parts[1] == "LP") || (kvp && parts[2] == "LP");
      const std::string size = first.substr(2);
      if (n == 1) return over(parameters(size));
      if (layers_pruned) return over(pruned(size, last, place));
      if (kvp && parts[2] == "C") {
        return over(parameters(last.starts_with("OE") ? last.substr(2) : last));
      }
    }
    throw Error(place, "model '" + model + "'",
                "OE..., OE...-LP-F, OE...-KVP-C-..., OE...-KVP-LP-F, RP-F, SP-F or LF-F");
  }

 private:
  /// The keep rate falls linearly from `begin` to `end` between two depths, both fractions of all
  /// layers, and stays there.
  double lazyllm(double begin, double end) const {
    const double falling = prune_to_ - prune_from_;
    return 1 / (prune_from_ + falling * (begin + end) / 2 + (1 - prune_to_) * end);
  }

  double over(std::uint64_t parameters_of_model) {
    return static_cast<double>(parameters(base_)) / static_cast<double>(parameters_of_model);
  }

  Architecture load(const std::string& size) const {
    return load_model(catalog_, catalog_spelling("openelm-" + size));
  }

  std::uint64_t parameters(const std::string& size) {
    std::uint64_t& known = parameters_[size];
    if (known == 0) known = count_parameters(load(size));
    return known;
  }

  std::uint64_t pruned(const std::string& size, const std::string& keep, const std::string& place) {
    if (size != base_) throw Error(place, "base model OE" + size, "OE" + base_);
    std::uint64_t& known = parameters_[size + "-" + keep];
    if (known == 0) {
      const Architecture a = load(size);
      known = count_parameters(
          prune_layers(a, retained_layers(a.num_hidden_layers(), kvp_keep_rate(keep, place))));
    }
    return known;
  }

  const Catalog& catalog_;
  std::string base_;
  double probe_;
  double prune_from_;
  double prune_to_;
  std::map<std::string, std::uint64_t> parameters_;
};

/// Tables 3 and 8 print one reduction for a model and have a record for each of its tasks: only
/// the first record of a model counts, and the others must say the same.
bool is_repetition(const std::vector<CsvRow>& earlier, const CsvRow& row, std::string_view column) {
  for (const CsvRow& other : earlier) {
    if (other.text("model") != row.text("model")) continue;
    if (other.text(column) == row.text(column)) return true;
    throw Error(row.place(column), "'" + row.text(column) + "'",
                "'" + other.text(column) + "' as in the model's first row");
  }
  return false;
}

std::vector<ReproducedRow> flops_reductions(const Catalog& catalog, const KvpTable& spec) {
  const Published published(catalog);
  const CsvTable table = published.read(spec.file);
  Reductions reductions(catalog, published, spec.base);
  std::vector<CsvRow> seen;
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    if (is_repetition(seen, row, spec.column)) continue;
    seen.push_back(row);

    const KvpLabel label = kvp_label(published, row);
    ReproducedRow result =
        published.compare(row, spec.column, label.cell + ": " + std::string(spec.column),
                          reductions.of(label.model, row.place("model")));
    note_label(label, result);
    rows.push_back(std::move(result));
  }
  return rows;
}

PublishedTable flops_table(int number, std::string_view what, const KvpTable& spec) {
  const std::string n = std::to_string(number);
  return {"kvp-table" + n, "kvp",
          "KV Prediction, Table " + n + ": FLOPs reduction, " + std::string(what) + ", OpenELM " +
              std::string(spec.base),
          TableKind::Exact,
          [spec](const Catalog& catalog) { return flops_reductions(catalog, spec); }};
}

/// A column that is another one of the table over that one's value in the first row, the base
/// model's, or that value over it.
struct Ratio {
  std::string_view file;
  std::string_view column;
  std::string_view of;
  bool is_reduction = false;
};

std::vector<ReproducedRow> ratios(const Catalog& catalog) {
  const Published published(catalog);
  std::vector<ReproducedRow> rows;
  for (const Ratio& r :
       {Ratio{"kvp_table5_triviaqa_openelm_1p1b.csv", "ttft_reduction_x", "ttft_s", true},
        Ratio{"kvp_table5_triviaqa_openelm_1p1b.csv", "triviaqa_relative", "triviaqa_accuracy_pct"},
        Ratio{"kvp_table6_triviaqa_openelm_3b.csv", "triviaqa_relative", "triviaqa_accuracy_pct"},
        Ratio{"kvp_table7_humaneval_openelm_1p1b.csv", "pass_at_1_relative", "pass_at_1_pct"},
        Ratio{"kvp_table7_humaneval_openelm_1p1b.csv", "pass_at_10_relative", "pass_at_10_pct"}}) {
    const CsvTable table = published.read(r.file);
    const double base = table.rows().front().number(r.of);
    for (const CsvRow& row : table.rows()) {
      double value = row.number(r.of);
      if (const auto wrong = published.erratum(row, r.of)) {
        if (wrong->corrected.empty()) continue;  // E12: nobody knows it
        value = std::stod(wrong->corrected);
      }
      const std::string cell = fmt::format("{}: {}, {} over {}", row.text("model"), r.column,
                                           r.is_reduction ? "the base model's" : r.of,
                                           r.is_reduction ? r.of : "the base model's");
      rows.push_back(
          published.compare(row, r.column, cell, r.is_reduction ? base / value : value / base));
    }
  }
  return rows;
}

}  // namespace

std::vector<std::string> kvp_name_parts(std::string name) {
  std::erase(name, ' ');
  const bool pruned = name.starts_with("RP") || name.starts_with("SP");
  if (pruned && name.substr(2, 1) != "-") name.insert(2, "-");
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = name.find('-', begin);
    parts.push_back(name.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

double kvp_keep_rate(std::string_view text, const std::string& place) {
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size() || !(value > 0 && value <= 1)) {
    throw Error(place, "'" + std::string(text) + "'", "a keep rate above 0 and at most 1");
  }
  return value;
}

KvpLabel kvp_label(const Published& published, const CsvRow& row) {
  const std::string& printed = row.text("model");
  KvpLabel label{printed, printed, published.erratum(row, "model")};
  if (label.erratum) {
    label.model = label.erratum->corrected;
    label.cell = printed + " (read " + label.model + ")";
  }
  return label;
}

void note_label(const KvpLabel& label, ReproducedRow& result) {
  if (!label.erratum) return;
  if (!result.erratum.empty()) result.erratum += "; ";
  result.erratum += label.erratum->id + ": " + label.erratum->reason;
  if (result.exact) result.corrected = result.agrees;  // of another model than the printed one
}

PublishedTable kvp_ratios_table() {
  return {"kvp-ratios", "kvp",
          "KV Prediction, Tables 5 to 7: TTFT reductions and relative accuracies from the columns "
          "that they are ratios of",
          TableKind::Exact, ratios};
}

std::vector<PublishedTable> kvp_tables() {
  constexpr std::string_view as_ttft = "ttft_reduction_as_printed_x";  // E13
  constexpr std::string_view as_flops = "flops_reduction_x";
  return {
      kvp_layer_map_table(),
      kvp_predictor_table(),
      flops_table(3, "MCQA", {"kvp_table3_mcqa_openelm_1p1b.csv", "1.1B", as_ttft}),
      kvp_retained_layers_table(),
      flops_table(5, "TriviaQA", {"kvp_table5_triviaqa_openelm_1p1b.csv", "1.1B", as_flops}),
      flops_table(6, "TriviaQA", {"kvp_table6_triviaqa_openelm_3b.csv", "3B", as_flops}),
      flops_table(7, "HumanEval", {"kvp_table7_humaneval_openelm_1p1b.csv", "1.1B", as_flops}),
      flops_table(8, "MCQA", {"kvp_table8_mcqa_openelm_3b.csv", "3B", as_ttft}),
      kvp_ttft_table(),
      kvp_lazyllm_ttft_table(),
      kvp_section3_table(),
      kvp_ratios_table(),
      kvp_prose_table(),
  };
}

}  // namespace kvcast::reports
