#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "model/base/error.h"
#include "model/record/recording.h"
#include "reports/reproduce/formula.h"
#include "reports/reproduce/published_gaps.h"
#include "reports/reproduce/reproduce_slim.h"

namespace kvcast::reports {
namespace {

/// Section 1's example: memory of a model with one byte for each parameter and cached element, at
/// its full context.
struct MemoryExample {
  double params = 0;
  double vanilla_cache = 0;
  double slim_cache = 0;

  MemoryExample(const Catalog& catalog, const std::string& model) {
    const Architecture a = load_model(catalog, model);
    const std::uint64_t context = a.max_position_embeddings;
    params = static_cast<double>(count_parameters(a));
    vanilla_cache = static_cast<double>(checked_multiply(count_cache(a).per_token, context));
    slim_cache = static_cast<double>(checked_multiply(
        a.num_hidden_layers(), optimized_step(slim_shape(a), context).cache().constant()));
  }
  /// Of a decode step that waits for memory.
  double speedup(double batch) const {
    return (params + batch * vanilla_cache) / (params + batch * slim_cache);
  }
};

/// What the claims are computed from.
struct Facts {
  MemoryExample phi3;
  std::vector<WhisperFigures> whisper;  ///< by size, tiny first
  SlimShape square;                     ///< CodeLlama-7B, the first model of Table 1
  SlimShape t5_11b;
  SlimShape most_heads;  ///< LLaMA-65B, an MHA model with 64 heads
  Architecture codegemma;
  Architecture gemma2;
  Architecture largest_whisper;
  std::vector<double> chips;  ///< intensities of Table 3
  double sparsity = 0;        ///< S of Appendix D, a setting

  Facts(const Catalog& catalog, const Published& published)
      : phi3(catalog, "phi-3-mini-128k"),
        square(slim_shape(load_model(catalog, "codellama-7b"))),
        t5_11b(slim_shape(load_model(catalog, "t5-11b"))),
        most_heads(slim_shape(load_model(catalog, "llama-65b"))),
        codegemma(load_model(catalog, "codegemma-7b")),
        gemma2(load_model(catalog, "gemma2-9b")),
        largest_whisper(load_model(catalog, whisper_sizes().back().model)),
        sparsity(published.claim("slim_prose.csv", "slim_p28")) {
    for (const WhisperSize& size : whisper_sizes()) {
      whisper.push_back(whisper_figures(load_model(catalog, size.model)));
    }
    const CsvTable table = published.read("slim_table3_chips.csv");
    for (const CsvRow& row : table.rows()) {
      chips.push_back(chip_figures(catalog, row.text("chip")).intensity());
    }
  }
};

/// of / by, as numbers for a context of one token: both grow alike.
double ratio(const Count& of, const Count& by) {
  const SymbolValues one = Symbols().resolve({1, 1, 1});
  return value_at(of, one) / value_at(by, one);
}

const Count context = symbol::kv_len;

double cache_saving(const SlimShape& s, const AttentionStep& slim) {
  return ratio(vanilla_step(s, context).cache(), slim.cache());
}

double intensity(const AttentionStep& step) {
  return ratio(step.ops(attention_labels()), step.cache());
}

double smallest(const Facts& f, double (*figure)(const WhisperFigures&)) {
  std::vector<double> figures;
  for (const WhisperFigures& w : f.whisper) figures.push_back(figure(w));
  return *std::min_element(figures.begin(), figures.end());
}

double cache_reduction(const WhisperFigures& w) { return w.baseline.cache / w.option_2.cache; }
double speedup_64(const WhisperFigures& w) { return w.baseline.reads(64) / w.option_2.reads(64); }

/// Appendix G: keys and values of one token in one layer, over the model's width.
double cache_width(const Architecture& a) {
  return static_cast<double>(count_cache(a).per_token) / static_cast<double>(a.num_hidden_layers());
}
double compression(const Architecture& a) {
  return cache_width(a) / static_cast<double>(a.hidden_size);
}

/// Option 1 multiplies the encoder's output by W_K and not by W_V.
double cross_phase_speedup(const Facts& f) {
  const SlimShape s = slim_shape(f.largest_whisper);
  const Count p = symbol::kv_len;
  const AttentionStep step = vanilla_step(s, p);
  return ratio(step.ops({"key", "value"}), optimized_step(s, p).ops({"key"}));
}

using Claim = std::function<double(const Facts&)>;

const std::map<std::string, Claim>& claims() {
  static const std::map<std::string, Claim> all{
      {"slim_p01",
       [](const Facts& f) { return cache_saving(f.square, optimized_step(f.square, context)); }},
      // What memory-bound speedups come near to when the context outgrows the parameters.
      {"slim_p02",
       [](const Facts& f) { return cache_saving(f.square, optimized_step(f.square, context)); }},
      {"slim_p03", [](const Facts& f) { return smallest(f, cache_reduction); }},
      {"slim_p04", [](const Facts& f) { return smallest(f, speedup_64); }},
      {"slim_p05",
       [](const Facts& f) { return cache_saving(f.t5_11b, x_cache_step(f.t5_11b, context)); }},
      {"slim_p06", [](const Facts& f) { return f.phi3.params / 1e9; }},
      {"slim_p07", [](const Facts& f) { return f.phi3.vanilla_cache / 1e9; }},
      {"slim_p08", [](const Facts& f) { return 16 * f.phi3.vanilla_cache / 1e9; }},
      {"slim_p09", [](const Facts& f) { return f.phi3.slim_cache / 1e9; }},
      {"slim_p10", [](const Facts& f) { return (f.phi3.params + f.phi3.vanilla_cache) / 1e9; }},
      {"slim_p11", [](const Facts& f) { return (f.phi3.params + f.phi3.slim_cache) / 1e9; }},
      {"slim_p12", [](const Facts& f) { return f.phi3.speedup(1); }},
      {"slim_p13", [](const Facts& f) { return f.phi3.speedup(16); }},
      {"slim_p14", [](const Facts& f) { return intensity(optimized_step(f.most_heads, context)); }},
      {"slim_p17",
       [](const Facts& f) { return *std::min_element(f.chips.begin(), f.chips.end()); }},
      {"slim_p18",
       [](const Facts& f) { return *std::max_element(f.chips.begin(), f.chips.end()); }},
      {"slim_p19", [](const Facts& f) { return intensity(vanilla_step(f.square, context)); }},
      {"slim_p20", [](const Facts& f) { return ratio(f.t5_11b.width(), f.t5_11b.hidden_size); }},
      {"slim_p21",
       [](const Facts& f) { return static_cast<double>(f.largest_whisper.max_source_positions); }},
      {"slim_p22",
       [](const Facts& f) {
         return static_cast<double>(f.largest_whisper.max_position_embeddings);
       }},
      {"slim_p23",
       [](const Facts& f) { return static_cast<double>(f.largest_whisper.vocab_size); }},
      {"slim_p24", [](const Facts& f) { return smallest(f, cache_reduction); }},
      {"slim_p25", [](const Facts& f) { return smallest(f, speedup_64); }},
      {"slim_p26", cross_phase_speedup},
      {"slim_p27",
       [](const Facts& f) { return f.whisper[1].encoder_cache; }},  // base's, the larger
      {"slim_p29", [](const Facts& f) { return 1 / (1 - f.sparsity); }},
      {"slim_p30", [](const Facts& f) { return std::pow(f.sparsity, 4); }},
      {"slim_p31", [](const Facts& f) { return 100 * (1 - f.sparsity); }},
      {"slim_p32", [](const Facts& f) { return compression(f.codegemma); }},
      {"slim_p33", [](const Facts& f) { return compression(f.gemma2); }},
      {"slim_p34", [](const Facts& f) { return cache_width(f.gemma2) / 2; }},
      {"slim_p35", [](const Facts& f) { return static_cast<double>(f.gemma2.hidden_size); }},
  };
  return all;
}

}  // namespace

std::vector<ReproducedRow> slim_prose(const Catalog& catalog) {
  const Published published(catalog);
  const Facts facts(catalog, published);
  const CsvTable table = published.read("slim_prose.csv");
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& id = row.text("claim_id");
    if (!claim_left_out(id).empty()) continue;
    const auto claim = claims().find(id);
    if (claim == claims().end()) {
      throw Error(row.place("claim_id"), "'" + id + "'", "slim_p01 to slim_p37");
    }
    const std::string& qualifier = row.text("qualifier");
    const bool above = qualifier == "over";
    const bool below = qualifier == "less than";
    ReproducedRow reproduced =
        published.compare(row, "value",
                          id.substr(5) + " " + row.text("quantity") + ", " +
                              (above || below ? qualifier + " " : "") + row.text("unit"),
                          claim->second(facts));
    if (above || below) {
      const double value = row.number("value");
      reproduced.agrees = above ? reproduced.ours > value : reproduced.ours < value;
      reproduced.corrected = false;
    }
    rows.push_back(std::move(reproduced));
  }
  return rows;
}

}  // namespace kvcast::reports
