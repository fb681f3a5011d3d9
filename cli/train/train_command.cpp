#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/frame/interrupt_guard.h"
#include "cli/frame/mpirun_environment.h"
#include "cli/frame/progress_bar.h"
#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "cli/run/run_job.h"
#include "cli/run/run_profile.h"
#include "cli/train/training_job.h"
#include "cli/train/training_log.h"
#include "model/base/order_statistics.h"
#include "model/base/quantity.h"
#include "model/base/stopwatch.h"
#include "model/io/files/file_fingerprint.h"

namespace kvcast::cli {
namespace {

namespace fs = std::filesystem;
using train::StepReport;

constexpr const char* of_text = "Text";
constexpr const char* of_optimizer = "Optimizer";
constexpr const char* of_kvp = "KV Prediction";
constexpr const char* of_run = "Run";

ordered_json parts_json(const train::Trainer& trainer, const train::Loss& loss) {
  ordered_json parts;
  for (std::size_t i = 0; i < loss.parts.size(); ++i) {
    parts[trainer.loss_parts()[i]] = loss.parts[i];
  }
  return parts;
}

/// What became of a training.
void print_training(const TrainOptions& o, const TrainingJob& job, const StepReport& last,
                    const std::optional<train::Loss>& validation, double step_s) {
  const train::Trainer& trainer = *job.trainer;
  const double tokens_per_s = static_cast<double>(job.settings.batch * job.seq_len) / step_s;
  ordered_json j{{"model", trainer.trained().architecture().name},
                 {"method", job.method},
                 {"parameters", trainer.recording().parameters},
                 {"tokens", job.windows->tokens()},
                 {"steps", last.step},
                 {"loss", last.loss.sum},
                 {"validation_loss", nullptr},
                 {"gradient_norm", last.gradient_norm},
                 {"tokens_per_s", tokens_per_s},
                 {"step_s", step_s},
                 {"output", o.output}};
  if (validation) j["validation_loss"] = validation->sum;
  if (!trainer.loss_parts().empty()) {
    j["loss_parts"] = parts_json(trainer, last.loss);
    if (validation) j["validation_loss_parts"] = parts_json(trainer, *validation);
  }
  std::string text = fmt::format(
      "{} steps, loss {:.4f}{}, {} a step, {:.0f} tokens a second\n", last.step, last.loss.sum,
      validation ? fmt::format(", validation loss {:.4f}", validation->sum) : std::string(),
      format_quantity(step_s, Dimension::Seconds), tokens_per_s);
  if (o.count) {
    const train::CountedSteps& work = trainer.counted();
    j["analytic_flops"] = work.analytic_flops;
    j["analytic_bytes"] = work.analytic_bytes;
    j["counted_flops"] = work.counted.flops;
    j["counted_bytes"] = work.counted.bytes();
    text += count_text(work.analytic_flops, work.analytic_bytes, work.counted);
  }
  print_result(o.json, j, text);
}

/// Throws Error when a pass needs more than the machine has.
void check_memory(const TrainingJob& job) {
  const TrainingRecording& r = job.trainer->recording();
  const std::uint64_t together = job.settings.batch / job.settings.micro_batches;
  const ActivationBytes activations =
      activation_bytes(r.first, r.symbols.resolve({together, job.seq_len, 0}));
  check_machine_memory(
      fmt::format("--batch: {} sequences of {} tokens in a pass", together, job.seq_len),
      static_cast<double>(job.trainer->store_bytes()) + static_cast<double>(activations.peak),
      Fault::Request, ", or more --micro-batches");
}

/// Trains until all steps are done, or until the user stops it.
void run_steps(const TrainOptions& o, const Globals& globals, TrainingJob& job, RunRanks* ranks) {
  train::Trainer& trainer = *job.trainer;
  const std::uint64_t steps = job.settings.rate.steps;
  const std::uint64_t first = trainer.steps_done();
  const bool speaks = ranks == nullptr || ranks->speaks();
  // What fails on one rank ends all.
  const auto guarded = [&](const auto& work) { ranks != nullptr ? ranks->work(work) : work(); };
  TrainingLog log(o.output, first, trainer.loss_parts());
  globals.say(
      fmt::format("{} tokens, {} windows of {}; {} parameters, {} in memory", job.windows->tokens(),
                  job.windows->size(), job.seq_len, trainer.recording().trained_parameters,
                  format_quantity(static_cast<double>(trainer.store_bytes()), Dimension::Bytes)));
  InterruptGuard guard;
  ProgressBar bar(globals.quiet);
  const Stopwatch watch;
  const auto save = [&] {
    const fs::path folder = fs::path(o.output) / checkpoint_name(trainer.steps_done());
    if (!speaks || fs::exists(folder)) return;
    trainer.save(folder, job.form.config, job.form.tokenizer, {{"settings", job.common}});
    log.write();
  };
  trainer.stop_when([] { return InterruptGuard::interrupted.load(); });
  std::optional<train::Loss> validation;
  std::optional<StepReport> last;
  std::vector<double> step_s;
  bool interrupted = false;
  try {
    if (job.validation && first == 0) {
      guarded([&] { log.start(trainer.loss_of(*job.validation)); });
    }
    while (trainer.steps_done() < steps) {
      const Stopwatch of_step;
      const auto step = [&] {
        last = trainer.step(*job.windows);
        return std::string();
      };
      // An error of a step is one of all ranks.
      if (ranks == nullptr) {
        step();
      } else if (!ranks->prepare(step)) {
        return;
      }
      const double seconds = of_step.seconds();
      step_s.push_back(seconds);
      guarded([&] {
        validation.reset();
        const double tokens_per_s = static_cast<double>(job.settings.batch * job.seq_len) / seconds;
        const bool ends = last->step == steps;
        try {
          if (job.validation && (ends || last->step % job.validate_every == 0)) {
            validation = trainer.loss_of(*job.validation);
          }
        } catch (const Interrupted&) {
          log.add(*last, tokens_per_s, {});
          throw;
        }
        log.add(*last, tokens_per_s, validation);
        bar.draw(
            last->step, first, steps, watch.seconds(),
            fmt::format("loss {:.4f}  {} tokens/s", last->loss.sum, format_count(tokens_per_s)));
        if (ends || last->step % job.save_every == 0) save();
      });
    }
  } catch (const Interrupted&) {
    interrupted = true;
    guarded([&] {
      if (trainer.steps_done() > first) save();
    });
  }
  const auto draw = [&] {
    if (!o.plot.empty() && last) log.draw(o.plot, trainer.trained().architecture().name);
  };
  if (interrupted) {
    if (speaks) draw();
    const std::uint64_t done = trainer.steps_done();
    globals.say(done == 0       ? "stopped before the first step"
                : done == steps ? "stopped after the last step, without its validation loss"
                                : fmt::format("stopped after step {}; --resume goes on", done));
    if (ranks == nullptr) throw Interrupted{};
    return;
  }
  if (!speaks) return;
  guarded([&] {
    draw();
    // The first step pays for fresh memory.
    print_training(o, job, *last, validation, median(std::move(step_s)));
  });
}

void run(const TrainOptions& o, const Globals& globals) {
  std::unique_ptr<TrainingJob> job;
  // Each rank of an mpirun has a replica of the model.
  const Parallelism plan{.dp = static_cast<std::uint64_t>(ranks_of_mpirun())};
  const std::unique_ptr<RunRanks> ranks = RunRanks::start({}, plan, o.wait_limit_s);
  const auto prepare = [&](const Globals& own) {
    job = prepare_training(o, own, ranks.get());
    if (ranks == nullptr) check_memory(*job);
    std::error_code ec;
    fs::create_directories(o.output, ec);
    if (ec) throw Error("--output: " + o.output + ": " + ec.message());
    return job->common.dump() +
           (job->before ? job->before->string() + file_fingerprint(*job->before) : "");
  };
  if (ranks == nullptr) {
    prepare(globals);
    return run_steps(o, globals, *job, nullptr);
  }
  Globals own = globals;
  own.quiet = globals.quiet || !ranks->speaks();
  if (!ranks->prepare([&] { return prepare(own); })) return;
  run_steps(o, own, *job, ranks.get());
}

}  // namespace

void add_train(Command app, const Globals& globals) {
  Command c = app.add_subcommand(
      "train",
      "Train a model on this machine: next-token prediction, AdamW, fp32.\n\n"
      "Examples:\n"
      "  kvcast train --model smollm2-135m --random-weights 1 --tokenizer bytes --text a.txt "
      "--output out --steps 100\n"
      "  kvcast convert mlkv weights/pythia-160m pythia-mlkv --kv-layers 6 --kv-heads 1 && kvcast "
      "train --model "
      "pythia-mlkv --text a.txt --output out\n"
      "  kvcast train --model weights/smollm2-135m-instruct.gguf --method kvp:auxiliary=lp-0.50 "
      "--text a.txt --output out");
  const auto o = std::make_shared<TrainOptions>();
  c.add("--model,-m MODEL", o->model, "a checkpoint folder or a GGUF file; see --random-weights")
      .required();
  c.add("--random-weights SEED", o->random_weights,
        "random weights from this seed; MODEL is then a catalog name or a config.json");
  c.add("--set", o->set);
  c.add("--method", o->method);
  c.add("--semantics", o->semantics);
  c.add("--text FILE", o->text, "UTF-8 text to train on").required().group(of_text);
  c.add("--validation-text FILE", o->validation_text,
        "text for the validation loss, before the first step and as --validate-every says")
      .group(of_text);
  c.add("--tokenizer FOLDER|FILE.gguf|bytes", o->tokenizer, "default: the model's").group(of_text);
  c.add("--seq-len TOKENS", o->seq_len, "tokens of a sequence").group(of_text);
  c.add("--seed N", o->seed, "of the order in which sequences are read").group(of_text);
  c.add("--steps N", o->steps, "of the optimizer").group(of_optimizer);
  c.add("--batch,-b N", o->batch, "sequences of a step").group(of_optimizer);
  c.add("--micro-batches N", o->micro_batches, "passes of a step").group(of_optimizer);
  c.add("--learning-rate LR", o->learning_rate, "at its peak").group(of_optimizer);
  c.add("--last-learning-rate LR", o->last_learning_rate,
        "where the cosine ends [a tenth of the peak]")
      .group(of_optimizer);
  c.add("--warmup STEPS", o->warmup, "steps up to the peak [a tenth of all]").group(of_optimizer);
  c.add("--weight-decay W", o->weight_decay, "of matrices").group(of_optimizer);
  c.add("--clip NORM", o->clip, "of the gradient at most; 0: any").group(of_optimizer);
  c.add("--z-loss W", o->z_loss, "weight of the squared logarithm of the logits' sum")
      .group(of_optimizer);
  c.add("--base-weight W", o->base_weight,
        "weight of the base's loss with predicted keys and values")
      .group(of_kvp);
  c.add("--auxiliary-weight W", o->auxiliary_weight, "weight of the auxiliary's own loss")
      .group(of_kvp);
  c.add("--consistency-weight W", o->consistency_weight,
        "weight of the difference between predicted and true keys and values, summed over layers "
        "[1 over the layers]")
      .group(of_kvp);
  c.add("--recompute WHAT", o->recompute, "on the way back: none, selective or full").group(of_run);
  c.add("--loss-chunks N", o->loss_chunks,
        "parts of each sequence whose logits and loss are computed one by one, there and back")
      .group(of_run);
  c.add("--output,-o FOLDER", o->output, "for checkpoints and metrics.csv")
      .required()
      .group(of_run);
  c.add("--resume", o->resume, "go on from the last checkpoint").group(of_run);
  c.add("--save-every STEPS", o->save_every, "write a checkpoint [at the end]").group(of_run);
  c.add("--validate-every STEPS", o->validate_every, "losses of --validation-text [at the end]")
      .group(of_run);
  c.add("--count", o->count, "count every FLOP and byte with plain loops (slow)");
  c.add("--plot", o->plot, "draw the losses");
  c.add("--wait-limit SECONDS", o->wait_limit_s, "with mpirun: how long a rank waits for another")
      .positive()
      .group(of_run);
  c.need({"--validate-every"}, {"--validation-text"});
  c.need({"--base-weight", "--auxiliary-weight", "--consistency-weight"}, {"--method"});
  c.add("--threads", o->threads).range(0, 1024);
  c.add("--json", o->json);
  c.callback([o, &globals] { run(*o, globals); });
}

}  // namespace kvcast::cli
