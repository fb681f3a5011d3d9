#include "model/graph/collective.h"

#include "model/base/words.h"

namespace kvcast {

std::string_view name(CollectiveKind kind) {
  static constexpr Words<CollectiveKind, 4> kinds = {
      {{CollectiveKind::AllReduce, "all_reduce"},
       {CollectiveKind::ReduceScatter, "reduce_scatter"},
       {CollectiveKind::AllGather, "all_gather"},
       {CollectiveKind::AllToAll, "all_to_all"}}};
  return word_for(kind, kinds);
}

}  // namespace kvcast
