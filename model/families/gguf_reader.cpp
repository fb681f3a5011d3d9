#include "model/families/gguf_reader.h"

#include <algorithm>
#include <functional>

#include "model/base/error.h"
#include "model/io/tensors/mapped_file.h"

namespace kvcast {
namespace {

constexpr std::uint64_t max_layers = 10000;  // as in config.json

}  // namespace

std::vector<std::string> GgufReader::unread_keys() const {
  std::vector<std::string> unread;
  for (const GgufMetadata::Entry& entry : metadata().entries()) {
    if (entry.key.starts_with(prefix_) && !asked_.contains(entry.key)) {
      unread.emplace_back(entry.key);
    }
  }
  return unread;
}

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

std::uint64_t GgufReader::whole_or_none(std::string_view k) const {
  std::uint64_t shared = 0;
  for (const std::uint64_t number : by_layer(k, 0)) {
    if (shared > 0 && number > 0 && number != shared) {
      metadata().fail(key(k), "numbers that differ between layers", "the same for all, or 0");
    }
    shared = std::max(shared, number);
  }
  return shared;
}

std::vector<std::uint64_t> GgufReader::by_layer(std::string_view k, std::uint64_t least) const {
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
    if (number < static_cast<std::int64_t>(least)) {
      metadata().fail(key(k), std::to_string(number), least > 0 ? "numbers above 0" : "0 or more");
    }
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

std::vector<bool> GgufReader::flags(std::string_view k) const {
  const std::uint64_t layers = num_hidden_layers();
  std::vector<bool> flags = metadata().flags(key(k));
  if (flags.size() < layers) {
    metadata().fail(key(k), std::to_string(flags.size()) + " flags",
                    std::to_string(layers) + ", one a layer");
  }
  flags.resize(layers);
  return flags;
}

bool GgufReader::has_in_layers(std::string_view name) const {
  const auto is_it = [name](std::string_view tensor) {
    constexpr std::string_view layer = "blk.";
    if (!tensor.starts_with(layer)) return false;
    tensor.remove_prefix(layer.size());
    const std::size_t dot = tensor.find('.');
    return dot != std::string_view::npos && tensor.substr(dot + 1) == name;
  };
  return std::any_of(file_.tensors.begin(), file_.tensors.end(),
                     [&](const StoredTensor& t) { return is_it(t.name); });
}

std::vector<bool> GgufReader::layers_with(std::string_view name) const {
  std::vector<bool> found;
  for (std::uint64_t i = 0; i < num_hidden_layers(); ++i) {
    found.push_back(has_tensor("blk." + std::to_string(i) + "." + std::string(name)));
  }
  return found;
}

std::vector<bool> GgufReader::attending_layers() const {
  std::vector<bool> attends;
  for (const std::uint64_t heads : by_layer("attention.head_count_kv", 0)) {
    attends.push_back(heads > 0);
  }
  return attends;
}

std::vector<bool> GgufReader::windowed_layers(std::uint64_t usual) const {
  constexpr const char* k = "attention.sliding_window_pattern";
  const std::uint64_t layers = num_hidden_layers();
  if (has(k) && metadata().is_array(key(k))) return flags(k);
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
  if (heads == 0) metadata().fail(key("attention.head_count"), "0", "a number above 0");
  if (hidden == 0 || hidden % heads != 0) {
    metadata().fail(key("embedding_length"), std::to_string(hidden),
                    "a multiple of the " + std::to_string(heads) + " attention heads");
  }
  return hidden / heads;
}

std::uint64_t GgufReader::rows(std::string_view name, std::string_view what) const {
  const StoredTensor* tensor = file_.find(name);
  if (tensor == nullptr || tensor->shape.size() != 2) {
    throw Error(file_.file->path() + ": tensor " + std::string(name),
                tensor == nullptr ? "none" : std::to_string(tensor->shape.size()) + " dimensions",
                std::string(what));
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
