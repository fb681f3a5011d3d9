#include <memory>

#include <fmt/format.h>

#include "model/methods/method.h"
#include "model/record/rank_recording.h"
#include "model/record/recording.h"
#include "reports/reproduce/kvr_node.h"
#include "reports/reproduce/quantities.h"
#include "search/partition_search.h"

namespace kvcast::reports {
namespace {

constexpr const char* example_model = "llama-7b";

/// Rows of keys that the ranks of a placement send in a layer, as its recordings have them.
std::uint64_t rows_sent(const Catalog& catalog, const std::string& method,
                        const std::vector<std::uint64_t>& partition) {
  const Architecture a = load_model(catalog, example_model);
  std::uint64_t rows = 0;
  RankShare share{partition, 0};
  for (; share.rank < share.ranks(); ++share.rank) {
    const Recording r = record_rank(a, parse_methods(method), {}, share);
    const SymbolValues values = r.symbols.resolve({1, share.tokens(), share.end()});
    for (const Node& node : r.prefill().nodes()) {
      if (node.layer != 0 || node.label != "send_keys") continue;
      rows += r.prefill().tensor(node.output()).shape[1].at(values);
    }
  }
  return rows;
}

/// (model, devices, context, GB/s ...) after `first` other arguments.
KvrSetting setting_of(const QuantityArguments& a, std::size_t first) {
  return {a.word(first), a.whole(first + 1), a.whole(first + 2), a.number(first + 3)};
}

}  // namespace

void add_kvr_quantities(const Catalog& catalog, Quantities& all) {
  // (method, ranks, tokens of each)
  all["rows_sent"] = [&catalog](const QuantityArguments& a) {
    return Count(rows_sent(catalog, fmt::format("{}:p={}", a.word(0), a.whole(1)),
                           std::vector<std::uint64_t>(a.whole(1), a.whole(2))));
  };
  all["words"] = [](const QuantityArguments& a) { return Count(words_of(a.word(0)).size()); };
  // (tokens, parts, index)
  all["even_part"] = [](const QuantityArguments& a) {
    return Count(even_partition(a.whole(0), a.whole(1)).at(a.whole(2)));
  };
  const auto held = std::make_shared<std::unique_ptr<KvrNode>>();
  const auto node = [&catalog, held]() -> KvrNode& {
    if (*held == nullptr) *held = std::make_unique<KvrNode>(catalog);
    return **held;
  };
  // (tsp or kvr, setting)
  all["kvr_node_ttft_s"] = [node](const QuantityArguments& a) {
    return node().ttft_s(setting_of(a, 1), a.word(0) == "tsp");
  };
  // (setting, rank)
  all["kvr_node_tokens"] = [node](const QuantityArguments& a) {
    return Count(node().searched(setting_of(a, 0)).tokens.at(a.whole(4)));
  };
  // (setting, interval of the table's contexts, rank): between the contexts searched around it
  all["interpolated_tokens"] = [node](const QuantityArguments& a) {
    const KvrSetting wanted = setting_of(a, 0);
    search::PartitionTable searched;
    const std::uint64_t below = wanted.context / a.whole(4) * a.whole(4);
    for (const std::uint64_t entry : {below, below + a.whole(4)}) {
      KvrSetting setting = wanted;
      setting.context = entry;
      searched.entries.push_back({entry, node().searched(setting)});
    }
    return Count(look_up(searched, wanted.context, wanted.gpus, false).at(a.whole(5)));
  };
}

}  // namespace kvcast::reports
