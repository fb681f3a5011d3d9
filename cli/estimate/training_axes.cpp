#include "cli/estimate/training_axes.h"

#include "cli/estimate/estimate_training.h"

namespace kvcast::cli {
namespace {

constexpr const char* axes = "Axes";

}  // namespace

void TrainingAxes::add_to(Command c) {
  const TrainingAxes none;
  c.add("--train", train, "a step of training at each point, as kvcast estimate --train");
  c.add("--seq-len RANGE", seq_len, "with --train: tokens of a sequence [2048]").group(axes);
  c.add("--recompute LIST", recompute, "with --train: none, selective, full").group(axes);
  c.add("--zero LIST", zero, "with --train: stages 0 to 3").group(axes);
  c.add("--virtual-stages RANGE", virtual_stages,
        "with --train and --pp: parts of the layers that each stage has")
      .group(axes);
  c.add("--dropout P", dropout, "with --train: as kvcast estimate");
  c.add("--gradient-dtype DTYPE", gradient_dtype,
        "with --train: default: the engine's, else that of the weights");
  c.add("--state-dtype DTYPE", state_dtype, "with --train: of the optimizer's states");
}

void TrainingAxes::set_sizes(reports::SweepSpec& spec) const {
  const TrainingAxes none;
  if (!train) {
    for (const auto& [flag, given] : {std::pair{"--seq-len", !seq_len.empty()},
                                      {"--recompute", recompute != none.recompute},
                                      {"--zero", zero != none.zero},
                                      {"--dropout", dropout != none.dropout},
                                      {"--virtual-stages", virtual_stages != none.virtual_stages},
                                      {"--gradient-dtype", !gradient_dtype.empty()},
                                      {"--state-dtype", state_dtype != none.state_dtype}}) {
      if (given) throw Error(flag, "a sweep of requests", "--train");
    }
    return;
  }
  if (!spec.prompt_len.empty() || !spec.output_len.empty()) {
    throw Error(
        "--train: cannot be combined with --prompt-len and --output-len; expected --seq-len");
  }
  spec.prompt_len = seq_len.empty() ? std::vector<std::uint64_t>{default_seq_len}
                                    : reports::parse_numbers(seq_len, "--seq-len");
}

reports::TrainingSweep TrainingAxes::over(const reports::SweepGrid& grid) const {
  reports::TrainingSweep sweep{
      grid, {}, {}, reports::parse_numbers(virtual_stages, "--virtual-stages")};
  for (const std::string& word : reports::parse_words(recompute, "--recompute")) {
    sweep.recompute.push_back(parse_flag("--recompute", word, parse_recompute));
  }
  for (const std::string& word : reports::parse_words(zero, "--zero")) {
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
