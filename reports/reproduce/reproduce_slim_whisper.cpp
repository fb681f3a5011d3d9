#include <map>
#include <set>

#include "model/base/error.h"
#include "model/base/units.h"
#include "model/record/recording.h"
#include "reports/reproduce/reproduce_slim.h"

namespace kvcast::reports {
namespace {

/// Elements of the matrices that one decode step multiplies by, each once: biases, norms and
/// position tables are left out as in the paper, the head is in.
std::uint64_t decode_matrices(const Recording& recording) {
  std::set<TensorId> read;
  for (const Node& node : recording.decode().nodes()) {
    if (std::holds_alternative<Linear>(node.op)) read.insert(node.inputs[1]);
  }
  Count elements;
  for (const TensorId id : read) elements += recording.decode().tensor(id).elements();
  return elements.constant();
}

/// Sequences in a batch, of a section that counts reads; 0: another section.
double batch_of(std::string_view section) {
  if (section == "reads_batch_1") return 1;
  if (section == "reads_batch_64") return 64;
  return 0;
}

/// One size's number for a row of the table: as it is for the model's own data, in millions for
/// caches, parameters and reads, and as a ratio for savings and speedups.
double figure(const CsvRow& row, const Architecture& a, const WhisperFigures& f) {
  const std::string& section = row.text("section");
  const double batch = batch_of(section);
  std::map<std::string, double> known{
      {"model.params", f.parameters},
      {"model.n_layers", static_cast<double>(a.num_hidden_layers())},
      {"model.d_model", static_cast<double>(a.hidden_size)},
      {"model.d_ffn", static_cast<double>(a.decoder.layers.front().intermediate_size)},
      {"cache.encoder_e_cache", f.encoder_cache / 1e6},
      {"cache.cross_kv_cache", f.cross_cache / 1e6},
      {"cache.self_kv_cache", f.self_cache / 1e6},
      {"cache.baseline_cache", f.baseline.cache / 1e6},
      {"cache.option_1_cache", f.option_1.cache / 1e6},
      {"cache.option_2_cache", f.option_2.cache / 1e6},
      {"cache.option_2_cache_savings", f.baseline.cache / f.option_2.cache},
      {"generate_phase_params.baseline_params", f.baseline.params / 1e6},
      {"generate_phase_params.option_1_params", f.option_1.params / 1e6},
      {"generate_phase_params.option_2_params", f.option_2.params / 1e6},
  };
  if (batch > 0) {
    const double baseline = f.baseline.reads(batch);
    known = {{section + ".baseline_reads", baseline / 1e6},
             {section + ".option_1_reads", f.option_1.reads(batch) / 1e6},
             {section + ".option_2_reads", f.option_2.reads(batch) / 1e6},
             {section + ".option_1_speedup", baseline / f.option_1.reads(batch)},
             {section + ".option_2_speedup", baseline / f.option_2.reads(batch)}};
  }
  const auto found = known.find(section + "." + row.text("quantity"));
  if (found == known.end()) {
    throw Error(row.place("quantity"), "'" + row.text("quantity") + "' of '" + section + "'",
                "a row of the Whisper table");
  }
  return found->second;
}

}  // namespace

WhisperFigures whisper_figures(const Architecture& a) {
  const Recording recording = record(a, {}, {});
  const CacheElements cached = count_cache(a);
  const SlimShape shape = slim_shape(a);
  const double layers = static_cast<double>(a.num_hidden_layers());
  const std::uint64_t encoder_len = a.max_source_positions;
  const auto number = [](const Count& c) { return static_cast<double>(c.constant()); };

  WhisperFigures f;
  f.parameters = static_cast<double>(recording.parameters);
  f.encoder_cache = number(x_cache_step(shape, encoder_len).cache());
  f.cross_cache = static_cast<double>(checked_multiply(cached.per_encoder_token, encoder_len));
  f.self_cache = static_cast<double>(checked_multiply(cached.per_token, a.max_position_embeddings));
  f.baseline.cache = f.cross_cache + f.self_cache;
  f.baseline.params = static_cast<double>(decode_matrices(recording));

  // In self-attention W_KV takes the place of W_V, which is as large. Cross-attention keys and
  // values are made before the first token; what an option makes later it reads in every step.
  const double slim_self =
      layers * number(optimized_step(shape, a.max_position_embeddings).cache());
  const AttentionStep keys_cached = optimized_step(shape, encoder_len);
  f.option_1.cache = slim_self + layers * number(keys_cached.cache());
  f.option_1.params = f.baseline.params + layers * number(keys_cached.weights({"value"}));
  const AttentionStep states_cached = x_cache_step(shape, encoder_len);
  f.option_2.cache = slim_self;
  f.option_2.params = f.baseline.params + layers * number(states_cached.weights({"key", "value"}));
  return f;
}

const std::vector<WhisperSize>& whisper_sizes() {
  static const std::vector<WhisperSize> sizes{{"tiny", "whisper-tiny"},
                                              {"base", "whisper-base"},
                                              {"small", "whisper-small"},
                                              {"medium", "whisper-medium"},
                                              {"large", "whisper-large-v2"}};
  return sizes;
}

std::vector<ReproducedRow> slim_whisper(const Catalog& catalog) {
  struct Size {
    Architecture architecture;
    WhisperFigures figures;
  };
  std::map<std::string, Size> sizes;
  for (const WhisperSize& size : whisper_sizes()) {
    const Architecture a = load_model(catalog, size.model);
    sizes.emplace(size.printed, Size{a, whisper_figures(a)});
  }
  const Published published(catalog);
  const CsvTable table = published.read("slim_whisper_table.csv");
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& printed = row.text("whisper_model");
    const auto size = sizes.find(printed);
    if (size == sizes.end()) {
      throw Error(row.place("whisper_model"), "'" + printed + "'",
                  "tiny, base, small, medium or large");
    }
    const Architecture& a = size->second.architecture;
    const std::string& section = row.text("section");
    const std::string cell =
        a.name + ": " + row.text("quantity") +
        (batch_of(section) > 0 ? " at batch " + section.substr(section.rfind('_') + 1) : "") +
        ", " + row.text("unit");
    // Parameters are printed with a suffix (38M), all else in the row's unit.
    const bool suffixed = row.text("quantity") == "params";
    ReproducedRow reproduced = published.compare(row, suffixed ? "value_as_printed" : "value", cell,
                                                 figure(row, a, size->second.figures));
    if (const auto known = published.erratum(row, "note_as_printed")) {
      reproduced.erratum = known->id + ": " + known->reason;
    }
    rows.push_back(std::move(reproduced));
  }
  return rows;
}

}  // namespace kvcast::reports
