#include "model/families/gguf_reader.h"

#include <algorithm>
#include <functional>

#include "model/base/error.h"
#include "model/io/tensors/mapped_file.h"

namespace kvcast {
namespace {

constexpr std::uint64_t max_layers = 10000;  // as in config.json

}  // namespace

std::uint64_t GgufReader::whole(std::string_view k) const {
  if (!has(k) || !metadata().is_array(key(k))) return metadata().whole(key(k));
  const std::vector<std::uint64_t> numbers = by_layer(k);
  if (std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) != numbers.end()) {
    metadata().fail(key(k), "numbers that differ between layers", "the same for all");
  }
  return numbers.front();
}

std::uint64_t GgufReader::num_layers() const {
  const std::uint64_t layers = metadata().whole(key("block_count"));
  if (layers < 1 || layers > max_layers) {
    metadata().fail(key("block_count"), std::to_string(layers), "1 to 10000 layers");
  }
  return layers;
}

std::vector<std::uint64_t> GgufReader::by_layer(std::string_view k) const {
  const std::uint64_t layers = num_layers();
  if (!metadata().is_array(key(k))) {
    return std::vector<std::uint64_t>(layers, metadata().whole(key(k)));
  }
  if (metadata().length(key(k)) != layers) {
    metadata().fail(key(k), std::to_string(metadata().length(key(k))) + " numbers",
                    std::to_string(layers) + ", one a layer");
  }
  std::vector<std::uint64_t> numbers;
  for (const std::int64_t number : metadata().integers(key(k))) {
    if (number < 1) metadata().fail(key(k), std::to_string(number), "numbers above 0");
    numbers.push_back(static_cast<std::uint64_t>(number));
  }
  return numbers;
}

std::uint64_t GgufReader::num_hidden_layers() const {
  const std::uint64_t layers = num_layers();
  const std::uint64_t later = whole_or("nextn_predict_layers", 0);
  if (later >= layers) {
    metadata().fail(key("nextn_predict_layers"), std::to_string(later),
                    "fewer than the " + std::to_string(layers) + " layers");
  }
  return layers - later;
}

std::vector<bool> GgufReader::windowed_layers(std::uint64_t usual) const {
  constexpr const char* k = "attention.sliding_window_pattern";
  const std::uint64_t layers = num_hidden_layers();
  if (has(k) && metadata().is_array(key(k))) {
    std::vector<bool> windows = metadata().flags(key(k));
    if (windows.size() < layers) {
      metadata().fail(key(k), std::to_string(windows.size()) + " flags",
                      std::to_string(layers) + ", one a layer");
    }
    windows.resize(layers);
    return windows;
  }
  const std::uint64_t pattern = whole_or(k, usual);  // 0: all of them
  std::vector<bool> windows(layers);
  for (std::uint64_t i = 0; i < layers; ++i) windows[i] = pattern == 0 || (i + 1) % pattern != 0;
  return windows;
}

std::uint64_t GgufReader::head_dim() const {
  if (has("attention.key_length")) {
    const std::uint64_t length = whole("attention.key_length");
    if (whole_or("attention.value_length", length) != length) {
      metadata().fail(key("attention.value_length"), "another length than the keys'",
                      std::to_string(length));
    }
    return length;
  }
  const std::uint64_t heads = whole("attention.head_count");
  const std::uint64_t hidden = whole("embedding_length");
  if (heads == 0 || hidden % heads != 0) {
    metadata().fail(key("embedding_length"), std::to_string(hidden),
                    "a multiple of the " + std::to_string(heads) + " attention heads");
  }
  return hidden / heads;
}

std::uint64_t GgufReader::vocab_size() const {
  const StoredTensor* tensor = file_.find("token_embd.weight");
  if (tensor == nullptr || tensor->shape.size() != 2) {
    throw Error(file_.file->path() + ": tensor token_embd.weight",
                tensor == nullptr ? "none" : std::to_string(tensor->shape.size()) + " dimensions",
                "a table of the tokens' embeddings");
  }
  return tensor->shape.front();
}

std::vector<float> GgufReader::values(std::string_view name) const {
  const StoredTensor* tensor = file_.find(name);
  if (tensor == nullptr || tensor->dtype != DType::FP32) {
    throw Error(file_.file->path() + ": tensor " + std::string(name),
                tensor == nullptr ? "none" : "another type", "F32");
  }
  std::vector<float> values(tensor->elements());  // its bytes are in the file
  read_elements(*tensor, 0, values);
  return values;
}

}  // namespace kvcast
