#include "reports/reproduce/kvr_node.h"

#include "model/methods/placement.h"
#include "reports/reproduce/quantities.h"
#include "search/partition_search.h"

namespace kvcast::reports {
namespace {

constexpr const char* node_hardware = "a100-80gb-kvr-node";
constexpr search::SendOrder send_order = search::SendOrder::Block;

}  // namespace

KvrNode::KvrNode(const Catalog& catalog)
    : catalog_(catalog), hardware_(roofline::load_hardware(catalog, node_hardware)) {
  lowering_.attention = lowering_.elementwise = Kernels::Eager;
}

double KvrNode::ttft_s(const KvrSetting& setting, bool tsp) {
  if (!tsp) return searched(setting).ttft_s;
  return tsp_ttft_s(layer_times(setting), link(setting.gb_per_s),
                    even_partition(setting.context, setting.gpus));
}

search::PartitionFound KvrNode::searched(const KvrSetting& setting) {
  const search::Runahead runahead(layer_times(setting), link(setting.gb_per_s));
  return search_partition(runahead, setting.context, setting.gpus,
                          search::PartitionAlgorithm::Balance);
}

search::ChainLink KvrNode::link(double gb_per_s) const {
  search::ChainLink link;
  link.bytes_per_s = 1e9 * gb_per_s * hardware_.link_rate->value;
  link.latency_s = hardware_.links.at("nvlink").latency.value;
  link.order = send_order;
  link.exchange.message_s = hardware_.host_message_latency->value;
  link.exchange.exchange_s = hardware_.host_exchange_latency->value;
  return link;
}

const simulate::LayerTimes& KvrNode::layer_times(const KvrSetting& setting) {
  return remembered(times_, setting.model, [&] {
    const roofline::Rates rates =
        roofline::make_rates(hardware_, lowering_, roofline::Mode::Calibrated);
    return simulate::LayerTimes(load_described(catalog_, setting.model), {}, lowering_, rates);
  });
}

}  // namespace kvcast::reports
