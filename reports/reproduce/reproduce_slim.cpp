#include "reports/reproduce/reproduce_slim.h"

#include <algorithm>
#include <map>

#include "model/base/error.h"
#include "model/record/recording.h"
#include "reports/reproduce/formula.h"
#include "roofline/hardware.h"

namespace kvcast::reports {
namespace {

/// The catalog's model for a name of Table 1 or Appendix I, or "" when it is not there.
std::string catalog_model(const Catalog& catalog, const std::string& printed) {
  // OLMo-1B: the table's 4k context and 1.3B parameters are those of the July 2024 release.
  static const std::map<std::string, std::string> spelled_otherwise{
      {"GPT-2 XL", "gpt2-xl"}, {"OLMo-1B", "olmo-1b-0724"}, {"OpenLLaMA-13B", "open-llama-13b"}};
  const auto other = spelled_otherwise.find(printed);
  const std::string name =
      other != spelled_otherwise.end() ? other->second : catalog_spelling(printed);
  const std::vector<std::string> known = catalog.names("models");
  return std::binary_search(known.begin(), known.end(), name) ? name : "";
}

/// Table 1's "context memory": keys and values of a full context, in activations. Whisper counts
/// the decoder's own cache and the cross-attention cache, the other encoder-decoder models one.
double context_memory(const Catalog& catalog, const std::string& model, const CsvRow& row) {
  const CacheElements cached = count_cache(load_model(catalog, model));
  std::uint64_t elements = checked_multiply(cached.per_token, row.whole("context_tokens"));
  if (!row.text("encoder_context_tokens").empty()) {
    elements += checked_multiply(cached.per_encoder_token, row.whole("encoder_context_tokens"));
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

std::vector<ReproducedRow> table3(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("slim_table3_chips.csv");
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& chip = row.text("chip");
    const ChipFigures f = chip_figures(catalog, chip);
    const auto add = [&](std::string_view column, double ours) {
      rows.push_back(published.compare(row, column, chip + ": " + std::string(column), ours));
    };
    add("int8_tops", f.int8_tops);
    add("memory_bandwidth_gb_per_s", f.gb_per_s);
    add("arithmetic_intensity_ops_per_byte", f.intensity());
  }
  return rows;
}

/// Section 3's models with e > d: their sizes, r = e/d, and what each option caches and multiplies
/// by. Its options are those of square projections, with a right inverse, and the X-cache. How
/// complex they are and whether they support RoPE is said in words, and left out.
std::vector<ReproducedRow> nonsquare(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable models = published.read("slim_nonsquare_models.csv");
  const CsvTable options = published.read("slim_nonsquare_options.csv");
  const Count n = symbol::kv_len;
  const SymbolValues sizes = Symbols().resolve({1, 1, 1});
  std::vector<ReproducedRow> rows;
  for (const CsvRow& model : models.rows()) {
    const std::string& name = model.text("model");
    const SlimShape s = slim_shape(load_model(catalog, catalog_spelling(name)));
    const auto add = [&](const std::string& column, double ours) {
      rows.push_back(published.compare(model, column, name + ": " + column, ours));
    };
    add("d_model", static_cast<double>(s.hidden_size));
    add("d_k", static_cast<double>(s.head_dim));
    add("n_heads", static_cast<double>(s.num_attention_heads));
    add("e_projection_dim", static_cast<double>(s.width()));
    add("aspect_ratio_r", static_cast<double>(s.width()) / static_cast<double>(s.hidden_size));

    const Count d = s.hidden_size;
    const Count e = s.width();
    const Count r = e.scaled(1, static_cast<std::int64_t>(s.hidden_size));
    const std::map<std::string, AttentionStep> steps{{"baseline", vanilla_step(s, n)},
                                                     {"option_1", optimized_step(s, n)},
                                                     {"option_2", x_cache_step(s, n)}};
    for (const CsvRow& row : options.rows()) {
      const std::string& quantity = row.text("quantity");
      const bool cache = quantity == "cache_reduction_factor";
      if (!cache && quantity != "size_of_wv_or_wkv_params") continue;
      const auto step = steps.find(row.text("option"));
      if (step == steps.end()) {
        throw Error(row.place("option"), "'" + row.text("option") + "'",
                    "baseline, option_1 or option_2");
      }
      const CountRatio ours = cache ? CountRatio{steps.at("baseline").cache(), step->second.cache()}
                                    : CountRatio{step->second.weights({"value"})};
      const std::string& printed = row.text("value_or_expression");
      rows.push_back(compare_formula(
          row, name + ": " + quantity + ", " + step->first + " = " + printed,
          evaluate_formula(row, "value_or_expression", {{"d", d}, {"e", e}, {"r", r}}), ours,
          sizes));
    }
  }
  return rows;
}

/// The number that a cell of section 4's options means: a share of the baseline, or how many d x e
/// matrices of cross-attention are read for each token.
Count option_number(const CsvRow& row) {
  const Count half = Count(1).scaled(1, 2);
  const std::map<std::string, Count> meaning{{"100%", 1},      {"50%", half},     {"0", 0},
                                             {"full", 1},      {"half", half},    {"no", 0},
                                             {"W_KV only", 1}, {"W_K and W_V", 2}};
  const auto found = meaning.find(row.text("value"));
  if (found == meaning.end()) {
    throw Error(row.place("value"), "'" + row.text("value") + "'", "a share or matrices");
  }
  return found->second;
}

/// How one of section 4's options runs a decoder layer.
struct EncoderDecoderOption {
  AttentionStep self;
  AttentionStep cross;
  bool cross_cache = true;       ///< false: all layers read the one encoder output
  StepLabels made_for_encoder;   ///< of cross-attention: multiplied by the encoder output, once
  StepLabels read_in_each_step;  ///< of cross-attention, besides query and output
};

EncoderDecoderOption option_of(const CsvRow& row, const SlimShape& s) {
  const std::string& option = row.text("option");
  const Count n = symbol::kv_len;  // rows of either cache
  if (option == "baseline") {
    return {vanilla_step(s, n), vanilla_step(s, n), true, {"key", "value"}, {}};
  }
  if (option == "option_1") {
    return {optimized_step(s, n), optimized_step(s, n), true, {"key"}, {"value"}};
  }
  if (option == "option_2") {
    return {optimized_step(s, n), x_cache_step(s, n), false, {}, {"key", "value"}};
  }
  throw Error(row.place("option"), "'" + option + "'", "baseline, option_1 or option_2");
}

/// Section 4's options beside what is recorded of the Whisper table's last size. Support for RoPE
/// is said in words, and left out.
std::vector<ReproducedRow> encoder_decoder_options(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("slim_encdec_options.csv");
  const Architecture a = load_model(catalog, whisper_sizes().back().model);
  const SlimShape s = slim_shape(a);
  const Count n = symbol::kv_len;
  const Count layers = a.num_hidden_layers();
  const CacheElements cached = count_cache(a);
  const Count matrix = checked_multiply(s.hidden_size, s.width());

  Count encoder_ops;  // of the recorded cross-attention projections, without biases
  const Recording recording = record(a, {}, {});
  for (const Node& node : recording.prefill().nodes()) {
    if (node.phase != "cross" || !std::holds_alternative<Linear>(node.op)) continue;
    const std::vector<Count>& weight = recording.prefill().tensor(node.inputs[1]).shape;
    encoder_ops += product_ops(n, weight[1], weight[0]);
  }
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& quantity = row.text("quantity");
    if (quantity == "support_for_rope") continue;
    const EncoderDecoderOption option = option_of(row, s);
    CountRatio ours;
    std::string unit = ", share of the baseline";
    if (quantity == "self_kv_cache_size") {
      ours = {layers * option.self.cache(), cached.per_token * n};
    } else if (quantity == "cross_kv_cache_size") {
      ours = {option.cross_cache ? layers * option.cross.cache() : Count(),
              cached.per_encoder_token * n};
    } else if (quantity == "cross_weights_read_in_generate_phase") {
      ours = {option.cross.weights(option.read_in_each_step), matrix};
      unit = ", matrices of d x e";
    } else if (quantity == "complexity_of_cross_phase") {
      const Count one = product_ops(n, s.hidden_size, s.width());
      ours = {layers * option.made_for_encoder.size() * one, encoder_ops};
    } else {
      throw Error(row.place("quantity"), "'" + quantity + "'", "a row of section 4's options");
    }
    ReproducedRow result = compare_formula(
        row, a.name + ": " + quantity + ", " + row.text("option") + unit, option_number(row), ours,
        Symbols().resolve({1, 1, a.max_position_embeddings}));
    result.published = row.text("value");
    rows.push_back(std::move(result));
  }
  return rows;
}

/// Width, layers and parameters of the models that the catalog has; the others are of families that
/// it lacks, or their configs were not found (data/models/README.md). Their number of heads, which
/// makes them MHA models, is not printed, but slim_shape() checks it.
std::vector<ReproducedRow> appendix_i(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("slim_appendix_i_mha_models.csv");
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string model = catalog_model(catalog, row.text("model"));
    if (model.empty()) continue;
    const Architecture a = load_model(catalog, model);
    const auto add = [&](const std::string& column, std::uint64_t ours) {
      rows.push_back(
          published.compare(row, column, model + ": " + column, static_cast<double>(ours)));
    };
    add("params_label", count_parameters(a));
    add("d_model", slim_shape(a).hidden_size);
    add("n_layers", a.num_hidden_layers());
  }
  return rows;
}

}  // namespace

CacheElements count_cache(const Architecture& a) {
  Lowering lowering;
  lowering.cache = DType::FP8;  // one byte an element: cache bytes are elements
  const Recording recording = record(a, {}, lowering);
  CacheElements elements;
  elements.per_token = recording.kv_cache_bytes_per_token.at({});
  if (a.encoder_decoder) elements.per_encoder_token = recording.cross_cache_bytes_per_token.at({});
  return elements;
}

ChipFigures chip_figures(const Catalog& catalog, const std::string& printed) {
  // "NVIDIA H200": the catalog's names do without the vendor.
  const std::string name = catalog_spelling(printed.substr(printed.find(' ') + 1));
  const roofline::Hardware hw = roofline::load_hardware(catalog, name);
  const auto peak = hw.peak_flops_per_second.find(DType::INT8);
  if (peak == hw.peak_flops_per_second.end()) {
    throw Error(name, "no int8 peak", "one, as in Table 3");
  }
  return {peak->second.value / 1e12, hw.memory_bandwidth.value / 1e9};
}

std::vector<PublishedTable> slim_tables() {
  const auto table = [](const std::string& name, const std::string& title,
                        std::vector<ReproducedRow> (*rows)(const Catalog&)) {
    return PublishedTable{"slim-" + name, "slim", "Slim attention, " + title, TableKind::Exact,
                          rows};
  };
  return {
      table("table1", "Table 1: context memory of MHA models", table1),
      table("table2", "Table 2: operations and reads of one token in one layer", slim_table2),
      table("table3", "Table 3: int8 operations per byte of chips", table3),
      table("nonsquare", "section 3: projections that are not square", nonsquare),
      table("encdec", "section 4: options for encoder-decoder models", encoder_decoder_options),
      table("whisper", "section 4: Whisper's caches, parameters, reads and speedups", slim_whisper),
      table("appendix-b", "Appendix B: operations of attention", slim_appendix_b),
      table("appendix-i", "Appendix I: more MHA models", appendix_i),
      table("equations", "formulas in the text", slim_equations),
      table("prose", "numbers in the text", slim_prose),
  };
}

}  // namespace kvcast::reports
