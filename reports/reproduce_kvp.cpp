#include "reports/reproduce_kvp.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "model/error.h"
#include "model/layer_pruning.h"
#include "model/recording.h"

namespace kvcast::reports {
namespace {

/// One of the paper's tables with a column "FLOPs reduction" (E10: a ratio of parameter counts).
struct KvpTable {
  std::string_view file;
  std::string_view base;  ///< size of the base model, "1.1B"
  std::string_view column;
};

double keep_rate(std::string_view text, const std::string& place) {
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size() || !(value > 0 && value <= 1)) {
    throw Error(place, "'" + std::string(text) + "'", "a keep rate above 0 and at most 1");
  }
  return value;
}

/// A model's name in parts: "OE1.1B-KVP-LP-0.75" -> OE1.1B, KVP, LP, 0.75. The tables spell names
/// with and without spaces, and some without a hyphen ("RP0.25").
std::vector<std::string> name_parts(std::string name) {
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
    const std::vector<std::string> parts = name_parts(model);
    const std::string& first = parts.front();
    const std::string& last = parts.back();
    const std::size_t n = parts.size();
    if (n == 2 && first == "RP") return 1 / keep_rate(last, place);
    // A probe through the first layers with the whole prompt, then a run with what is kept of it.
    if (n == 2 && first == "SP") return 1 / (probe_ + keep_rate(last, place));
    if (n == 2 && first.starts_with("L")) {
      return lazyllm(keep_rate(first.substr(1), place), keep_rate(last, place));
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
          prune_layers(a, retained_layers(a.num_hidden_layers(), keep_rate(keep, place))));
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

    const std::string& printed = row.text("model");
    const auto label = published.erratum(row, "model");
    const std::string& model = label ? label->corrected : printed;
    const std::string cell =
        printed + (label ? " (read " + model + ")" : "") + ": " + std::string(spec.column);
    ReproducedRow result =
        published.compare(row, spec.column, cell, reductions.of(model, row.place("model")));
    if (label) {
      if (!result.erratum.empty()) result.erratum += "; ";
      result.erratum += label->id + ": " + label->reason;
      result.corrected = result.agrees;  // of another model than the one that is printed
    }
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

}  // namespace

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
      kvp_prose_table(),
  };
}

}  // namespace kvcast::reports
