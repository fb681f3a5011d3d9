#include <algorithm>
#include <string>

#include "reports/reproduce/kvr_node.h"
#include "reports/reproduce/reproduce_kvr.h"

namespace kvcast::reports {
namespace {

/// The speed-ups of KVR-S over TSP in captions that say on how many GPUs, at which context and at
/// which bandwidth.
std::vector<ReproducedRow> captions(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvr_figure_captions.csv");
  KvrNode gpus(catalog);
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const bool complete = !row.text("n_gpus").empty() && !row.text("context_tokens").empty() &&
                          !row.text("bandwidth_gb_per_s").empty();
    if (!complete || row.text("unit") != "x" || row.text("comparison") != "KVR-S vs TSP") continue;
    const std::string& model = row.text("model");
    const KvrSetting setting{model, model.starts_with("Falcon") ? "as released" : "MHA",
                             row.whole("n_gpus"), row.whole("context_tokens"),
                             row.number("bandwidth_gb_per_s")};
    const std::string cell = "Figure " + row.text("figure") + " (" + row.text("subfigure") +
                             "): " + model + ", " + row.text("n_gpus") + " GPUs, " +
                             row.text("context_label") + ", " + row.text("bandwidth_gb_per_s") +
                             " GB/s: speed-up of KVR-S over TSP";
    rows.push_back(
        published.compare(row, "value", cell, gpus.speedup(setting), TableKind::Measured));
    if (const auto label = published.erratum(row, "context_label")) {
      rows.back().erratum = label->id + ": " + label->reason;
    }
  }
  return rows;
}

/// Section 5: the partition for 10k on 4 GPUs, interpolated between those found for 8k and 12k.
std::vector<ReproducedRow> interpolated(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvr_predicted_partition_10k_4gpu.csv");
  KvrNode gpus(catalog);
  const double gb_per_s = published.claim("kvr_prose.csv", "kvr_p40");
  const auto interval =
      static_cast<std::uint64_t>(published.claim("kvr_prose.csv", "kvr_p21"));  // 4096
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::uint64_t context = row.whole("context_tokens");
    const std::size_t processes = row.whole("n_gpus");
    search::PartitionTable searched;
    const std::uint64_t below = context / interval * interval;
    for (const std::uint64_t entry : {below, below + interval}) {
      searched.entries.push_back(
          {entry, gpus.searched({"Llama 7B", "MHA", processes, entry, gb_per_s})});
    }
    const search::Partition partition = look_up(searched, context, processes, false);
    const double share =
        static_cast<double>(partition.at(row.whole("rank"))) / static_cast<double>(context);
    rows.push_back(published.compare(
        row, "partition_fraction",
        "Llama 7B, 4 GPUs, 10k, process " + row.text("rank") + ": share of the prompt", share,
        TableKind::Measured));
  }
  return rows;
}

/// The largest speed-up of KVR-S over TSP among Llama 7B's settings of Table 1.
double largest_speedup(const Published& published, KvrNode& gpus) {
  const CsvTable table = published.read("kvr_table1_ttft_300gbs.csv");
  double largest = 0;
  for (const CsvRow& row : table.rows()) {
    if (row.text("model") != "Llama 7B" || row.text("method") != "TSP") continue;
    largest = std::max(
        largest, gpus.speedup({"Llama 7B", "MHA", row.whole("n_gpus"), row.whole("context_tokens"),
                               row.number("bandwidth_gb_per_s")}));
  }
  return largest;
}

std::vector<ReproducedRow> prose(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvr_prose.csv");
  const auto said = [&](const char* id) { return published.claim("kvr_prose.csv", id); };
  const double high = said("kvr_p40");
  const double low = said("kvr_p41");
  const std::uint64_t k = 1024;
  KvrNode gpus(catalog);
  const auto llama = [&](const std::string& attention, std::size_t count, std::uint64_t context,
                         double gb_per_s) {
    return KvrSetting{"Llama 7B", attention, count, context, gb_per_s};
  };
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& id = row.text("claim_id");
    const auto add = [&](const std::string& cell, double ours) {
      rows.push_back(published.compare(row, "value", cell, ours, TableKind::Measured));
    };
    if (id == "kvr_p01") {
      add("Llama 7B: largest speed-up of Table 1 (printed: over)",
          largest_speedup(published, gpus));
    } else if (id == "kvr_p02") {
      add("Falcon 7B, 8 GPUs, 8k: the largest speed-up of Figure 9 (printed: over)",
          gpus.speedup({"Falcon 7B", "as released", 8, 8 * k, high}));
    } else if (id == "kvr_p16" || id == "kvr_p17") {
      const auto first =
          static_cast<double>(gpus.searched(llama("MHA", 2, 16 * k, high)).tokens.front());
      if (id == "kvr_p16") add("Llama 7B, 2 GPUs, 16k: tokens of the first", first);
      if (id == "kvr_p17") add("Llama 7B, 2 GPUs, 16k: more than half", first - 8 * 1024.0);
    } else if (id == "kvr_p28") {  // largest at 8 GPUs and 8k (E8b)
      add("Llama 7B, 8 GPUs, 8k: TTFT with MHA over MQA",
          gpus.ttft_s(llama("MHA", 8, 8 * k, high), false) /
              gpus.ttft_s(llama("MQA", 8, 8 * k, high), false));
    } else if (id == "kvr_p29" || id == "kvr_p30" || id == "kvr_p31") {
      const char* attention = id == "kvr_p29" ? "MHA" : id == "kvr_p30" ? "MQA" : "GQA8";
      add(std::string("Llama 7B, 8 GPUs, 16k, ") + attention + ": speed-up of KVR-S over TSP",
          gpus.speedup(llama(attention, 8, 16 * k, high)));
    } else if (id == "kvr_p32" || id == "kvr_p33") {
      const std::size_t count = id == "kvr_p32" ? 2 : 4;
      add("Llama 7B, " + std::to_string(count) + " GPUs, 2k, 10 GB/s, KVR-S: ttft_s",
          gpus.ttft_s(llama("MHA", count, 2 * k, low), false));
    }
  }
  return rows;
}

}  // namespace

std::vector<PublishedTable> kvr_text_tables() {
  return {
      {"kvr-figures", "kvr", "KV-Runahead, captions of Figures 8 and 9: KVR-S over TSP",
       TableKind::Measured, captions},
      {"kvr-partition", "kvr", "KV-Runahead, section 5: an interpolated partition",
       TableKind::Measured, interpolated},
      {"kvr-prose", "kvr", "KV-Runahead, numbers in the text", TableKind::Measured, prose},
  };
}

}  // namespace kvcast::reports
