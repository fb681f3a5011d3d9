#include "model/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/convert/stored_form.h"
#include "model/io/files/atomic_file.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/stored_tensor.h"

namespace kvcast::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* states_file = "optimizer.safetensors";
constexpr const char* progress_file = "training.json";

TrainingOptions options_of(const TrainSettings& s) {
  TrainingOptions options;
  options.recompute = s.recompute;
  options.z_loss = s.z_loss;
  options.optimizer.weight_decay = s.weight_decay;
  return options;
}

/// As recorded inputs have them: whole numbers.
std::vector<float> tokens_of(const std::vector<std::span<const TokenId>>& windows,
                             std::size_t first) {
  std::vector<float> tokens;
  for (const std::span<const TokenId> window : windows) {
    for (const TokenId id : window.subspan(first, window.size() - 1)) {
      tokens.push_back(static_cast<float>(id));
    }
  }
  return tokens;
}

/// The states as the file has them, in the store's order.
std::vector<TensorToWrite> states_of(const execute::TrainingStore& store) {
  std::vector<TensorToWrite> tensors;
  for (const auto& [key, tensor] : store.tensors()) {
    if (key.first != Storage::OptimizerStates) continue;
    TensorToWrite t{key.second, {}, tensor.numbers<float>(), DType::FP32};
    for (const Count& extent : tensor.info.shape) t.shape.push_back(extent.constant());
    tensors.push_back(std::move(t));
  }
  return tensors;
}

}  // namespace

Trainer::Trainer(const Checkpoint& checkpoint, const std::vector<MethodSpec>& methods,
                 const TrainSettings& settings)
    : settings_(settings),
      recording_(record_training(checkpoint.architecture(), methods, settings.lowering,
                                 options_of(settings))) {
  TrainingOptions without_gradients;
  without_gradients.trains = [](const std::string&) { return false; };
  evaluation_ =
      record_training(checkpoint.architecture(), methods, settings.lowering, without_gradients);
  const std::vector<const Graph*> graphs{&recording_.first.graph, &recording_.next.graph,
                                         &recording_.update, &evaluation_.first.graph};
  store_ = std::make_unique<execute::TrainingStore>(
      std::vector<execute::ModelWeights>{{"", &checkpoint}}, graphs);
  first_.emplace(recording_.first.graph, *store_, execute::Loops::Fast);
  next_.emplace(recording_.next.graph, *store_, execute::Loops::Fast);
  update_.emplace(recording_.update, *store_, execute::Loops::Fast);
  evaluate_.emplace(evaluation_.first.graph, *store_, execute::Loops::Fast);
}

double Trainer::run_pass(const TrainingRecording& recording, const execute::Executor& executor,
                         const std::vector<std::span<const TokenId>>& windows, double share) {
  const std::size_t tokens = windows.front().size() - 1;
  const SymbolValues values = recording.symbols.resolve({windows.size(), tokens, tokens});
  const std::vector<float> ids = tokens_of(windows, 0);
  const std::vector<float> targets = tokens_of(windows, 1);
  const std::array<float, 1> target_share{static_cast<float>(share)};
  std::vector<float> positions(tokens);
  const std::uint64_t offset = recording.model.decoder.position_offset;
  for (std::size_t i = 0; i < tokens; ++i) positions[i] = static_cast<float>(offset + i);
  const execute::Inputs inputs{{"tokens", ids},
                               {"positions", positions},
                               {std::string(targets_name), targets},
                               {std::string(target_share_name), target_share}};
  return executor.run(values, inputs, cache_, arena_).data[0];
}

StepReport Trainer::step(TokenWindows& text) {
  StepReport report;
  report.step = steps_done_ + 1;
  report.learning_rate = settings_.rate.at(steps_done_);
  const double share = 1 / static_cast<double>(settings_.batch * text.seq_len());
  std::uint64_t drawn = steps_done_ * settings_.batch;
  for (std::uint64_t m = 0; m < settings_.micro_batches; ++m) {
    const std::uint64_t end = settings_.batch * (m + 1) / settings_.micro_batches;
    std::vector<std::span<const TokenId>> windows;
    for (std::uint64_t i = settings_.batch * m / settings_.micro_batches; i < end; ++i) {
      windows.push_back(text.drawn(drawn++));
    }
    report.loss += run_pass(recording_, m == 0 ? *first_ : *next_, windows, share);
  }
  if (!std::isfinite(report.loss)) {
    throw Error(fmt::format("step {}: the loss is {}; expected a finite number, such as with a "
                            "lower learning rate",
                            report.step, report.loss),
                Fault::Run);
  }
  const AdamW adamw = options_of(settings_).optimizer;
  const auto t = static_cast<double>(report.step);
  const std::array<float, 4> settings{
      static_cast<float>(report.learning_rate),
      static_cast<float>(1 / (1 - std::pow(adamw.beta1, t))),
      static_cast<float>(1 / (1 - std::pow(adamw.beta2, t))),
      settings_.clip > 0 ? static_cast<float>(settings_.clip) : std::numeric_limits<float>::max()};
  const SymbolValues none = recording_.symbols.resolve({1, 1, 1});
  report.gradient_norm =
      update_->run(none, {{std::string(optimizer_name), settings}}, cache_, arena_).data[0];
  if (!std::isfinite(report.gradient_norm)) {
    throw Error(fmt::format("step {}: the gradient of {} is not finite; expected finite numbers, "
                            "such as with a lower learning rate",
                            report.step, gradient_to_blame()),
                Fault::Run);
  }
  ++steps_done_;
  return report;
}

std::string Trainer::gradient_to_blame() const {
  for (const auto& [key, tensor] : store_->tensors()) {
    if (key.first != Storage::Gradients) continue;
    const std::span<const float> numbers = tensor.numbers<float>();
    const bool finite =
        std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); });
    if (!finite) return key.second;
  }
  return "all weights, whose squares add up beyond fp32,";
}

double Trainer::loss_of(const TokenWindows& text) {
  double sum = 0;
  const std::size_t at_once = std::max<std::size_t>(
      1, settings_.batch / std::max<std::uint64_t>(1, settings_.micro_batches));
  for (std::size_t i = 0; i < text.size(); i += at_once) {
    std::vector<std::span<const TokenId>> windows;
    for (std::size_t j = i; j < std::min(text.size(), i + at_once); ++j) {
      windows.push_back(text.window(j));
    }
    const double share = 1 / static_cast<double>(windows.size() * text.seq_len());
    sum += static_cast<double>(windows.size()) * run_pass(evaluation_, *evaluate_, windows, share);
  }
  return sum / static_cast<double>(text.size());
}

void Trainer::save(const fs::path& folder, const nlohmann::json& config, const fs::path& tokenizer,
                   nlohmann::json progress) const {
  const Recording recording = record(recording_.model, {}, settings_.lowering);
  const std::vector<StoredForm> forms = stored_forms(recording_.model, recording, DType::FP32);
  std::vector<TensorToWrite> tensors;
  for (const StoredForm& form : forms) tensors.push_back(form.tensor);
  CheckpointWriter writer(folder, config, tensors);
  const WeightRows rows = [&](const std::string& weight, std::size_t first, std::size_t count) {
    const std::span<const float> numbers = store_->numbers(Storage::Weights, weight);
    const auto& shape = store_->tensors().at({Storage::Weights, weight}).info.shape;
    const std::size_t row = numbers.size() / shape.front().constant();
    DenseMatrix m(index(count), index(row));
    for (std::size_t i = 0; i < count * row; ++i) m.data()[i] = numbers[first * row + i];
    return m;
  };
  for (const StoredForm& form : forms) write_stored(form, rows, writer);
  if (!tokenizer.empty()) writer.copy_tokenizer(tokenizer);
  progress["steps"] = steps_done_;
  writer.commit([&](const fs::path& here) {
    AtomicFile states(here / states_file);
    const std::vector<TensorToWrite> of_optimizer = states_of(*store_);
    states.write(safetensors_header(of_optimizer));
    for (const TensorToWrite& t : of_optimizer) {
      const auto numbers = std::get<std::span<const float>>(t.data);
      states.write({reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()});
    }
    states.sync();
    states.commit();
    write_file(here / progress_file, json_text(progress, 2) + "\n");
  });
}

void Trainer::restore(const fs::path& folder) {
  const fs::path path = folder / states_file;
  std::map<std::string, StoredTensor, std::less<>> stored;
  for (StoredTensor& t : read_safetensors(MappedFile::open(path))) {
    const std::string name = t.name;
    stored.emplace(name, std::move(t));
  }
  for (const TensorToWrite& state : states_of(*store_)) {
    const auto found = stored.find(state.name);
    if (found == stored.end() || found->second.shape != state.shape ||
        found->second.dtype != DType::FP32) {
      throw Error(path.string(), "no tensor '" + state.name + "' of the model's shape",
                  "the states of this model");
    }
    const std::span<float> numbers = store_->numbers(Storage::OptimizerStates, state.name);
    read_elements(found->second, 0, numbers);
  }
  steps_done_ = read_progress(folder).at("steps").get<std::uint64_t>();
}

nlohmann::json read_progress(const fs::path& folder) {
  const fs::path path = folder / progress_file;
  nlohmann::json progress = read_json_file(path);
  if (!progress.is_object() || !progress.contains("steps") ||
      !progress["steps"].is_number_unsigned()) {
    throw Error(path.string(), "no \"steps\"", "what kvcast train wrote");
  }
  return progress;
}

}  // namespace kvcast::train
