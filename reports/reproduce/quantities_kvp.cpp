#include <memory>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/config/kv_predictor.h"
#include "model/config/layer_map.h"
#include "model/config/layer_pruning.h"
#include "reports/reproduce/quantities.h"

namespace kvcast::reports {

void add_kvp_quantities(const Catalog& catalog, Quantities& all) {
  /// A base model, its auxiliary, and the map of the released code between them.
  struct Pair {
    Architecture base;
    Architecture auxiliary;
    LayerMap map;
  };
  const auto pairs = std::make_shared<std::map<std::pair<std::string, std::string>, Pair>>();
  const auto pair = [&catalog, pairs](const QuantityArguments& a) -> const Pair& {
    return remembered(*pairs, {a.word(0), a.word(1)}, [&] {
      Pair p{load_described(catalog, a.word(0)), load_described(catalog, a.word(1)), {}};
      p.map = code_layer_map(p.base, p.auxiliary);
      return p;
    });
  };
  // (base, auxiliary, base layer)
  all["mapped_layer"] = [pair](const QuantityArguments& a) {
    const LayerMap& map = pair(a).map;
    if (a.whole(2) >= map.size()) {
      throw Error(a.place(), std::to_string(a.whole(2)),
                  fmt::format("a layer below {}", map.size()));
    }
    return Count(map[a.whole(2)]);
  };
  all["predictor_parameters"] = [pair](const QuantityArguments& a) {
    const Pair& p = pair(a);
    return Count(predictor_parameters(p.base, p.auxiliary, p.map));
  };
  // (base, share of its layers, position in the pruned model)
  all["retained_layer"] = [&catalog](const QuantityArguments& a) {
    const Architecture base = load_described(catalog, a.word(0));
    const auto kept = retained_layers(base.num_hidden_layers(), a.number(1));
    if (a.whole(2) >= kept.size()) {
      throw Error(a.place(), std::to_string(a.whole(2)), fmt::format("below {}", kept.size()));
    }
    return Count(kept[a.whole(2)]);
  };
}

}  // namespace kvcast::reports
