// Gradients, losses and steps of AdamW against PyTorch's in float64
// (tests/oracle/make_gradients.py).
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "model/convert/stored_form.h"
#include "model/execute/executor.h"
#include "model/execute/messenger.h"
#include "model/execute/opened_models.h"
#include "model/execute/training_store.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"
#include "model/record/training_recording.h"
#include "tests/test_folder.h"

using namespace kvcast;
using namespace kvcast::execute;
namespace fs = std::filesystem;

namespace {

const fs::path oracle = KVCAST_SOURCE_DIR "/tests/oracle";
constexpr double z_loss = 1e-3;

using Tensors = std::map<std::string, std::vector<double>>;

Tensors read_tensors(const fs::path& file) {
  Tensors tensors;
  for (const StoredTensor& t : read_safetensors(MappedFile::open(file))) {
    tensors[t.name].resize(t.elements());
    read_elements(t, 0, tensors[t.name]);
  }
  return tensors;
}

/// KV Prediction's triple; any other name is one checkpoint.
constexpr const char* triple = "kvp";

std::vector<MethodSpec> methods_of(const std::string& name) {
  if (name != triple) return {};
  return {
      {"kvp",
       {{"auxiliary", oracle / "kvp" / "auxiliary"}, {"predictor", oracle / "kvp" / "predictor"}}}};
}

/// Of a case of an MLKV model: the keys that layers share are the released code's.
constexpr std::string_view released = ".released";

fs::path folder_of(const std::string& name) {
  return oracle / (name == triple ? "openelm" : name.substr(0, name.find(released)));
}

Architecture architecture_of(const Checkpoint& checkpoint, const std::string& name) {
  Architecture a = checkpoint.architecture();
  if (name.ends_with(released)) a.decoder.shared_keys = SharedKeys::Released;
  return a;
}

/// One training of a tiny checkpoint on the prompts of its oracle, in plain loops in fp64.
class TinyTraining {
 public:
  /// `messenger`: of the ranks that share the prompts out.
  TinyTraining(const std::string& name, Kernels kernels, double weight_decay = 0,
               Messenger* messenger = nullptr)
      : checkpoint_(folder_of(name)),
        lowering_{kernels, kernels, DType::FP64, DType::FP64, DType::FP64},
        recording_(
            record_training(architecture_of(checkpoint_, name), methods_of(name), lowering_,
                            {.states = DType::FP64,
                             .optimizer = {.weight_decay = weight_decay},
                             .z_loss = z_loss,
                             .consistency_loss = 0.5,
                             .replicas = {.size = messenger != nullptr ? messenger->ranks() : 1},
                             .replica = messenger != nullptr ? messenger->rank() : 0,
                             .find_model =
                                 [&](const std::string& path) {
                                   return open_model(path, nullptr, opened_).architecture();
                                 }})),
        store_(find_weights(checkpoint_, recording_.helper_models, opened_),
               {&recording_.first.graph, &recording_.update}, DType::FP64),
        pass_(recording_.first.graph, store_, Loops::Counting, DType::FP64),
        update_(recording_.update, store_, Loops::Counting, DType::FP64),
        messenger_(messenger) {
    nlohmann::json prompts;
    if (name == triple) {
      prompts = {read_json_file(oracle / name / "results.json").at("text")};
    } else {
      prompts = read_json_file(folder_of(name) / "expected.json").at("prompt");
    }
    all_sequences_ = prompts.size();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const nlohmann::json& prompt = prompts[i];
      if (messenger != nullptr && i % messenger->ranks() != messenger->rank()) continue;
      const auto ids = prompt.get<std::vector<float>>();
      tokens_.insert(tokens_.end(), ids.begin(), ids.end() - 1);
      targets_.insert(targets_.end(), ids.begin() + 1, ids.end());
      length_ = ids.size() - 1;
      ++sequences_;
    }
  }

  double loss() {
    const std::array<float, 1> share{static_cast<float>(scale())};
    std::vector<float> positions(length_);
    const std::uint64_t first = recording_.model.decoder.position_offset;
    for (std::size_t i = 0; i < length_; ++i) positions[i] = static_cast<float>(first + i);
    const Inputs inputs{{"tokens", tokens_},
                        {"auxiliary.tokens", tokens_},
                        {"positions", positions},
                        {std::string(targets_name), targets_},
                        {std::string(target_share_name), share}};
    const SymbolValues values = recording_.symbols.resolve({sequences_, length_, length_});
    const Output out = pass_.run(values, inputs, cache_, arena_);
    double sum = 0;
    for (std::size_t i = 0; i < losses(); ++i) {
      sum += reinterpret_cast<const double*>(out.data.get())[i];
    }
    return sum;
  }
  double scale() const { return 1 / static_cast<double>(all_sequences_ * length_); }
  /// Of the trained model in the names and forms of its family, and of linear maps.
  Tensors stored(Storage storage) const {
    const auto& helpers = recording_.helper_models;
    const std::string prefix = helpers.empty() ? "" : helpers.front().prefix;
    const Architecture& a = helpers.empty() ? recording_.model : helpers.front().architecture;
    std::vector<StoredForm> forms = stored_forms(a, record(a, {}, lowering_), DType::FP64);
    std::vector<TensorToWrite> tensors;
    for (StoredForm& form : forms) {
      if (storage == Storage::Gradients) form.offset = 0;  // of w in 1 + w
      tensors.push_back(form.tensor);
    }
    const TestFolder folder;
    CheckpointWriter writer(folder.path() / "out", nlohmann::json::object(), tensors);
    for (const StoredForm& form : forms) {
      write_stored(
          form,
          [&](const std::string& weight, std::size_t first, std::size_t count) {
            const auto& of_weight = store_.tensors().at({Storage::Weights, prefix + weight});
            const std::size_t row = of_weight.elements / of_weight.info.shape.front().constant();
            DenseMatrix m = DenseMatrix::Zero(index(count), index(row));
            const auto found = store_.tensors().find({storage, prefix + weight});
            if (found == store_.tensors().end()) return m;  // a router's correction
            const std::span<const double> numbers = found->second.numbers<double>();
            for (std::size_t i = 0; i < count * row; ++i) m.data()[i] = numbers[first * row + i];
            return m;
          },
          writer);
    }
    writer.commit();
    Tensors found = read_tensors(folder.path() / "out" / "model.safetensors");
    for (const auto& [key, tensor] : store_.tensors()) {
      if (key.first != storage || !key.second.starts_with(predictor_prefix)) continue;
      const std::span<const double> numbers = tensor.numbers<double>();
      found[key.second] = {numbers.begin(), numbers.end()};
    }
    return found;
  }
  double update(float rate, double step, double clip) {
    const std::array<float, 4> settings{rate, static_cast<float>(1 / (1 - std::pow(0.9, step))),
                                        static_cast<float>(1 / (1 - std::pow(0.95, step))),
                                        static_cast<float>(clip)};
    const Output out =
        update_.run(recording_.symbols.resolve({1, 1, 1}),
                    {{std::string(optimizer_name), settings}}, cache_, arena_, nullptr, messenger_);
    return reinterpret_cast<const double*>(out.data.get())[0];
  }

 private:
  /// Of one model, or of KV Prediction's three with both parts of each base layer.
  std::size_t losses() const {
    return recording_.predictor ? 2 + 2 * recording_.predictor->map.size() : 1;
  }

  Checkpoint checkpoint_;
  OpenedModels opened_;
  Lowering lowering_;
  TrainingRecording recording_;
  TrainingStore store_;
  Executor pass_;
  Executor update_;
  Arena arena_;
  CacheStore cache_;
  std::vector<float> tokens_;
  std::vector<float> targets_;
  std::size_t length_ = 0;
  std::size_t sequences_ = 0;
  std::size_t all_sequences_ = 0;
  Messenger* messenger_;
};

/// The largest difference over the largest expected number; a tensor that is 0 counts as it is.
double error_of(const std::vector<double>& ours, const std::vector<double>& theirs) {
  REQUIRE(ours.size() == theirs.size());
  double worst = 0;
  double range = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    worst = std::max(worst, std::abs(ours[i] - theirs[i]));
    range = std::max(range, std::abs(theirs[i]));
  }
  return range > 1e-6 ? worst / range : worst;
}

}  // namespace

TEST_CASE("training oracle: every gradient is PyTorch's") {
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(oracle / "gradients")) {
    const std::string name = entry.path().stem().string();
    const Tensors expected = read_tensors(entry.path());
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(name);
      CAPTURE(kernels == Kernels::Eager);
      TinyTraining training(name, kernels);
      // transformers normalises and rotates in fp32.
      CHECK(training.loss() == doctest::Approx(expected.at("loss")[0]).epsilon(1e-6));
      const Tensors gradients = training.stored(Storage::Gradients);
      std::size_t compared = 0;
      for (const auto& [tensor, theirs] : expected) {
        const auto ours = gradients.find(tensor);
        if (ours == gradients.end()) continue;  // losses, copies of a tied weight
        CAPTURE(tensor);
        CHECK(error_of(ours->second, theirs) < 5e-6);  // fp32 in places
        ++compared;
      }
      CHECK(compared + 3 >= gradients.size());
      CHECK(compared > 8);
    }
    ++files;
  }
  CHECK(files == 77);
}

TEST_CASE("training oracle: five steps of AdamW with clipping and decay are PyTorch's") {
  for (const std::string name : {"gpt2", "llama_gqa_llama3_rope"}) {
    CAPTURE(name);
    const Tensors expected = read_tensors(oracle / "gradients" / (name + ".safetensors"));
    TinyTraining training(name, Kernels::Fused, 0.1);
    for (std::size_t step = 0; step < 5; ++step) {
      CAPTURE(step);
      CHECK(training.loss() == doctest::Approx(expected.at("losses")[step]).epsilon(1e-5));
      CHECK(training.update(1e-2F, static_cast<double>(step + 1), 0.5) ==
            doctest::Approx(expected.at("norms")[step]).epsilon(1e-5));
    }
    const Tensors weights = training.stored(Storage::Weights);
    for (const auto& [tensor, theirs] : expected) {
      if (!tensor.starts_with("stepped.")) continue;
      CAPTURE(tensor);
      std::string stored = tensor.substr(8);
      if (!weights.contains(stored) && stored.starts_with("transformer."))
        stored = stored.substr(12);
      REQUIRE(weights.contains(stored));
      CHECK(error_of(weights.at(stored), theirs) < 1e-5);
    }
  }
}

TEST_CASE("training oracle: ranks that share the sequences out have one process's gradient") {
  const std::string name = "gpt2";
  TinyTraining alone(name, Kernels::Fused);
  alone.loss();
  const double norm = alone.update(1e-2F, 1, 0.5);
  const Tensors expected = alone.stored(Storage::Gradients);
  Mailboxes mailboxes(2, 60);
  std::array<Tensors, 2> gradients;
  std::array<Tensors, 2> weights;
  std::array<double, 2> norms{};
  std::vector<std::jthread> ranks;
  for (std::size_t r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      const auto messenger = mailboxes.messenger(r);
      TinyTraining part(name, Kernels::Fused, 0, messenger.get());
      part.loss();
      norms[r] = part.update(1e-2F, 1, 0.5);
      gradients[r] = part.stored(Storage::Gradients);
      weights[r] = part.stored(Storage::Weights);
    });
  }
  ranks.clear();
  CHECK(norms[0] == doctest::Approx(norm).epsilon(1e-12));
  CHECK(gradients[0] == gradients[1]);
  CHECK(weights[0] == weights[1]);
  for (const auto& [tensor, numbers] : expected) {
    CAPTURE(tensor);
    CHECK(error_of(gradients[0].at(tensor), numbers) < 1e-12);
  }
}
