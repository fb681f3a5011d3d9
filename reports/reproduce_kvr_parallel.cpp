#include <map>
#include <utility>

#include "reports/reproduce_kvr.h"
#include "roofline/hardware.h"
#include "search/partition_search.h"

namespace kvcast::reports {
namespace {

/// How the paper's prototype ran: eager PyTorch in fp16, sends that the compute stream waits for
/// (torch.distributed.send), NCCL's payload rate on every link. The factors of the node, two of
/// them fitted to 13 TTFTs, are those of `a100-80gb-kvr-node`; nothing is set for a model or a
/// cell.
constexpr const char* node = "a100-80gb-kvr-node";
constexpr search::SendOrder send_order = search::SendOrder::Block;

/// "Falcon 1B" and "MQA" as the catalog has them.
Architecture load_printed(const Catalog& catalog, const std::string& model,
                          const std::string& attention) {
  const std::string name = model == "Falcon 1B" ? "falcon-rw-1b" : catalog_spelling(model);
  if (attention == "MQA") return load_model(catalog, name, {{"num_key_value_heads", "1"}});
  if (attention == "GQA8") return load_model(catalog, name, {{"num_key_value_heads", "8"}});
  return load_model(catalog, name);
}

class GpuNode {
 public:
  explicit GpuNode(const Catalog& catalog)
      : catalog_(catalog), hardware_(roofline::load_hardware(catalog, node)) {
    lowering_.attention = lowering_.elementwise = Kernels::Eager;
  }

  double ttft_s(const CsvRow& row, const std::string& attention, bool tsp) {
    const simulate::LayerTimes& times = layer_times(row.text("model"), attention);
    search::ChainLink link;
    link.bytes_per_s = 1e9 * row.number("bandwidth_gb_per_s") * hardware_.link_rate->value;
    link.latency_s = hardware_.links.at("nvlink").latency.value;
    link.order = send_order;
    link.host_message_s = hardware_.host_message_latency->value;
    link.host_exchange_s = hardware_.host_exchange_latency->value;
    const std::uint64_t context = row.whole("context_tokens");
    const std::size_t devices = row.whole("n_gpus");
    if (tsp) return tsp_ttft_s(times, link, even_partition(context, devices));
    return search_partition(search::Runahead(times, link), context, devices,
                            search::PartitionAlgorithm::Balance)
        .ttft_s;
  }

 private:
  const simulate::LayerTimes& layer_times(const std::string& model, const std::string& attention) {
    const auto key = std::make_pair(model, attention);
    const auto found = times_.find(key);
    if (found != times_.end()) return found->second;
    const roofline::Rates rates =
        roofline::make_rates(hardware_, lowering_, roofline::Mode::Calibrated);
    return times_
        .emplace(key, simulate::LayerTimes(load_printed(catalog_, model, attention), {}, lowering_,
                                           rates))
        .first->second;
  }

  const Catalog& catalog_;
  roofline::Hardware hardware_;
  Lowering lowering_;
  std::map<std::pair<std::string, std::string>, simulate::LayerTimes> times_;
};

std::string place_of(const CsvRow& row) {
  return row.text("n_gpus") + " GPUs, " + row.text("context_label");
}

std::vector<ReproducedRow> ttft_rows(const Catalog& catalog, std::string_view file) {
  const Published published(catalog);
  const CsvTable table = published.read(file);
  GpuNode gpus(catalog);
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& attention = row.text("attention");
    const double ours = gpus.ttft_s(row, attention, row.text("method") == "TSP");
    const std::string cell = row.text("model") + " " + attention + ", " + place_of(row) + ", " +
                             row.text("method") + ": ttft_s";
    rows.push_back(published.compare(row, "ttft_s", cell, ours, TableKind::Measured));
    rows.back().prompt_len = row.whole("context_tokens");
  }
  return rows;
}

/// KVR-S over TSP, as printed beside each pair of TTFTs.
std::vector<ReproducedRow> speedup_rows(const Catalog& catalog, std::string_view file) {
  const Published published(catalog);
  const CsvTable table = published.read(file);
  GpuNode gpus(catalog);
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    if (row.text("speedup_vs_tsp").empty()) continue;
    const std::string& attention = row.text("attention");
    const double ours = gpus.ttft_s(row, attention, true) / gpus.ttft_s(row, attention, false);
    const std::string cell =
        row.text("model") + " " + attention + ", " + place_of(row) + ": speed-up of KVR-S over TSP";
    rows.push_back(published.compare(row, "speedup_vs_tsp", cell, ours, TableKind::Measured));
  }
  return rows;
}

/// The paper does not name the method of these columns; we take KVR-S. Its 1 GB/s columns cannot be
/// meant literally (E5) and are left out.
std::vector<ReproducedRow> low_bandwidth_rows(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvr_table3_ttft_low_bandwidth.csv");
  GpuNode gpus(catalog);
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    if (row.whole("n_gpus") == 1 || row.text("bandwidth_gb_per_s") != "10") continue;
    const std::string cell = row.text("model") + ", " + place_of(row) + ", 10 GB/s, KVR-S: ttft_s";
    rows.push_back(published.compare(row, "ttft_s", cell, gpus.ttft_s(row, "MHA", false),
                                     TableKind::Measured));
    rows.back().prompt_len = row.whole("context_tokens");
  }
  return rows;
}

}  // namespace

std::vector<PublishedTable> kvr_parallel_tables() {
  const std::string table1 = "kvr_table1_ttft_300gbs.csv";
  const std::string table2 = "kvr_table2_ttft_mqa_gqa8.csv";
  return {
      {"kvr-table1", "kvr", "KV-Runahead, Table 1: TTFT of TSP and KVR-S at 300 GB/s",
       TableKind::Measured, [=](const Catalog& c) { return ttft_rows(c, table1); }},
      {"kvr-table1-speedups", "kvr", "KV-Runahead, Table 1: KVR-S over TSP", TableKind::Measured,
       [=](const Catalog& c) { return speedup_rows(c, table1); }},
      {"kvr-table2", "kvr", "KV-Runahead, Table 2: TTFT of Llama 7B with fewer key-value heads",
       TableKind::Measured, [=](const Catalog& c) { return ttft_rows(c, table2); }},
      {"kvr-table2-speedups", "kvr", "KV-Runahead, Table 2: KVR-S over TSP", TableKind::Measured,
       [=](const Catalog& c) { return speedup_rows(c, table2); }},
      {"kvr-table3-10gbs", "kvr", "KV-Runahead, Table 3: TTFT of 2 and 4 GPUs at 10 GB/s",
       TableKind::Measured, low_bandwidth_rows},
  };
}

}  // namespace kvcast::reports
