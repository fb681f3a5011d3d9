#include "cli/estimate/sweep_axes.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/frame/this_machine.h"

namespace kvcast::cli {
namespace {

using reports::SweepSpec;

/// In the order of --help. Each takes a list, or a range of numbers.
constexpr const char* axis_flags[][2] = {
    {"--model LIST", "catalog names, config.json files or folders with one"},
    {"--hardware LIST", "catalog names or JSON files; default: this machine, once calibrated"},
    {"--engine LIST", "software that runs the model (kvcast engine list)"},
    {"--method LIST", "methods separated by ';', or by ',' unless KEY=VALUE follows it"},
    {"--attention LIST", "eager, tiled; default: the engine's, or tiled"},
    {"--elementwise LIST", "eager, fused; default: the engine's, or as --attention"},
    {"--dtype LIST", ""},
    {"--weight-dtype LIST", ""},
    {"--activation-dtype LIST", ""},
    {"--cache-dtype LIST", ""},
    {"--mode LIST", "calibrated, speed-of-light"},
    {"--tp LIST", ""},
    {"--pp LIST", ""},
    {"--ep LIST", ""},
    {"--dp LIST", ""},
    {"--sequence-parallel LIST",
     "off, on: with --tp norms and residuals of prompts work on a part of the tokens"},
    {"--micro-batches RANGE",
     "parts that a batch is cut into; default: with --pp one for each stage; with --train: passes "
     "of a step"},
    {"--platform LIST", ""},
    {"--batch RANGE", ""},
    {"--prompt-len RANGE", "prompt tokens, or encoder length"},
    {"--output-len RANGE", "tokens to generate"},
};
constexpr const char* training_flags[][2] = {
    {"--seq-len RANGE", "with --train: tokens of a sequence [2048]"},
    {"--recompute LIST", "with --train: none, selective, full [none]"},
    {"--zero LIST", "with --train: stages 0 to 3 [0]"},
    {"--virtual-stages RANGE",
     "with --train and --pp: parts of the layers that each stage has [1]"},
};

/// "--prompt-len RANGE" -> "prompt_len"
std::string axis_key(std::string flag) {
  flag = flag.substr(2, flag.find(' ') - 2);
  std::replace(flag.begin(), flag.end(), '-', '_');
  return flag;
}

/// One text for the flags of an axis: repeating a flag adds to its list.
std::string joined(const std::vector<std::string>& texts, const char* separator) {
  return fmt::format("{}", fmt::join(texts, separator));
}

}  // namespace

void SweepAxes::add_to(Command command, bool trains) {
  const auto add = [&](const char* flag, const char* help) {
    command.add(flag, axes[axis_key(flag)], help).allow_extra_args(false).group("Axes");
  };
  for (const auto& [flag, help] : axis_flags) add(flag, help);
  if (trains) {
    for (const auto& [flag, help] : training_flags) add(flag, help);
  }
  command.add("--set KEY=LIST", set, "a config entry, e.g. num_key_value_heads=1,8,32")
      .allow_extra_args(false)
      .group("Axes");
  command.add("--spec FILE", spec, "read the axes from a JSON file");
}

SweepSpec SweepAxes::parse(const Globals& globals) const {
  SweepSpec result;
  if (!spec.empty()) result = reports::read_sweep_spec(spec);
  // The flag's texts in place of the file's values. Without --train there are no flags of training.
  const auto read = [&](const auto& axis, const char* separator, auto parse) {
    const auto found = axes.find(axis.key);
    if (found == axes.end() && !(result.*axis.values).empty()) {
      throw Error(spec, fmt::format("the axis {} of training", axis.key), "axes of requests");
    }
    if (found == axes.end() || found->second.empty()) return;
    result.places.erase(axis.key);
    result.*axis.values = parse(joined(found->second, separator), reports::flag_of(axis.key));
  };
  const auto read_words = [&](const reports::WordAxis& axis) {
    read(axis, reports::has_options(axis.key) ? ";" : ",", reports::words_of_axis(axis.key));
  };
  const auto read_numbers = [&](const reports::NumberAxis& axis) {
    read(axis, ",", reports::parse_numbers);
  };
  for (const reports::WordAxis& axis : reports::word_axes) read_words(axis);
  for (const reports::WordAxis& axis : reports::training_word_axes) read_words(axis);
  for (const reports::NumberAxis& axis : reports::number_axes) read_numbers(axis);
  for (const reports::NumberAxis& axis : reports::training_number_axes) read_numbers(axis);
  if (result.hardware.empty() && !result.model.empty()) {
    result.hardware = {or_this_machine({}, globals)};
  }
  std::vector<reports::SetAxis> own;
  for (const std::string& text : set) {
    own.push_back(reports::parse_set_axis(text, "--set"));
    std::erase_if(result.set, [&](const auto& axis) { return axis.key == own.back().key; });
  }
  result.set.insert(result.set.end(), own.begin(), own.end());
  return result;
}

}  // namespace kvcast::cli
