#include <algorithm>
#include <array>
#include <map>

#include "model/base/error.h"
#include "model/record/recording.h"
#include "reports/reproduce/reproduce.h"
#include "roofline/hardware.h"

namespace kvcast::reports {
namespace {

constexpr double gib = 1024.0 * 1024 * 1024;
constexpr double mib = 1024.0 * 1024;

MethodSpec method(const CsvRow& row) {
  return {"mlkv",
          {{"layers", row.text("n_layers_with_kv_m")}, {"heads", row.text("n_kv_groups_g")}}};
}

/// Table 1: 2·b·s·m·g·d_k elements of OPT-175B.
std::vector<ReproducedRow> table1(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("mlkv_table1_cache_size.csv");
  const Architecture opt = load_model(catalog, "opt-175b");
  const std::uint64_t head_dim = opt.decoder.layers.front().heads.head_dim;
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::uint64_t bytes = 2 * row.whole("batch_size_stated") *
                                row.whole("sequence_tokens_stated") * row.whole("kv_layers") *
                                row.whole("kv_heads_per_kv_layer") * head_dim *
                                row.whole("bytes_per_element");
    rows.push_back(published.compare(
        row, "opt_175b_cache_gb_as_printed",
        row.text("method") + ": " + row.text("elements_expression_python") + " of OPT-175B, GiB",
        static_cast<double>(bytes) / gib));
  }
  return rows;
}

std::vector<ReproducedRow> table2(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("mlkv_table2_variants.csv");
  const Architecture pythia = load_model(catalog, "pythia-160m");
  const std::uint64_t head_dim = pythia.decoder.layers.front().heads.head_dim;
  Lowering lowering;
  lowering.cache = DType::FP8;  // one byte an element: cache bytes are elements
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const Recording r = record(pythia, {method(row)}, lowering);
    const std::string& name = row.text("model");
    rows.push_back(published.compare(row, "n_params", name + ": parameters",
                                     static_cast<double>(r.parameters)));
    rows.push_back(published.compare(row, "total_kv_heads", name + ": key-value heads",
                                     static_cast<double>(r.kv_cache_bytes_per_token.at({})) /
                                         static_cast<double>(2 * head_dim)));
  }
  return rows;
}

/// The printed averages are those of the four printed accuracies; nothing is measured here.
std::vector<ReproducedRow> table3_averages(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("mlkv_table3_benchmarks.csv");
  std::map<std::string, std::vector<double>> tasks;
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& model = row.text("model");
    if (row.text("task") != "average_as_printed") {
      tasks[model].push_back(row.number("accuracy_pct"));
      continue;
    }
    double sum = 0;
    for (const double accuracy : tasks[model]) sum += accuracy;
    rows.push_back(published.compare(row, "accuracy_pct", model + ": mean of its tasks, %",
                                     sum / static_cast<double>(tasks[model].size())));
  }
  return rows;
}

std::vector<ReproducedRow> prose(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("mlkv_prose.csv");
  const Architecture pythia = load_model(catalog, "pythia-160m");
  const Architecture opt = load_model(catalog, "opt-175b");
  const auto cache = [&](const char* layers, const char* heads) {
    const Recording r = record(pythia, {{"mlkv", {{"layers", layers}, {"heads", heads}}}}, {});
    return static_cast<double>(r.kv_cache_bytes_per_token.at({}));
  };
  const auto said = [&](const char* id) { return published.claim("mlkv_prose.csv", id); };
  const double tokens = said("mlkv_p06") * said("mlkv_p07");
  const auto opt_cache =
      static_cast<double>(record(opt, {}, {}).kv_cache_bytes_per_token.at({})) * tokens / 1e9;
  struct Claim {
    const char* id;
    const char* cell;
    double ours;
  };
  const std::array claims{
      Claim{"mlkv_p01", "cache of MQA-12 / MLKV-2", cache("12", "1") / cache("2", "1")},
      Claim{"mlkv_p02", "cache of MQA-12 / MLKV-6", cache("12", "1") / cache("6", "1")},
      Claim{"mlkv_p03", "cache of MLKV-2 / the original", cache("2", "1") / cache("12", "12")},
      Claim{"mlkv_p04", "175e9 parameters of 2 bytes, GB", 175e9 * 2 / 1e9},
      Claim{"mlkv_p05", "OPT-175B: cache of 128 sequences of 2048 tokens, GB", opt_cache},
      Claim{"mlkv_p15", "6 of 134 million documents, %", 100 * said("mlkv_p17") / said("mlkv_p16")},
      Claim{"mlkv_p22", "2 GPUs of 12 sequences", 2 * said("mlkv_p21")},
  };
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    for (const Claim& claim : claims) {
      if (row.text("claim_id") == claim.id) {
        rows.push_back(published.compare(row, "value", claim.cell, claim.ours));
      }
    }
  }
  KVCAST_ASSERT(rows.size() == claims.size());
  return rows;
}

/// The authors' memory test, see data/measurements/README.md: a cache of 2000 tokens and 47 steps,
/// fp32, their code (keys joined and heads repeated in memory). There is no prefill in it.
struct MemoryTest {
  static constexpr std::uint64_t kv_len = 2000 + 47;
  static constexpr std::array<std::uint64_t, 18> batches{
      8, 16, 24, 32, 40, 48, 64, 80, 100, 140, 220, 300, 380, 460, 620, 720, 940, 1100};

  MemoryTest(const Architecture& a, MethodSpec spec) : recording(record_test(a, std::move(spec))) {}

  static Recording record_test(const Architecture& a, MethodSpec spec) {
    spec.options.emplace_back("semantics", "released");
    Lowering lowering;
    lowering.attention = lowering.elementwise = Kernels::Eager;
    lowering.weights = lowering.activations = lowering.cache = DType::FP32;
    return record(a, {spec}, lowering);
  }
  SymbolValues at(std::uint64_t batch) const {
    return recording.symbols.resolve({batch, 1, kv_len});
  }
  double cache_bytes(std::uint64_t batch) const {
    return static_cast<double>(recording.kv_cache_bytes.at(at(batch)));
  }
  /// Weights, cache and the peak of activations in a decode step.
  double bytes(std::uint64_t batch) const {
    std::uint64_t activations = 0;
    for (const Count& peak : activation_peaks(recording.decode())) {
      activations = std::max(activations, peak.at(at(batch)));
    }
    return static_cast<double>(recording.weight_bytes.at({})) + cache_bytes(batch) +
           static_cast<double>(activations);
  }
  std::uint64_t largest_batch(double capacity) const {
    std::uint64_t largest = 0;
    for (const std::uint64_t batch : batches) {
      if (bytes(batch) <= capacity) largest = batch;
    }
    return largest;
  }

  Recording recording;
};

std::vector<ReproducedRow> memory_test(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = CsvTable::read(catalog.root() / "measurements" / "mlkv_rtx3060.csv");
  const Architecture pythia = load_model(catalog, "pythia-160m");
  const double capacity = roofline::load_hardware(catalog, "rtx-3060-12gb").memory_capacity.value;
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const MemoryTest test(pythia, method(row));
    const std::string& name = row.text("model");
    rows.push_back(published.compare(row, "kv_cache_mib_batch_8", name + ": cache at batch 8, MiB",
                                     test.cache_bytes(8) / mib));
    rows.push_back(published.compare(row, "largest_batch", name + ": largest batch tried that fits",
                                     static_cast<double>(test.largest_batch(capacity)),
                                     TableKind::Measured));
  }
  return rows;
}

}  // namespace

std::vector<PublishedTable> mlkv_tables() {
  return {
      {"mlkv-table1", "mlkv", "MLKV, Table 1: cache of OPT-175B by formula", TableKind::Exact,
       table1},
      {"mlkv-table2", "mlkv", "MLKV, Table 2: parameters and heads of Pythia-160M's variants",
       TableKind::Exact, table2},
      {"mlkv-table3-averages", "mlkv", "MLKV, Table 3: averages of the printed accuracies",
       TableKind::Exact, table3_averages},
      {"mlkv-prose", "mlkv", "MLKV, text: what is arithmetic", TableKind::Exact, prose},
      {"mlkv-memory", "mlkv",
       "MLKV, memory test: cache, and the largest batch on an RTX 3060 12 GB", TableKind::Measured,
       memory_test},
  };
}

}  // namespace kvcast::reports
