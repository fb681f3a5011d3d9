#include "model/convert/conversion_source.h"

#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/families/gguf_config.h"
#include "model/families/wrappers.h"
#include "model/io/tensors/gguf.h"

namespace kvcast {
namespace {

/// As transformers spells it.
std::string torch_name(DType dtype) {
  switch (dtype) {
    case DType::FP64: return "float64";
    case DType::FP16: return "float16";
    case DType::BF16: return "bfloat16";
    default: return "float32";
  }
}

}  // namespace

void ConversionReport::compare(const Recording& recorded_before, const Recording& recorded_after) {
  parameters_before = recorded_before.parameters;
  parameters_after = recorded_after.parameters;
  kv_cache_ratio = static_cast<double>(recorded_after.kv_cache_bytes_per_token.at({})) /
                   static_cast<double>(recorded_before.kv_cache_bytes_per_token.at({}));
}

nlohmann::json source_config(const Checkpoint& checkpoint, DType dtype) {
  nlohmann::json config = checkpoint.gguf() != nullptr
                              ? gguf_config(*checkpoint.gguf())
                              : read_json_file(checkpoint.path() / "config.json");
  return config_of(std::move(config), checkpoint.architecture(), dtype);
}

nlohmann::json config_of(nlohmann::json config, const Architecture& a, DType dtype) {
  if (std::optional<TextConfig> text = text_config(config, "")) {
    config = std::move(text->config);
    config["tie_word_embeddings"] = a.tied_embeddings;
  }
  config.erase("quantization_config");  // weights are written as numbers
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = torch_name(dtype);
  return config;
}

std::map<std::string, TensorInfo> weights_of(const Recording& recording) {
  std::map<std::string, TensorInfo> weights;
  for (const Graph* graph : {&recording.prefill(), &recording.decode()}) {
    for (const TensorInfo& t : graph->tensors()) {
      if (t.storage == Storage::Weights) weights.emplace(t.name, t);
    }
  }
  return weights;
}

TensorToWrite tensor_to_write(const std::string& name, const TensorInfo& info, DType dtype) {
  TensorToWrite tensor{name, {}, {}, dtype};
  for (const Count& extent : info.shape) tensor.shape.push_back(extent.constant());
  return tensor;
}

void check_source(const Checkpoint& checkpoint, const Recording& recording) {
  std::vector<std::string> names;
  for (const auto& [name, info] : weights_of(recording)) {
    checkpoint.check(info);
    names.push_back(name);
  }
  checkpoint.check_nothing_left(names);
}

void write_converted(const Checkpoint& source, const std::filesystem::path& output,
                     const nlohmann::json& config, const std::vector<TensorToWrite>& tensors,
                     const std::function<void(std::size_t, CheckpointWriter&)>& write,
                     const Progress& on_tensor, ConversionReport& report) {
  CheckpointWriter writer(output, config, tensors);
  if (source.gguf() == nullptr) report.copied_files = writer.copy_tokenizer(source.path());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (on_tensor) on_tensor(i, tensors.size());
    write(i, writer);
  }
  writer.commit();
}

}  // namespace kvcast
