#include "cli/estimate/training_axes.h"

#include "cli/estimate/estimate_training.h"

namespace kvcast::cli {
namespace {

/// The axis in the grid, or what it is without.
std::vector<std::string> words_of(const reports::WordAxis& axis, const reports::SweepSpec& spec) {
  const std::vector<std::string>& words = spec.*axis.values;
  return words.empty() ? std::vector<std::string>{axis.fallback} : words;
}

std::vector<std::uint64_t> numbers_of(const reports::WordAxis& axis,
                                      const reports::SweepSpec& spec) {
  std::vector<std::uint64_t> numbers;
  for (const std::string& word : words_of(axis, spec)) {
    numbers.push_back(parse_token_count(word, reports::flag_of(axis.key)));
  }
  return numbers;
}

}  // namespace

void TrainingAxes::add_to(Command c) {
  c.add("--train", train, "a step of training at each point, as kvcast estimate --train");
  c.add("--dropout P", dropout, "with --train: as kvcast estimate");
  c.add("--gradient-dtype DTYPE", gradient_dtype,
        "with --train: default: the engine's, else that of the weights");
  c.add("--state-dtype DTYPE", state_dtype, "with --train: of the optimizer's states");
}

void TrainingAxes::set_sizes(reports::SweepSpec& spec) const {
  const TrainingAxes none;
  if (!train) {
    const auto refuse = [](const std::string& flag, bool given) {
      if (given) throw Error(flag, "a sweep of requests", "--train");
    };
    for (const reports::WordAxis& axis : reports::training_axes) {
      refuse(reports::flag_of(axis.key), !(spec.*axis.values).empty());
    }
    refuse("--dropout", dropout != none.dropout);
    refuse("--gradient-dtype", !gradient_dtype.empty());
    refuse("--state-dtype", state_dtype != none.state_dtype);
    return;
  }
  if (!spec.prompt_len.empty() || !spec.output_len.empty()) {
    throw Error(
        "--train: cannot be combined with --prompt-len and --output-len; expected --seq-len");
  }
  spec.prompt_len = spec.seq_len.empty() ? std::vector<std::uint64_t>{default_seq_len}
                                         : numbers_of(reports::seq_len_axis, spec);
}

reports::TrainingSweep TrainingAxes::over(const reports::SweepGrid& grid) const {
  reports::TrainingSweep sweep{grid, {}, {}, numbers_of(reports::virtual_stages_axis, grid.spec())};
  for (const std::string& word : words_of(reports::recompute_axis, grid.spec())) {
    sweep.recompute.push_back(parse_flag("--recompute", word, parse_recompute));
  }
  for (const std::string& word : words_of(reports::zero_axis, grid.spec())) {
    sweep.zero.push_back(parse_flag("--zero", word, roofline::parse_zero));
  }
  if (!gradient_dtype.empty()) {
    sweep.options.gradients = parse_flag("--gradient-dtype", gradient_dtype, parse_dtype);
  }
  check_dropout(dropout, "--dropout");
  sweep.options.dropout = dropout;
  sweep.options.states = parse_flag("--state-dtype", state_dtype, parse_dtype);
  return sweep;
}

}  // namespace kvcast::cli
