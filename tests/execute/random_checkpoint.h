/// Checkpoints of any shape with random weights, as Hugging Face's files hold them.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/convert/checkpoint_writer.h"
#include "model/convert/conversion_source.h"
#include "model/families/config_reader.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"
#include "model/io/weights/weight_map.h"

namespace kvcast {

/// Weights that keep the size of what they multiply, biases and norms like trained ones.
inline void write_random_checkpoint(const nlohmann::json& config,
                                    const std::filesystem::path& folder, unsigned seed) {
  const Architecture a = read_config(config, "random", "test");
  std::map<std::string, std::vector<std::uint64_t>> shapes;
  for (const auto& [name, info] : weights_of(record(a, {}, {}))) {
    const WeightSource source = huggingface_weight(a, name);
    std::vector<std::uint64_t> shape;
    for (const Count& extent : info.shape) shape.push_back(extent.constant());
    std::vector<std::uint64_t>& stored = shapes[source.names.front()];
    if (stored.empty()) {
      stored = shape;
    } else if (!source.rows.empty()) {
      stored[0] += shape[0];  // another part of a fused tensor
    }
  }
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, shape] : shapes) tensors.push_back({name, shape, {}, DType::FP32});
  CheckpointWriter writer(folder, config, tensors);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  for (const auto& [name, shape] : shapes) {
    std::size_t row = 1;
    for (std::size_t i = 1; i < shape.size(); ++i) row *= shape[i];
    std::vector<double> numbers(shape[0] * row);
    const bool norm = shape.size() == 1 && name.ends_with(".weight");
    const double scale = shape.size() == 1 ? 0.3 : 1 / std::sqrt(static_cast<double>(row));
    for (double& x : numbers) x = (norm ? 1 : 0) + scale * normal(random);
    writer.write(numbers);
  }
  writer.commit();
}

/// Changes the fp32 tensors of a folder's model.safetensors by `change(name, numbers)`.
template <typename Change>
void change_tensors(const std::filesystem::path& folder, Change change) {
  const std::filesystem::path file = folder / "model.safetensors";
  const std::vector<StoredTensor> stored = read_safetensors(MappedFile::open(file));
  std::vector<std::vector<float>> numbers;
  for (const StoredTensor& t : stored) {
    read_elements(t, 0, std::span(numbers.emplace_back(t.elements())));
    change(t.name, numbers.back());
  }
  std::vector<TensorToWrite> tensors;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const StoredTensor& t = stored[i];
    tensors.push_back({t.name, t.shape, std::span<const float>(numbers[i]), DType::FP32});
  }
  const std::string bytes = safetensors_bytes(tensors);
  std::filesystem::remove(file);
  std::ofstream(file, std::ios::binary) << bytes;
}

}  // namespace kvcast
