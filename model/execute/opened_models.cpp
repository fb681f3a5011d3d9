#include "model/execute/opened_models.h"

#include <algorithm>

#include "model/base/error.h"

namespace kvcast::execute {

const Checkpoint& open_model(const std::string& name, const OpenModel& open, OpenedModels& opened) {
  const auto known = opened.find(name);
  if (known != opened.end()) return known->second;
  return opened.emplace(name, open ? open(name) : Checkpoint(name)).first->second;
}

std::vector<ModelWeights> find_weights(const Checkpoint& base,
                                       const std::vector<HelperModel>& helpers,
                                       OpenedModels& opened, std::optional<std::uint64_t> seed) {
  if (base.is_random() && !seed) seed = 1;
  std::vector<ModelWeights> models{{"", &base}};
  for (const HelperModel& model : helpers) {
    if (model.weights == HelperWeights::BaseLayers) {
      opened.emplace(model.name, base.pruned(model.architecture.pruning.kept));
    } else if (model.weights == HelperWeights::Tensors && !model.name.empty()) {
      opened.emplace(model.name, Checkpoint::of_tensors(model.name, model.prefix));
    } else if (model.weights == HelperWeights::Tensors) {
      if (!seed) throw Error("weights of " + model.architecture.name + " are not given");
      opened.emplace(model.name, Checkpoint(model.architecture, *seed));
    }
    models.push_back({model.prefix, &opened.at(model.name)});
  }
  return models;
}

void check_converted(const Checkpoint& checkpoint, const std::string& conversion,
                     const std::vector<MethodSpec>& methods) {
  if (checkpoint.is_random()) return;
  const std::string place = checkpoint.path().string();
  if (!conversion.empty()) {
    throw Error(place, "a checkpoint of the unchanged model",
                "one that '" + conversion + "' has made of it");
  }
  const std::string& method = checkpoint.architecture().converted_for;
  const bool applied = std::any_of(methods.begin(), methods.end(),
                                   [&](const MethodSpec& m) { return m.name == method; });
  if (!method.empty() && !applied) {
    throw Error(place, "a checkpoint converted for the method " + method, "--method " + method);
  }
}

}  // namespace kvcast::execute
