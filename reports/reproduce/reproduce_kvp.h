/// KV Prediction's tables beyond the FLOPs reductions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/io/weights/catalog.h"
#include "reports/reproduce/reproduce.h"

namespace kvcast::reports {

/// The model that the paper calls "OE1.1B", "OE450M" or, of the base "OE1.1B", "OE-LP-0.75". Throws
/// Error starting with `place` for other names.
Architecture openelm_of(const Catalog& catalog, const std::string& printed, const std::string& base,
                        const std::string& place);

/// A model's name in parts: "OE1.1B-KVP-LP-0.75" -> OE1.1B, KVP, LP, 0.75. The tables spell names
/// with and without spaces, and some without a hyphen ("RP0.25").
std::vector<std::string> kvp_name_parts(std::string printed);
/// Throws Error starting with `place` for what is no share above 0 and at most 1.
double kvp_keep_rate(std::string_view text, const std::string& place);
/// Table 5 and 6 swap two labels: the name that is meant, and what says so.
struct KvpLabel {
  std::string model;
  std::string cell;  ///< how the cell is called: "L0.75-0.10 (read L0.75-0.01)"
  std::optional<Erratum> erratum;
};
KvpLabel kvp_label(const Published& published, const CsvRow& row);
/// Says in a result of another model than the one that is printed why.
void note_label(const KvpLabel& label, ReproducedRow& result);

PublishedTable kvp_layer_map_table();
PublishedTable kvp_predictor_table();
PublishedTable kvp_ttft_table();
/// LazyLLM's rows of it, slower than their tokens say where tokens go layer by layer.
PublishedTable kvp_lazyllm_ttft_table();
/// The TTFT and the generation step of section 3.
PublishedTable kvp_section3_table();
/// Columns that are ratios of others: TTFT reductions and relative accuracies of Tables 5 to 7.
PublishedTable kvp_ratios_table();
/// Table 4, and the numbers of the text.
PublishedTable kvp_retained_layers_table();
PublishedTable kvp_prose_table();

}  // namespace kvcast::reports
