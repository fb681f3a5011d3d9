#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/frame/interrupt_guard.h"
#include "cli/frame/progress_bar.h"
#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "cli/run/run_inputs.h"
#include "cli/train/training_log.h"
#include "model/base/json_file.h"
#include "model/base/quantity.h"
#include "model/base/stopwatch.h"
#include "model/convert/conversion_source.h"
#include "model/execute/machine_probe.h"
#include "model/io/files/number_text.h"
#include "model/train/trainer.h"

namespace kvcast::cli {
namespace {

namespace fs = std::filesystem;
using train::StepReport;
using train::TextEncoder;
using train::TokenWindows;
using train::Trainer;
using train::TrainSettings;

constexpr const char* of_text = "Text";
constexpr const char* of_optimizer = "Optimizer";
constexpr const char* of_run = "Run";

struct Options {
  std::string model;
  std::string random_weights;  ///< a seed
  std::vector<std::string> set;
  std::string method = "plain";
  std::string semantics;
  std::vector<std::string> text;
  std::vector<std::string> validation_text;
  std::string tokenizer;  ///< empty: the model's
  std::string seq_len = "512";
  std::string seed = "1";
  std::string steps = "100";
  std::string batch = "8";
  std::string micro_batches = "1";
  std::string learning_rate = "3e-4";
  std::string last_learning_rate;  ///< empty: a tenth
  std::string warmup;              ///< empty: a tenth of the steps
  std::string weight_decay = "0.1";
  std::string clip = "1";
  std::string z_loss = "0";
  std::string recompute = "none";
  std::string output;
  std::string save_every;      ///< empty: at the end
  std::string validate_every;  ///< empty: at the end
  std::string plot;
  bool resume = false;
  int threads = 0;
  bool json = false;
};

double parse_share(const std::string& text, const char* flag) {
  return parse_flag(flag, text, [&](const std::string& t) {
    double value = 0;
    if (!parse_number(t, value) || !(value >= 0)) {
      throw Error("got '" + t + "', expected a number of at least 0");
    }
    return value;
  });
}

TrainSettings parse_settings(const Options& o) {
  TrainSettings s;
  s.batch = parse_token_count(o.batch, "--batch");
  s.micro_batches = parse_token_count(o.micro_batches, "--micro-batches");
  if (s.micro_batches > s.batch) {
    throw Error("--micro-batches", o.micro_batches, "at most the batch of " + o.batch);
  }
  s.rate.steps = parse_token_count(o.steps, "--steps");
  s.rate.peak = parse_share(o.learning_rate, "--learning-rate");
  if (s.rate.peak == 0) throw Error("--learning-rate", "0", "a number above 0");
  s.rate.last = o.last_learning_rate.empty()
                    ? s.rate.peak / 10
                    : parse_share(o.last_learning_rate, "--last-learning-rate");
  s.rate.warmup_steps = o.warmup.empty()
                            ? s.rate.steps / 10
                            : static_cast<std::uint64_t>(parse_share(o.warmup, "--warmup"));
  if (s.rate.warmup_steps > s.rate.steps) {
    throw Error("--warmup", o.warmup, "at most the " + o.steps + " steps");
  }
  s.weight_decay = parse_share(o.weight_decay, "--weight-decay");
  s.clip = parse_share(o.clip, "--clip");
  s.z_loss = parse_share(o.z_loss, "--z-loss");
  s.recompute = parse_flag("--recompute", o.recompute, parse_recompute);
  return s;
}

/// What a resumed training must have in common with its beginning.
ordered_json settings_json(const Options& o) {
  return {{"model", o.model},
          {"method", o.method},
          {"semantics", o.semantics},
          {"text", o.text},
          {"tokenizer", o.tokenizer},
          {"seq_len", o.seq_len},
          {"seed", o.seed},
          {"steps", o.steps},
          {"batch", o.batch},
          {"micro_batches", o.micro_batches},
          {"learning_rate", o.learning_rate},
          {"last_learning_rate", o.last_learning_rate},
          {"warmup", o.warmup},
          {"weight_decay", o.weight_decay},
          {"clip", o.clip},
          {"z_loss", o.z_loss}};
}

/// The last complete checkpoint in the output folder.
std::optional<fs::path> last_checkpoint(const fs::path& output) {
  std::optional<fs::path> last;
  std::uint64_t most = 0;
  std::error_code ec;
  for (const fs::directory_entry& entry : fs::directory_iterator(output, ec)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(checkpoint_prefix) || !fs::exists(entry.path() / "training.json"))
      continue;
    const std::uint64_t steps = train::read_progress(entry.path()).at("steps").get<std::uint64_t>();
    if (last && steps <= most) continue;
    last = entry.path();
    most = steps;
  }
  return last;
}

void check_same_settings(const fs::path& folder, const ordered_json& own) {
  const nlohmann::json before = train::read_progress(folder).at("settings");
  for (const auto& [key, value] : own.items()) {
    if (before.contains(key) && before[key] == value) continue;
    throw Error("--resume: " + folder.string() + " was trained with " + key + " " +
                before.value(key, nlohmann::json()).dump() + ", not " + value.dump() +
                "; expected the same settings");
  }
}

/// What writes checkpoints that any other tool reads.
struct SavedForm {
  nlohmann::json config;
  fs::path tokenizer;  ///< a folder; empty: none
};

SavedForm saved_form(const Options& o, const Checkpoint& checkpoint, const Globals& globals) {
  SavedForm form;
  if (!checkpoint.is_random()) {
    form.config = source_config(checkpoint, DType::FP32);
    if (checkpoint.gguf() == nullptr) form.tokenizer = checkpoint.path();
  } else {
    form.config = read_json_file(globals.catalog().find("models", "model", o.model));
    form.config.erase("_kvcast");
    for (const ConfigOverride& change : parse_overrides(o.set)) {
      const nlohmann::json value = nlohmann::json::parse(change.value, nullptr, false);
      form.config[change.key] = value.is_discarded() ? nlohmann::json(change.value) : value;
    }
    form.config["torch_dtype"] = "float32";
  }
  if (!o.tokenizer.empty() && o.tokenizer != "bytes") form.tokenizer = o.tokenizer;
  return form;
}

TextEncoder parse_encoder(const Options& o, const Checkpoint& checkpoint) {
  if (o.tokenizer == "bytes") return TextEncoder::bytes();
  if (!o.tokenizer.empty()) return TextEncoder(text::Tokenizer::from_folder(o.tokenizer));
  if (checkpoint.is_random()) {
    throw Error("--tokenizer", "none, and random weights have no tokenizer",
                "a folder with one, or 'bytes'");
  }
  FoundTokenizer found = find_tokenizer(checkpoint);
  if (!found) throw Error("--tokenizer", found.missing, "a folder with one, or 'bytes'");
  return TextEncoder(*found);
}

TokenWindows read_windows(const std::vector<std::string>& files, const char* flag,
                          const TextEncoder& encoder, std::uint64_t seq_len, std::uint64_t seed,
                          const Architecture& a) {
  std::vector<train::TokenId> tokens =
      encoder.encode(std::vector<fs::path>(files.begin(), files.end()));
  const auto largest = std::max_element(tokens.begin(), tokens.end());
  if (largest != tokens.end() && *largest >= a.vocab_size) {
    throw Error(flag, "token id " + std::to_string(*largest),
                "ids below the model's vocabulary of " + std::to_string(a.vocab_size));
  }
  return parse_flag(
      flag, "", [&](const std::string&) { return TokenWindows(std::move(tokens), seq_len, seed); });
}

void run(const Options& o, const Globals& globals) {
  const TrainSettings settings = parse_settings(o);
  const std::uint64_t seq_len = parse_token_count(o.seq_len, "--seq-len");
  const std::uint64_t seed = parse_token_count(o.seed, "--seed");
  const std::uint64_t save_every =
      o.save_every.empty() ? settings.rate.steps : parse_token_count(o.save_every, "--save-every");
  const std::uint64_t validate_every =
      o.validate_every.empty() ? settings.rate.steps
                               : parse_token_count(o.validate_every, "--validate-every");
  const fs::path output = o.output;
  const std::optional<fs::path> before = last_checkpoint(output);
  if (before && !o.resume) {
    throw Error(output.string(), "a folder with checkpoints", "a new folder, or --resume");
  }
  if (o.resume && !before) {
    throw Error("--resume", "no checkpoint in " + output.string(), "the folder of a training");
  }
  ordered_json common = settings_json(o);
  execute::use_threads(o.threads);

  const Checkpoint start =
      o.random_weights.empty()
          ? Checkpoint(o.model)
          : Checkpoint(load_model(globals.catalog(), o.model, parse_overrides(o.set)),
                       parse_token_count(o.random_weights, "--random-weights"));
  const SavedForm form = saved_form(o, start, globals);
  const TextEncoder encoder = parse_encoder(o, start);
  const Architecture& a = start.architecture();
  std::vector<MethodSpec> methods = parse_methods(o.method);
  apply_semantics(o.semantics, a, methods);
  for (const MethodSpec& method : methods) {
    if (method.name == "plain" || method.name == "mlkv") continue;
    throw Error("--method", method.name, "plain or mlkv; 'kvcast estimate --train' forecasts kvp");
  }
  TokenWindows windows = read_windows(o.text, "--text", encoder, seq_len, seed, a);
  common["tokens"] = windows.fingerprint();
  if (before) check_same_settings(*before, common);
  std::optional<TokenWindows> validation;
  if (!o.validation_text.empty()) {
    validation = read_windows(o.validation_text, "--validation-text", encoder, seq_len, seed, a);
  }
  std::optional<Checkpoint> resumed;
  if (before) resumed.emplace(*before);
  Trainer trainer(resumed ? *resumed : start, methods, settings);
  TrainingLog log(output, before ? trainer_steps(*before) : 0);
  if (before) trainer.restore(*before);

  globals.say(
      fmt::format("{} tokens, {} windows of {}; {} parameters, {} in memory", windows.tokens(),
                  windows.size(), seq_len, trainer.recording().trained_parameters,
                  format_quantity(static_cast<double>(trainer.store_bytes()), Dimension::Bytes)));
  std::error_code ec;
  fs::create_directories(output, ec);
  if (ec) throw Error("--output: " + output.string() + ": " + ec.message());
  InterruptGuard guard;
  ProgressBar bar(globals.quiet);
  const Stopwatch watch;
  const std::uint64_t first = trainer.steps_done();
  const auto save = [&] {
    const fs::path folder =
        output / fmt::format("{}{:06}", checkpoint_prefix, trainer.steps_done());
    if (fs::exists(folder)) return;
    trainer.save(folder, form.config, form.tokenizer, {{"settings", common}});
    log.write();
  };
  std::optional<double> validation_loss;
  std::optional<StepReport> last;
  double step_s = 0;
  while (trainer.steps_done() < settings.rate.steps && !InterruptGuard::interrupted) {
    const Stopwatch of_step;
    last = trainer.step(windows);
    const double seconds = of_step.seconds();
    step_s += seconds;
    validation_loss.reset();
    const bool ends = last->step == settings.rate.steps;
    if (validation && (ends || last->step % validate_every == 0)) {
      validation_loss = trainer.loss_of(*validation);
    }
    log.add(*last, static_cast<double>(settings.batch * seq_len) / seconds, validation_loss);
    bar.draw(last->step, first, settings.rate.steps, watch.seconds());
    if (ends || last->step % save_every == 0) save();
  }
  if (InterruptGuard::interrupted) {
    save();
    globals.say(fmt::format("stopped after step {}; --resume goes on", trainer.steps_done()));
    std::exit(exit_interrupted);
  }
  if (!o.plot.empty()) log.draw(o.plot, a.name);
  if (!last) throw Error("--resume", "a training that has ended", "more steps to do");
  const double mean_s = step_s / static_cast<double>(trainer.steps_done() - first);
  ordered_json j{{"model", a.name},
                 {"method", to_string(methods)},
                 {"parameters", trainer.recording().parameters},
                 {"tokens", windows.tokens()},
                 {"steps", trainer.steps_done()},
                 {"loss", last->loss},
                 {"validation_loss", nullptr},
                 {"gradient_norm", last->gradient_norm},
                 {"tokens_per_s", static_cast<double>(settings.batch * seq_len) / mean_s},
                 {"step_s", mean_s},
                 {"output", o.output}};
  if (validation_loss) j["validation_loss"] = *validation_loss;
  std::string text = fmt::format(
      "{} steps, loss {:.4f}{}, {} a step, {:.0f} tokens a second\n", trainer.steps_done(),
      last->loss,
      validation_loss ? fmt::format(", validation loss {:.4f}", *validation_loss) : std::string(),
      format_quantity(mean_s, Dimension::Seconds),
      static_cast<double>(settings.batch * seq_len) / mean_s);
  print_result(o.json, j, text);
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
      "pythia-mlkv --text a.txt --output out");
  const auto o = std::make_shared<Options>();
  c.add("--model,-m MODEL", o->model, "a checkpoint folder or a GGUF file; see --random-weights")
      .required();
  c.add("--random-weights SEED", o->random_weights,
        "random weights from this seed; MODEL is then a catalog name or a config.json");
  c.add("--set", o->set);
  c.add("--method", o->method);
  c.add("--semantics", o->semantics);
  c.add("--text FILE", o->text, "UTF-8 text to train on").required().group(of_text);
  c.add("--validation-text FILE", o->validation_text, "text for the validation loss")
      .group(of_text);
  c.add("--tokenizer FOLDER|bytes", o->tokenizer, "default: the model's").group(of_text);
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
  c.add("--recompute WHAT", o->recompute, "on the way back: none, selective or full").group(of_run);
  c.add("--output,-o FOLDER", o->output, "for checkpoints and metrics.csv")
      .required()
      .group(of_run);
  c.add("--resume", o->resume, "go on from the last checkpoint").group(of_run);
  c.add("--save-every STEPS", o->save_every, "write a checkpoint [at the end]").group(of_run);
  c.add("--validate-every STEPS", o->validate_every, "[at the end]").group(of_run);
  c.add("--plot", o->plot, "draw the losses");
  c.add("--threads", o->threads).range(0, 1024);
  c.add("--json", o->json);
  c.callback([o, &globals] { run(*o, globals); });
}

}  // namespace kvcast::cli
