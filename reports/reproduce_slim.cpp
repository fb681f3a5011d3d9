#include <algorithm>
#include <map>

#include "model/recording.h"
#include "reports/reproduce.h"

namespace kvcast::reports {
namespace {

/// The catalog's model for a name of Table 1, or "" when its family is not ours.
std::string catalog_model(const Catalog& catalog, const std::string& printed) {
  // OLMo-1B: the table's 4k context and 1.3B parameters are those of the July 2024 release.
  static const std::map<std::string, std::string> spelled_otherwise{{"GPT-2 XL", "gpt2-xl"},
                                                                    {"OLMo-1B", "olmo-1b-0724"}};
  const auto other = spelled_otherwise.find(printed);
  const std::string name =
      other != spelled_otherwise.end() ? other->second : catalog_spelling(printed);
  const std::vector<std::string> known = catalog.names("models");
  return std::binary_search(known.begin(), known.end(), name) ? name : "";
}

/// Table 1's "context memory": keys and values of a full context, in activations. Whisper counts
/// the decoder's own cache and the cross-attention cache, the other encoder-decoder models one.
double context_memory(const Catalog& catalog, const std::string& model, const CsvRow& row) {
  Lowering lowering;
  lowering.cache = DType::FP8;  // one byte an element: cache bytes are elements
  const Recording recording = record(load_model(catalog, model), {}, lowering);
  std::uint64_t elements = recording.kv_cache_bytes_per_token.at({}) * row.whole("context_tokens");
  if (!row.text("encoder_context_tokens").empty()) {
    elements += recording.cross_cache_bytes_per_token.at({}) * row.whole("encoder_context_tokens");
  }
  return static_cast<double>(elements);
}

std::vector<ReproducedRow> table1(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("slim_table1_mha_models.csv");
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& printed = row.text("model");
    const std::string model = catalog_model(catalog, printed);
    std::string cell = printed + ": context memory";
    double ours = 0;
    if (model.empty()) {
      cell += " (not in the catalog: 2·d·layers·context of the printed d and layers)";
      ours = static_cast<double>(2 * row.whole("d_model") * row.whole("n_layers") *
                                 row.whole("context_tokens"));
    } else {
      cell += " (" + model + ")";
      ours = context_memory(catalog, model, row);
    }
    rows.push_back(published.compare(row, "context_memory_label", std::move(cell), ours));
  }
  return rows;
}

}  // namespace

std::vector<PublishedTable> slim_tables() {
  return {{"slim-table1", "slim", "Slim attention, Table 1: context memory of MHA models",
           TableKind::Exact, table1}};
}

}  // namespace kvcast::reports
