#include "cli/estimate/training_axes.h"

#include <tuple>

#include "cli/estimate/estimate_training.h"
#include "measure/measure_matrix.h"

namespace kvcast::cli {

using measure::or_default;

void TrainingAxes::add_to(Command c) {
  c.add("--train", train, "a step of training at each point, as kvcast estimate --train");
  c.add("--dropout P", dropout, "with --train: as kvcast estimate");
  c.add("--loss-chunks N", loss_chunks, "with --train: as kvcast estimate");
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
    for (const reports::NumberAxis& axis : reports::training_number_axes) {
      refuse(spec.place_of(axis.key), !(spec.*axis.values).empty());
    }
    for (const reports::WordAxis& axis : reports::training_word_axes) {
      refuse(spec.place_of(axis.key), !(spec.*axis.values).empty());
    }
    refuse("--dropout", dropout != none.dropout);
    refuse("--loss-chunks", loss_chunks != none.loss_chunks);
    refuse("--gradient-dtype", !gradient_dtype.empty());
    refuse("--state-dtype", state_dtype != none.state_dtype);
    return;
  }
  for (const auto& [axis, given, expected] :
       {std::tuple{"prompt_len", !spec.prompt_len.empty(), "--seq-len"},
        std::tuple{"output_len", !spec.output_len.empty(), "--seq-len"},
        std::tuple{"cache_dtype", !spec.cache_dtype.empty(), "none: there is no cache"}}) {
    if (given) throw Error(spec.place_of(axis), "a sweep of training", expected);
  }
  spec.prompt_len = or_default(spec.seq_len, {default_seq_len});
}

reports::TrainingSweep TrainingAxes::over(const reports::SweepGrid& grid) const {
  reports::TrainingSweep sweep{grid, {}, {}, or_default(grid.spec().virtual_stages, {1})};
  for (const std::string& word : or_default(grid.spec().recompute, {"none"})) {
    sweep.recompute.push_back(
        parse_flag(grid.spec().place_of("recompute").c_str(), word, parse_recompute));
  }
  for (const std::string& word : or_default(grid.spec().zero, {"0"})) {
    sweep.zero.push_back(
        parse_flag(grid.spec().place_of("zero").c_str(), word, roofline::parse_zero));
  }
  if (!gradient_dtype.empty()) {
    sweep.options.gradients = parse_flag("--gradient-dtype", gradient_dtype, parse_dtype);
  }
  check_dropout(dropout, "--dropout");
  sweep.options.dropout = dropout;
  sweep.options.loss_chunks = parse_token_count(loss_chunks, "--loss-chunks");
  sweep.options.states = parse_flag("--state-dtype", state_dtype, parse_dtype);
  return sweep;
}

}  // namespace kvcast::cli
