#include "cli/train/training_job.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "cli/run/pair_text.h"
#include "cli/run/run_inputs.h"
#include "cli/run/run_job.h"
#include "cli/train/training_log.h"
#include "model/base/json_file.h"
#include "model/base/quantity.h"
#include "model/convert/conversion_source.h"
#include "model/convert/mlkv_conversion.h"
#include "model/convert/prune_conversion.h"
#include "model/execute/generate.h"
#include "model/execute/machine_probe.h"
#include "model/io/files/file_fingerprint.h"
#include "model/io/files/number_text.h"
#include "model/record/recording.h"

namespace kvcast::cli {
namespace {

namespace fs = std::filesystem;
using train::TextEncoder;
using train::TokenWindows;
using train::Trainer;
using train::TrainSettings;

bool is_gguf(const fs::path& file) { return file.extension() == ".gguf"; }

double parse_share(const std::string& text, const char* flag) {
  return parse_flag(flag, text, [&](const std::string& t) {
    double value = 0;
    using Fp32 = std::numeric_limits<float>;
    if (!parse_number(t, value) || !(value >= 0) || value > Fp32::max()) {
      throw Error("got '" + t +
                  "', expected a finite number of at least 0, and at most fp32's largest");
    }
    if (value > 0 && value < Fp32::min()) {
      throw Error("got '" + t + "', which is below fp32's smallest, expected a larger number");
    }
    return value;
  });
}

TrainSettings parse_settings(const TrainOptions& o, std::uint64_t ranks) {
  TrainSettings s;
  s.batch = parse_token_count(o.batch, "--batch");
  s.micro_batches = parse_token_count(o.micro_batches, "--micro-batches");
  if (s.batch < ranks) {
    throw Error("--batch", o.batch, fmt::format("at least a sequence for each of {} ranks", ranks));
  }
  if (s.micro_batches > s.batch / ranks) {
    throw Error("--micro-batches", o.micro_batches,
                "at most the batch of " + std::to_string(s.batch / ranks) +
                    (ranks > 1 ? " that each rank has" : ""));
  }
  s.rate.steps = parse_token_count(o.steps, "--steps");
  s.rate.peak = parse_share(o.learning_rate, "--learning-rate");
  if (s.rate.peak == 0) throw Error("--learning-rate", "0", "a number above 0");
  s.rate.last = o.last_learning_rate.empty()
                    ? s.rate.peak / 10
                    : parse_share(o.last_learning_rate, "--last-learning-rate");
  if (s.rate.last > s.rate.peak) {
    throw Error("--last-learning-rate", o.last_learning_rate,
                "at most the peak's " + o.learning_rate);
  }
  if (o.warmup != "0") {
    s.rate.warmup_steps =
        o.warmup.empty() ? s.rate.steps / 10 : parse_token_count(o.warmup, "--warmup");
  }
  if (s.rate.warmup_steps > s.rate.steps) {
    throw Error("--warmup", o.warmup, "at most the " + o.steps + " steps");
  }
  s.weight_decay = parse_share(o.weight_decay, "--weight-decay");
  s.clip = parse_share(o.clip, "--clip");
  s.z_loss = parse_share(o.z_loss, "--z-loss");
  s.base_loss = parse_share(o.base_weight, "--base-weight");
  s.auxiliary_loss = parse_share(o.auxiliary_weight, "--auxiliary-weight");
  if (!o.consistency_weight.empty()) {
    s.consistency_loss = parse_share(o.consistency_weight, "--consistency-weight");
  }
  s.recompute = parse_flag("--recompute", o.recompute, parse_recompute);
  s.loss_chunks = parse_token_count(o.loss_chunks, "--loss-chunks");
  s.count = o.count;
  if (s.count && ranks > 1) {
    throw Error("--count", fmt::format("{} ranks, each with a part of the work", ranks),
                "one process");
  }
  s.seed = parse_token_count(o.seed, "--seed");
  return s;
}

bool has_kvp(const std::vector<MethodSpec>& methods) {
  return std::any_of(methods.begin(), methods.end(),
                     [](const MethodSpec& m) { return m.name == "kvp"; });
}

constexpr const char* tokens_key = "tokens";
constexpr const char* base_config_key = "base_config";
constexpr const char* base_model_key = "base_model";

/// What a resumed training must have in common with its beginning.
ordered_json settings_json(const TrainOptions& o, const TrainSettings& s, std::uint64_t seq_len) {
  return {{"model", o.model},
          {"random_weights", o.random_weights},
          {"set", o.set},
          {"method", to_string(parse_methods(o.method))},
          {"semantics", o.semantics},
          {"text", o.text},
          {"tokenizer", o.tokenizer},
          {"seq_len", seq_len},
          {"seed", s.seed},
          {"steps", s.rate.steps},
          {"batch", s.batch},
          {"micro_batches", s.micro_batches},
          {"loss_chunks", s.loss_chunks},
          {"learning_rate", s.rate.peak},
          {"last_learning_rate", s.rate.last},
          {"warmup", s.rate.warmup_steps},
          {"weight_decay", s.weight_decay},
          {"clip", s.clip},
          {"z_loss", s.z_loss},
          {"base_weight", s.base_loss},
          {"auxiliary_weight", s.auxiliary_loss},
          {"consistency_weight",
           s.consistency_loss ? ordered_json(*s.consistency_loss) : ordered_json(nullptr)}};
}

/// The last complete checkpoint in the output folder.
std::optional<fs::path> last_checkpoint(const fs::path& output) {
  std::optional<fs::path> last;
  std::uint64_t most = 0;
  std::error_code ec;
  for (const fs::directory_entry& entry : fs::directory_iterator(output, ec)) {
    const std::string name = entry.path().filename().string();
    const bool is_one = name.starts_with(checkpoint_prefix) &&
                        name.find_first_not_of("0123456789", checkpoint_prefix.size()) == name.npos;
    if (!is_one) continue;
    if (!fs::exists(entry.path() / "training.json")) {
      throw Error(entry.path().string(), "no training.json in it",
                  "a checkpoint of kvcast train, or another --output");
    }
    const std::uint64_t steps = train::read_progress(entry.path()).at("steps").get<std::uint64_t>();
    if (name != checkpoint_name(steps)) {
      throw Error(entry.path().string(), fmt::format("{} steps in its training.json", steps),
                  "as many as its name says");
    }
    if (last && steps <= most) continue;
    last = entry.path();
    most = steps;
  }
  return last;
}

/// The base model's config.json, or what a GGUF file says instead.
nlohmann::json base_config(const TrainOptions& o, const Checkpoint& base, const Globals& globals) {
  if (!base.is_random()) return source_config(base, DType::FP32);
  nlohmann::json config = read_json_file(globals.catalog().find("models", "model", o.model));
  config.erase("_kvcast");
  return config;
}

void check_same_settings(const TrainOptions& o, const fs::path& folder, const ordered_json& own) {
  const nlohmann::json progress = train::read_progress(folder);
  JsonObject(progress, (folder / "training.json").string()).object("settings");
  const nlohmann::json& before = progress["settings"];
  const auto fail = [&](const std::string& with) {
    throw Error("--resume: " + folder.string() + " was trained with " + with);
  };
  const auto check = [&](const auto& keys, const nlohmann::json& then, const nlohmann::json& now,
                         const std::string& expected) {
    for (const auto& [key, any] : keys.items()) {
      const nlohmann::json of_then = then.value(key, nlohmann::json());
      const nlohmann::json of_now = now.value(key, nlohmann::json());
      if (of_then == of_now && (then.contains(key) || !now.contains(key))) continue;
      // Of these only sums of their bytes are kept.
      if (key == base_model_key) fail("other weights of " + o.model + "; expected the same");
      if (key == tokens_key) fail("other tokens, from --text or the tokenizer; expected the same");
      fail(fmt::format("{} {}, not {}; expected {}", key, of_then.dump(), of_now.dump(), expected));
    }
  };
  const auto config = before.find(base_config_key);
  if (config != before.end() && config->is_object()) {
    nlohmann::json fields = own[base_config_key];
    fields.update(*config);
    check(fields, *config, own[base_config_key], "the same " + o.model);
  }
  ordered_json others = own;
  others.erase(base_config_key);
  check(others, before, others, "the same settings");
}

SavedForm saved_form(const TrainOptions& o, const Checkpoint& base, const Trainer& trainer,
                     const Globals& globals) {
  SavedForm form;
  const Checkpoint& trained = trainer.trained();
  const auto& helpers = trainer.recording().helper_models;
  if (!helpers.empty() && helpers.front().weights == HelperWeights::BaseLayers) {
    form.config = pruned_config(base, trained.architecture(), DType::FP32);
  } else if (!trained.is_random()) {
    form.config = source_config(trained, DType::FP32);
  } else {
    nlohmann::json config = base_config(o, trained, globals);
    nlohmann::json& of_text = config.contains("text_config") ? config["text_config"] : config;
    for (const ConfigOverride& change : parse_overrides(o.set)) {
      const nlohmann::json value = nlohmann::json::parse(change.value, nullptr, false);
      of_text[change.key] = value.is_discarded() ? nlohmann::json(change.value) : value;
    }
    form.config = config_of(std::move(config), trained.architecture(), DType::FP32);
    const std::vector<MethodSpec> methods = parse_methods(o.method);
    if (std::ranges::count(methods, "mlkv", &MethodSpec::name) > 0) {
      add_mlkv_keys(base.architecture(), trainer.recording().model, form.config);
    }
  }
  if (!trained.is_random() && trained.gguf() == nullptr) form.tokenizer = trained.path();
  if (!o.tokenizer.empty() && o.tokenizer != "bytes" && !is_gguf(o.tokenizer)) {
    form.tokenizer = o.tokenizer;
  }
  return form;
}

TextEncoder parse_encoder(const TrainOptions& o, const Checkpoint& checkpoint) {
  if (o.tokenizer == "bytes") return TextEncoder::bytes();
  if (is_gguf(o.tokenizer)) {
    FoundTokenizer found = find_tokenizer(Checkpoint(o.tokenizer));
    if (!found) throw Error("--tokenizer", found.missing, "a file with one");
    return TextEncoder(*found);
  }
  if (!o.tokenizer.empty()) return TextEncoder(text::Tokenizer::from_folder(o.tokenizer));
  if (checkpoint.is_random()) {
    throw Error("--tokenizer", "none, and random weights have no tokenizer",
                "a folder or GGUF file with one, or 'bytes'");
  }
  FoundTokenizer found = find_tokenizer(checkpoint);
  if (!found)
    throw Error("--tokenizer", found.missing, "a folder or GGUF file with one, or 'bytes'");
  return TextEncoder(*found);
}

/// Throws Error for texts that a model has no embeddings or no positions for.
void check_reads(const Architecture& a, train::TokenId largest, std::uint64_t seq_len,
                 const char* flag) {
  if (largest >= a.vocab_size) {
    throw Error(flag, "token id " + std::to_string(largest),
                fmt::format("ids below the vocabulary of {}, {}", a.name, a.vocab_size));
  }
  execute::check_positions(a.decoder, seq_len, "--seq-len");
}

TokenWindows read_windows(const std::vector<std::string>& files, const char* flag,
                          const TextEncoder& encoder, std::uint64_t seq_len, std::uint64_t seed,
                          const Architecture& a) {
  std::vector<train::TokenId> tokens =
      encoder.encode(std::vector<fs::path>(files.begin(), files.end()));
  const auto largest = std::max_element(tokens.begin(), tokens.end());
  if (largest != tokens.end()) check_reads(a, *largest, seq_len, flag);
  return parse_flag(
      flag, "", [&](const std::string&) { return TokenWindows(std::move(tokens), seq_len, seed); });
}

/// Plain, MLKV or KV Prediction; of the last one, where it goes on, what has been trained.
std::vector<MethodSpec> parse_training(const TrainOptions& o, const Checkpoint& base,
                                       const std::optional<fs::path>& before) {
  std::vector<MethodSpec> methods = parse_methods(o.method);
  apply_semantics(o.semantics, base.architecture(), methods);
  for (MethodSpec& method : methods) {
    if (method.name == "plain" || method.name == "mlkv") continue;
    if (method.name != "kvp") throw Error("--method", method.name, "plain, mlkv or kvp");
    if (base.is_random()) {
      throw Error("--random-weights", "method kvp, whose base model is not trained",
                  "the checkpoint of a base model");
    }
    if (!before) continue;
    // Absolute, so that a folder named lp-0.50 is not read as the pruned base model.
    const fs::path folder = fs::absolute(*before);
    std::erase_if(method.options, [](const auto& option) {
      return option.first == "auxiliary" || option.first == "predictor";
    });
    method.options.emplace_back("auxiliary", folder.string());
    method.options.emplace_back("predictor", (folder / train::predictor_folder).string());
  }
  if (!has_kvp(methods)) {
    const TrainOptions usual;
    const auto refuse = [&](const char* flag, const std::string& given, const std::string& value) {
      if (given != value) {
        throw Error(fmt::format("{} {}", flag, given), "method " + to_string(methods),
                    "kvp, whose losses it weighs");
      }
    };
    refuse("--base-weight", o.base_weight, usual.base_weight);
    refuse("--auxiliary-weight", o.auxiliary_weight, usual.auxiliary_weight);
    refuse("--consistency-weight", o.consistency_weight, usual.consistency_weight);
  }
  return methods;
}

/// Throws Error when a model that is trained beside the base reads the texts in other tokens.
void check_auxiliary(const TrainOptions& o, const TrainingJob& job, const TextEncoder& encoder) {
  const Checkpoint& auxiliary = job.trainer->trained();
  if (&auxiliary == &job.base) return;
  const auto check = [&](const TokenWindows& windows, const char* flag) {
    check_reads(auxiliary.architecture(), windows.largest(), windows.seq_len(), flag);
  };
  check(*job.windows, "--text");
  if (job.validation) check(*job.validation, "--validation-text");
  if (o.tokenizer == "bytes") return;
  const FoundTokenizer own = find_tokenizer(auxiliary);
  if (!own || auxiliary.path() == job.base.path()) return;
  check_pair_tokenizers(job.base, auxiliary);
  const std::vector<fs::path> files(o.text.begin(), o.text.end());
  if (TextEncoder(*own).encode(files) == encoder.encode(files)) return;
  throw Error("--text",
              "a text that " + auxiliary.architecture().name + " reads as other tokens than " +
                  job.base.architecture().name,
              "models with the same tokenizer");
}

/// Throws Error where metrics.csv would replace a file that no training wrote, or the plot's data
/// would replace metrics.csv.
void check_metrics(const TrainOptions& o, bool goes_on) {
  const fs::path metrics = fs::path(o.output) / metrics_file;
  if (!goes_on && fs::exists(metrics)) {
    throw Error(metrics.string(), "a file without checkpoints beside it", "a new folder");
  }
  const auto place = [](const fs::path& p) { return fs::absolute(p).lexically_normal(); };
  if (!o.plot.empty() && place(fs::path(o.plot).replace_extension(".csv")) == place(metrics)) {
    throw Error("--plot", o.plot + ", whose data is the training's metrics.csv", "another name");
  }
}

}  // namespace

std::unique_ptr<TrainingJob> prepare_training(const TrainOptions& o, const Globals& globals,
                                              RunRanks* ranks) {
  const TrainSettings settings =
      parse_settings(o, ranks != nullptr ? ranks->messenger().ranks() : 1);
  const std::uint64_t steps = settings.rate.steps;
  const std::uint64_t seq_len = parse_token_count(o.seq_len, "--seq-len");
  check_loss_chunks(settings.loss_chunks, seq_len);
  const std::uint64_t save_every =
      o.save_every.empty() ? steps : parse_token_count(o.save_every, "--save-every");
  const std::uint64_t validate_every =
      o.validate_every.empty() ? steps : parse_token_count(o.validate_every, "--validate-every");
  const std::optional<fs::path> before = last_checkpoint(o.output);
  if (before && !o.resume) {
    throw Error(o.output, "a folder with checkpoints", "a new folder, or --resume");
  }
  check_metrics(o, before.has_value());
  if (o.resume && !before) {
    throw Error("--resume", "no checkpoint in " + o.output, "the folder of a training");
  }
  execute::use_threads(rank_threads(o.threads, ranks));

  if (o.random_weights.empty() && !o.set.empty()) {
    throw Error("--set", o.set.front() + " of a checkpoint", "--random-weights");
  }
  Checkpoint start =
      o.random_weights.empty()
          ? Checkpoint(o.model)
          : Checkpoint(load_model(globals.catalog(), o.model, parse_overrides(o.set)),
                       parse_token_count(o.random_weights, "--random-weights"));
  const TextEncoder encoder = parse_encoder(o, start);
  const std::vector<MethodSpec> methods = parse_training(o, start, before);
  const Architecture& a = start.architecture();
  // The rest is known, and checked, when the weights are there.
  check_machine_memory(a.name + " in fp32", 4 * static_cast<double>(count_parameters(a)));
  TokenWindows windows = read_windows(o.text, "--text", encoder, seq_len, settings.seed, a);
  ordered_json common = settings_json(o, settings, seq_len);
  common[tokens_key] = windows.fingerprint();
  common[base_config_key] = base_config(o, start, globals);
  // Its name may stand for another one by now.
  common[base_model_key] = file_fingerprint(
      start.is_random() ? globals.catalog().find("models", "model", o.model) : start.path());
  if (before) check_same_settings(o, *before, common);
  std::optional<TokenWindows> validation;
  if (!o.validation_text.empty()) {
    validation =
        read_windows(o.validation_text, "--validation-text", encoder, seq_len, settings.seed, a);
  }
  auto job = std::make_unique<TrainingJob>(
      TrainingJob{before && !has_kvp(methods) ? Checkpoint(*before) : std::move(start),
                  settings,
                  seq_len,
                  save_every,
                  validate_every,
                  before,
                  std::move(common),
                  to_string(methods),
                  std::move(windows),
                  std::move(validation),
                  nullptr,
                  {}});
  job->trainer = std::make_unique<Trainer>(job->base, methods, settings,
                                           ranks != nullptr ? &ranks->messenger() : nullptr);
  check_auxiliary(o, *job, encoder);
  if (before) job->trainer->restore(*before);
  if (job->trainer->steps_done() >= steps) {
    throw Error("--resume", fmt::format("a training whose {} steps are done", steps),
                "one that was stopped before its last step");
  }
  job->form = saved_form(o, job->base, *job->trainer, globals);
  return job;
}

}  // namespace kvcast::cli
