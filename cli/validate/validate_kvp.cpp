#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/convert/convert_options.h"
#include "cli/frame/request_options.h"
#include "cli/run/pair_text.h"
#include "cli/validate/validate_parts.h"
#include "model/base/quantity.h"
#include "model/convert/kvp_objective.h"

namespace kvcast::cli {
namespace {

using nlohmann::ordered_json;

struct ValidateKvpOptions {
  std::string base;
  std::string auxiliary;
  std::string predictor;
  std::string text;
  std::string window = "2048";  // the paper's training length (Horton et al. 2024, section 5)
  KvpObjectiveWeights weights;
  bool json = false;
};

ordered_json loss_json(const LanguageLoss& loss) {
  return {{"cross_entropy", loss.cross_entropy}, {"z_loss", loss.z_loss}};
}

ordered_json objective_json(const KvpObjective& v) {
  return {{"tokens", v.tokens},
          {"base", loss_json(v.base)},
          {"base_plain", loss_json(v.plain)},
          {"auxiliary", loss_json(v.auxiliary)},
          {"key_l1", v.key_l1},
          {"value_l1", v.value_l1},
          {"consistency", v.consistency},
          {"total", v.total}};
}

std::string objective_text(const KvpObjective& v) {
  const auto number = [](double x) { return fmt::format("{:.5g}", x); };
  Table losses({"", "cross-entropy", "z-loss"});
  for (const auto& [name, loss] :
       {std::pair{"base, predicted cache", &v.base}, std::pair{"base, its own cache", &v.plain},
        std::pair{"auxiliary", &v.auxiliary}}) {
    losses.add({name, number(loss->cross_entropy), number(loss->z_loss)});
  }
  Table layers({"layer", "key L1", "value L1"});
  for (std::size_t i = 0; i < v.key_l1.size(); ++i) {
    layers.add({std::to_string(i), number(v.key_l1[i]), number(v.value_l1[i])});
  }
  return losses.text() + layers.text() +
         fmt::format("consistency {:.5g}, total {:.5g}, over {} tokens\n", v.consistency, v.total,
                     v.tokens);
}

void validate_kvp(const ValidateKvpOptions& o, const Globals& globals) {
  const Checkpoint base(o.base);
  const Checkpoint auxiliary(o.auxiliary);
  const std::size_t window = parse_token_count(o.window, "--window");
  const auto text = read_pair_text("--text", o.text, base, auxiliary);
  // Absolute, so that a folder named lp-0.50 is not read as the pruned base model.
  const std::string folder = std::filesystem::absolute(o.auxiliary).string();
  const KvpObjective objective = with_progress(globals, [&](auto progress) {
    return kvp_objective(base, auxiliary, folder, o.predictor, text, window, o.weights, progress);
  });
  print_result(o.json, objective_json(objective), objective_text(objective));
}

}  // namespace

void add_validate_kvp(Command validate, const Globals& globals) {
  Command c = validate.add_subcommand(
      "kvp",
      "Compute KV Prediction's training loss on a text.\n\nExamples:\n"
      "  kvcast validate kvp --base tests/oracle/openelm --auxiliary tests/oracle/kvp/auxiliary "
      "--predictor tests/oracle/kvp/predictor --text ids.json");
  const auto o = std::make_shared<ValidateKvpOptions>();
  c.add("--base", o->base).required();
  c.add("--auxiliary", o->auxiliary).required();
  c.add("--predictor FOLDER", o->predictor, "the linear maps, as convert kvp writes them")
      .required();
  c.add("--text", o->text).required();
  c.add("--window", o->window);
  c.add("--base-weight", o->weights.base, "weight of the base model's loss");
  c.add("--auxiliary-weight", o->weights.auxiliary, "weight of the auxiliary model's loss");
  c.add("--consistency-weight", o->weights.consistency,
        "weight of the difference between predicted and true keys and values");
  c.add("--z-loss", o->weights.z_loss,
        "weight of the z-loss (squared log of the softmax denominator)");
  c.add("--json", o->json);
  c.callback([o, &globals] { validate_kvp(*o, globals); });
}

}  // namespace kvcast::cli
