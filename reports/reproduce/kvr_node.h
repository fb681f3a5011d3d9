/// The node that KV-Runahead's paper measured with, forecast.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "model/io/weights/catalog.h"
#include "roofline/hardware.h"
#include "search/partition_table.h"
#include "simulate/layer_times.h"

namespace kvcast::reports {

/// One prompt of the paper's tables.
struct KvrSetting {
  std::string model;  ///< as load_described() has it
  std::size_t gpus = 0;
  std::uint64_t context = 0;
  double gb_per_s = 0;
};

/// How the paper's prototype ran: eager PyTorch in fp16, sends that the compute stream waits for
/// (torch.distributed.send), NCCL's payload rate on every link. The factors of the node, two of
/// them fitted to 8 TTFTs, are those of `a100-80gb-kvr-node`; nothing is set for a model or a
/// cell.
class KvrNode {
 public:
  explicit KvrNode(const Catalog& catalog);

  /// The TTFT of TSP with an even partition, or of KVR-S. Throws Error as load_model does.
  double ttft_s(const KvrSetting& setting, bool tsp);
  search::PartitionFound searched(const KvrSetting& setting);

 private:
  const simulate::LayerTimes& layer_times(const KvrSetting& setting);
  search::ChainLink link(double gb_per_s) const;

  const Catalog& catalog_;
  roofline::Hardware hardware_;
  Lowering lowering_;
  std::map<std::string, simulate::LayerTimes> times_;
};

}  // namespace kvcast::reports
