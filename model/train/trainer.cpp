#include "model/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <list>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/interrupt.h"
#include "model/base/json_file.h"
#include "model/base/read_file.h"
#include "model/convert/stored_form.h"
#include "model/execute/messenger.h"
#include "model/graph/work.h"
#include "model/io/files/atomic_file.h"
#include "model/io/files/fnv_hash.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/stored_tensor.h"

namespace kvcast::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* states_file = "optimizer.safetensors";
constexpr const char* progress_file = "training.json";

TrainingOptions options_of(const TrainSettings& s, const Architecture& base) {
  TrainingOptions options;
  options.recompute = s.recompute;
  options.loss_chunks = s.loss_chunks;
  options.z_loss = s.z_loss;
  options.optimizer.weight_decay = s.weight_decay;
  options.base_loss = s.base_loss;
  options.auxiliary_loss = s.auxiliary_loss;
  options.consistency_loss =
      s.consistency_loss.value_or(1 / static_cast<double>(base.num_hidden_layers()));
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

std::vector<TensorId> losses_of(const Graph& pass) {
  std::vector<TensorId> losses;
  for (const TensorId id : pass.outputs()) {
    if (pass.tensor(id).storage == Storage::Activations) losses.push_back(id);
  }
  return losses;
}

/// The losses of a model's layers, "key_consistency.3", are one part.
std::string part_name(const Graph& pass, TensorId loss) {
  const std::string& name = pass.tensor(loss).name;
  return name.substr(0, name.find('.'));
}

std::vector<std::uint64_t> shape_of(const TensorInfo& info) {
  std::vector<std::uint64_t> shape;
  for (const Count& extent : info.shape) shape.push_back(extent.constant());
  return shape;
}

/// The states as the file has them, in the store's order.
std::vector<TensorToWrite> states_of(const execute::TrainingStore& store) {
  std::vector<TensorToWrite> tensors;
  for (const auto& [key, tensor] : store.tensors()) {
    if (key.first != Storage::OptimizerStates) continue;
    tensors.push_back({key.second, shape_of(tensor.info), tensor.numbers<float>(), DType::FP32});
  }
  return tensors;
}

bool all_finite(std::span<const float> numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); });
}

/// Of the files that say what a checkpoint's weights compute.
std::string configurations_of(const fs::path& folder) {
  FnvHash hash;
  for (const fs::path& file : {folder / "config.json", folder / predictor_folder / "config.json"}) {
    if (fs::exists(file)) hash.add(read_file(file, "a configuration"));
  }
  return hash.text();
}

Error not_finite(std::uint64_t step, const std::string& what, double z_loss) {
  // The first step has not moved the weights yet.
  std::string less = step > 1 ? "with a lower learning rate" : "of other weights";
  if (z_loss > 0) less += ", or of a smaller --z-loss";
  return Error(
      fmt::format("step {}: the {}; expected finite numbers, such as {}", step, what, less),
      Fault::Run);
}

}  // namespace

Trainer::Trainer(const Checkpoint& base, const std::vector<MethodSpec>& methods,
                 const TrainSettings& settings, execute::Messenger* messenger)
    : base_(base), settings_(settings), messenger_(messenger) {
  const Architecture& a = base.architecture();
  TrainingOptions options = options_of(settings, a);
  options.replicas = {.size = ranks()};
  options.replica = rank();
  options.find_model = [&](const std::string& name) {
    return execute::open_model(name, nullptr, opened_).architecture();
  };
  recording_ = record_training(a, methods, settings.lowering, options);
  options.z_loss = 0;
  options.trains = [](const std::string&) { return false; };
  evaluation_ = record_training(a, methods, settings.lowering, options);
  const std::vector<const Graph*> graphs{&recording_.first.graph, &recording_.next.graph,
                                         &recording_.update, &evaluation_.first.graph};
  execute::check_converted(base, recording_.conversion, methods);
  std::vector<execute::ModelWeights> weights =
      execute::find_weights(base, recording_.helper_models, opened_, settings.seed);
  // Nothing reads the base's own keys and values where they are not compared with predicted ones.
  weights.front().may_leave = recording_.predictor.has_value();
  store_ = std::make_unique<execute::TrainingStore>(weights, graphs);
  std::set<std::string> parts;
  for (const TensorId id : losses_of(recording_.first.graph)) {
    parts.insert(part_name(recording_.first.graph, id));
  }
  loss_parts_.assign(parts.begin(), parts.end());
  first_.emplace(run_pass_of(recording_, recording_.first.graph));
  next_.emplace(run_pass_of(recording_, recording_.next.graph));
  evaluate_.emplace(run_pass_of(evaluation_, evaluation_.first.graph));
  if (loss_parts_.size() == 1) loss_parts_.clear();
  update_.emplace(recording_.update, *store_, loops());
}

execute::Loops Trainer::loops() const {
  return settings_.count ? execute::Loops::Counting : execute::Loops::Fast;
}

Trainer::RunPass Trainer::run_pass_of(const TrainingRecording& recording, const Graph& graph) {
  RunPass pass{recording, graph, execute::Executor(graph, *store_, loops()), {}};
  for (const TensorId id : losses_of(graph)) {
    const auto part = std::find(loss_parts_.begin(), loss_parts_.end(), part_name(graph, id));
    const Op& op = graph.node(*graph.tensor(id).producer).op;
    const auto* error = std::get_if<MeanAbsoluteError>(&op);
    pass.results.push_back({static_cast<std::size_t>(part - loss_parts_.begin()),
                            error != nullptr ? error->weight : std::get<CrossEntropy>(op).weight});
  }
  return pass;
}

std::uint64_t Trainer::rank() const { return messenger_ != nullptr ? messenger_->rank() : 0; }
std::uint64_t Trainer::ranks() const { return messenger_ != nullptr ? messenger_->ranks() : 1; }

const Checkpoint& Trainer::trained() const {
  return recording_.predictor ? opened_.at(recording_.helper_models.front().name) : base_;
}

execute::Output Trainer::run_of_step(const execute::Executor& executor, const Graph& graph,
                                     const Symbols& symbols, const SymbolValues& values,
                                     const execute::Inputs& inputs, execute::Messenger* messenger) {
  const bool may_stop = stops_ && &graph != &recording_.update;
  execute::LateSizes sizes{&symbols};  // how many experts were read
  const auto observe = [&](const execute::NodeRun& run) {
    if (settings_.count) counted_.counted += *run.counted;
    if (may_stop && stops_()) throw Interrupted{};
  };
  execute::Output out = executor.run(values, inputs, cache_, arena_, observe, messenger, &sizes);
  if (!settings_.count) return out;
  const Work work = total_work(graph);
  counted_.analytic_flops += work.flops.at(sizes.values);
  counted_.analytic_bytes += work.bytes().at(sizes.values);
  return out;
}

void Trainer::add_losses(const RunPass& pass, const std::vector<std::span<const TokenId>>& windows,
                         double share, Loss& loss, std::string* blamed) {
  const std::size_t tokens = windows.front().size() - 1;
  const TrainingRecording& recording = pass.recording;
  const SymbolValues values = recording.symbols.resolve({windows.size(), tokens, tokens});
  const std::vector<float> ids = tokens_of(windows, 0);
  const std::vector<float> targets = tokens_of(windows, 1);
  const std::array<float, 1> target_share{static_cast<float>(share)};
  execute::Inputs inputs{{std::string(targets_name), targets},
                         {std::string(target_share_name), target_share}};
  std::list<std::vector<float>> positions;
  const auto add_model = [&](const std::string& prefix, const Architecture& a) {
    std::vector<float>& p = positions.emplace_back(tokens);
    std::iota(p.begin(), p.end(), static_cast<float>(a.decoder.position_offset));
    inputs[prefix + "tokens"] = ids;
    inputs[prefix + "positions"] = p;
  };
  add_model("", recording.model);
  for (const HelperModel& helper : recording.helper_models) {
    add_model(helper.prefix, helper.architecture);
  }
  const execute::Output out =
      run_of_step(pass.executor, pass.graph, recording.symbols, values, inputs, nullptr);
  loss.parts.resize(std::max<std::size_t>(1, loss_parts_.size()));
  for (std::size_t i = 0; i < pass.results.size(); ++i) {
    const RunPass::Part& part = pass.results[i];
    loss.sum += out.data[i];
    loss.parts[part.index] += out.data[i] / part.weight;
  }
  if (blamed != nullptr && blamed->empty() && !std::isfinite(loss.sum)) {
    *blamed = node_to_blame(pass, values, inputs);
  }
}

std::string Trainer::node_to_blame(const RunPass& pass, const SymbolValues& values,
                                   const execute::Inputs& inputs) {
  std::string blamed;
  const auto look = [&](const Node& node, const execute::Operand& x) {
    const std::span<const float> numbers{x.data, x.shape.elements()};
    if (blamed.empty() && !all_finite(numbers)) blamed = place(node);
  };
  const auto observe = [&](const execute::NodeRun& run) {
    look(run.call->node, run.call->output);
    for (const execute::Operand& more : run.call->more_outputs) look(run.call->node, more);
  };
  execute::LateSizes sizes{&pass.recording.symbols};
  pass.executor.run(values, inputs, cache_, arena_, observe, nullptr, &sizes);
  KVCAST_ASSERT(!blamed.empty());
  return blamed;
}

void Trainer::add_ranks(Loss& loss, const std::function<void()>& run) const {
  bool stopped = false;
  try {
    run();
  } catch (const Interrupted&) {
    stopped = true;
  }
  if (messenger_ != nullptr) stopped = execute::any_of_ranks(*messenger_, stopped);
  if (stopped) throw Interrupted{};
  if (messenger_ != nullptr) {
    execute::add_over_ranks(*messenger_, {&loss.sum, 1});
    execute::add_over_ranks(*messenger_, loss.parts);
  }
  if (loss_parts_.empty()) loss.parts.clear();
}

StepReport Trainer::step(TokenWindows& text) {
  StepReport report;
  std::string blamed;  // for a loss of this rank that is not finite
  report.step = steps_done_ + 1;
  report.learning_rate = settings_.rate.at(steps_done_);
  const double share = 1 / static_cast<double>(settings_.batch * text.seq_len());
  const std::uint64_t begin = settings_.batch * rank() / ranks();
  const std::uint64_t count = settings_.batch * (rank() + 1) / ranks() - begin;
  add_ranks(report.loss, [&] {
    std::uint64_t drawn = steps_done_ * settings_.batch + begin;
    for (std::uint64_t m = 0; m < settings_.micro_batches; ++m) {
      const std::uint64_t end = count * (m + 1) / settings_.micro_batches;
      std::vector<std::span<const TokenId>> windows;
      for (std::uint64_t i = count * m / settings_.micro_batches; i < end; ++i) {
        windows.push_back(text.drawn(drawn++));
      }
      add_losses(m == 0 ? *first_ : *next_, windows, share, report.loss, &blamed);
    }
  });
  if (!std::isfinite(report.loss.sum)) {
    if (messenger_ != nullptr) blamed = execute::first_error(*messenger_, blamed, "");
    throw not_finite(report.step, "loss is not finite; the first such result is that of " + blamed,
                     settings_.z_loss);
  }
  const AdamW adamw;
  const auto t = static_cast<double>(report.step);
  const std::array<float, 4> settings{
      static_cast<float>(report.learning_rate),
      static_cast<float>(1 / (1 - std::pow(adamw.beta1, t))),
      static_cast<float>(1 / (1 - std::pow(adamw.beta2, t))),
      settings_.clip > 0 ? static_cast<float>(settings_.clip) : std::numeric_limits<float>::max()};
  const SymbolValues none = recording_.symbols.resolve({1, 1, 1});
  report.gradient_norm = run_of_step(*update_, recording_.update, recording_.symbols, none,
                                     {{std::string(optimizer_name), settings}}, messenger_)
                             .data[0];
  if (!std::isfinite(report.gradient_norm)) {
    throw not_finite(report.step, fmt::format("gradient of {} is not finite", gradient_to_blame()),
                     settings_.z_loss);
  }
  ++steps_done_;
  return report;
}

std::string Trainer::gradient_to_blame() const {
  for (const auto& [key, tensor] : store_->tensors()) {
    if (key.first != Storage::Gradients) continue;
    if (!all_finite(tensor.numbers<float>())) return key.second;
  }
  return "all weights, whose squares add up beyond fp32,";
}

Loss Trainer::loss_of(const TokenWindows& text) {
  Loss loss;
  loss.parts.resize(std::max<std::size_t>(1, loss_parts_.size()));
  const std::size_t at_once =
      std::max<std::size_t>(1, settings_.batch / (settings_.micro_batches * ranks()));
  const double share = 1 / static_cast<double>(text.size() * text.seq_len());
  add_ranks(loss, [&] {
    for (std::size_t i = rank() * at_once; i < text.size(); i += at_once * ranks()) {
      std::vector<std::span<const TokenId>> windows;
      for (std::size_t j = i; j < std::min(text.size(), i + at_once); ++j) {
        windows.push_back(text.window(j));
      }
      add_losses(*evaluate_, windows, share, loss);
    }
  });
  return loss;
}

void Trainer::save(const fs::path& folder, const nlohmann::json& config, const fs::path& tokenizer,
                   nlohmann::json progress) const {
  for (const auto& [key, tensor] : store_->tensors()) {
    if (key.first != Storage::Weights || all_finite(tensor.numbers<float>())) continue;
    throw not_finite(steps_done_, fmt::format("weight {} is not finite", key.second),
                     settings_.z_loss);
  }
  const HelperModel* const helper =
      recording_.predictor ? &recording_.helper_models.front() : nullptr;
  const Architecture& a = helper != nullptr ? helper->architecture : recording_.model;
  const std::string prefix = helper != nullptr ? helper->prefix : "";
  const std::vector<StoredForm> forms =
      stored_forms(a, record(a, {}, settings_.lowering), DType::FP32);
  std::vector<TensorToWrite> tensors;
  for (const StoredForm& form : forms) tensors.push_back(form.tensor);
  CheckpointWriter writer(folder, config, tensors);
  const WeightRows rows = [&](const std::string& weight, std::size_t first, std::size_t count) {
    const auto stored = store_->tensors().find({Storage::Weights, prefix + weight});
    // No loss depends on it: it is as it was.
    if (stored == store_->tensors().end()) return read_rows(trained().reader(weight), first, count);
    const std::span<const float> numbers = stored->second.numbers<float>();
    const std::size_t row = numbers.size() / stored->second.info.shape.front().constant();
    DenseMatrix m(index(count), index(row));
    for (std::size_t i = 0; i < count * row; ++i) m.data()[i] = numbers[first * row + i];
    return m;
  };
  for (const StoredForm& form : forms) write_stored(form, rows, writer);
  if (!tokenizer.empty()) writer.copy_tokenizer(tokenizer);
  progress["steps"] = steps_done_;
  writer.commit([&](const fs::path& here) {
    if (recording_.predictor) save_predictor(here / predictor_folder);
    AtomicFile states(here / states_file);
    const std::vector<TensorToWrite> of_optimizer = states_of(*store_);
    states.write(safetensors_header(of_optimizer));
    for (const TensorToWrite& t : of_optimizer) {
      const auto numbers = std::get<std::span<const float>>(t.data);
      states.write({reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()});
    }
    states.sync();
    states.commit();
    progress["configurations"] = configurations_of(here);
    write_file(here / progress_file, json_text(progress, 2) + "\n");
  });
}

void Trainer::save_predictor(const fs::path& folder) const {
  nlohmann::json config = predictor_json(*recording_.predictor);
  config["dtype"] = std::string(name(DType::FP32));
  std::vector<TensorToWrite> tensors;
  for (const auto& [key, tensor] : store_->tensors()) {
    if (key.first != Storage::Weights || !key.second.starts_with(predictor_prefix)) continue;
    tensors.push_back({key.second, shape_of(tensor.info), {}, DType::FP32});
  }
  CheckpointWriter writer(folder, config, tensors);
  for (const TensorToWrite& t : tensors) {
    const std::span<const float> numbers = store_->numbers(Storage::Weights, t.name);
    writer.write(std::vector<double>(numbers.begin(), numbers.end()));
  }
  writer.commit();
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
  const nlohmann::json progress = read_progress(folder);
  // Checkpoints of earlier versions do not say.
  const auto saved = progress.find("configurations");
  if (saved != progress.end() && *saved != configurations_of(folder)) {
    throw Error(folder.string(), "another config.json than was saved",
                "the checkpoint as it was written");
  }
  steps_done_ = progress.at("steps").get<std::uint64_t>();
}

nlohmann::json read_progress(const fs::path& folder) {
  const fs::path path = folder / progress_file;
  nlohmann::json progress = read_json_file(path);
  const JsonObject o(progress, path.string());
  if (o.whole("steps") == 0) o.fail("steps", "a number above 0, as kvcast train wrote it");
  return progress;
}

}  // namespace kvcast::train
