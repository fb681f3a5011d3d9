/// Which MLKV form of a model to take: how many layers own keys and values, with how many heads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/methods/mlkv.h"
#include "roofline/estimator.h"

namespace kvcast::search {

enum class MlkvGoal {
  Fit,       ///< the batch in the memory, with as many heads as there is room for
  MaxBatch,  ///< as many sequences as the memory holds
};

struct MlkvRequest {
  roofline::Configuration configuration;  ///< the unchanged model; its methods are not used
  /// False: the configuration's device is not used; the budget is needed, and there are no times.
  bool has_hardware = true;
  MlpWidening widening = MlpWidening::Preserve;
  std::uint64_t batch = 1;
  std::uint64_t kv_len = 2;  ///< tokens in the cache of each sequence, the prompt's and later ones
  /// Bytes for weights, cache and activations; default: the device's memory.
  std::optional<double> memory_budget;
  MlkvGoal goal = MlkvGoal::Fit;
};

/// One form of the model. `rejected`: why it cannot be taken; empty if it can.
struct MlkvCandidate {
  std::uint64_t layers = 0;  ///< that own keys and values
  std::uint64_t heads = 0;   ///< in each of them
  std::uint64_t intermediate_size = 0;
  std::uint64_t parameters = 0;
  double kv_cache_bytes = 0;  ///< for the batch at the full kv_len
  double kv_cache_ratio = 1;  ///< over that of the unchanged model
  double peak_memory_bytes = 0;
  std::uint64_t largest_batch = 0;    ///< that fits the memory at the full kv_len; 0: none
  std::optional<double> tpot_s = {};  ///< a decode step of the batch at the full kv_len
  std::string rejected = {};
};

/// Every number of layers that divides the model's and of heads that divides its key-value heads,
/// the best first, the rejected ones last.
///
/// Order: with MaxBatch, larger batches first. Then the forms of the paper's rule, fewer heads in
/// every layer down to one, and only then fewer layers: sharing within layers costs less quality
/// than sharing across them (Zuhri et al. 2024, arXiv:2406.09297, Table 3: GQA-48 above MLKV-48,
/// MQA-12 above MLKV-12). Then come the forms that share across layers and still have several
/// heads. Among either, more heads in all first, and of equally many more layers. Throws Error as
/// to_mlkv and Estimator do, for a kv_len below 2 tokens or a batch of 0, and with neither a
/// device nor a budget.
std::vector<MlkvCandidate> choose_mlkv(const MlkvRequest& request);

}  // namespace kvcast::search
