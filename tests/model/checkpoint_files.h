/// Checkpoint files built in memory, byte by byte as their formats say.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/io/tensors/mapped_file.h"

namespace kvcast {

/// A number as it lies in a little-endian file.
template <typename T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

template <typename T>
std::string raw_list(const std::vector<T>& values) {
  std::string bytes;
  for (const T value : values) bytes += raw(value);
  return bytes;
}

inline std::shared_ptr<const MappedFile> in_memory(const std::string& content,
                                                   std::string name = "test-file") {
  const auto* bytes = reinterpret_cast<const std::byte*>(content.data());
  return MappedFile::from_bytes(std::move(name), {bytes, bytes + content.size()});
}

/// A safetensors file of any header, right or wrong.
inline std::string safetensors_file(const std::string& header, const std::string& buffer) {
  return raw(std::uint64_t{header.size()}) + header + buffer;
}

inline std::string gguf_text(std::string_view text) {
  return raw(std::uint64_t{text.size()}) + std::string(text);
}

/// Numbers of value types in GGUF files.
namespace gguf_id {
inline constexpr std::uint32_t uint8 = 0, int8 = 1, uint16 = 2, int16 = 3, uint32 = 4, int32 = 5,
                               float32 = 6, boolean = 7, string = 8, array = 9, uint64 = 10,
                               int64 = 11, float64 = 12;
}  // namespace gguf_id

/// Numbers of tensor types in GGUF files.
namespace ggml_id {
inline constexpr std::uint32_t f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q8_0 = 8, q4_k = 12, q5_k = 13,
                               q6_k = 14, iq3_s = 21, bf16 = 30, mxfp4 = 39;
}  // namespace ggml_id

/// A GGUF file. Tensors are laid out in the order they are added, unless one names its offset.
class GgufWriter {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  ///< of the layout; metadata must say it when it is not 32

  void value(std::string_view key, std::uint32_t type, const std::string& bytes) {
    values_ += gguf_text(key) + raw(type) + bytes;
    ++num_values_;
  }
  void text(std::string_view key, std::string_view content) {
    value(key, gguf_id::string, gguf_text(content));
  }
  void whole(std::string_view key, std::uint32_t number) {
    value(key, gguf_id::uint32, raw(number));
  }
  void number(std::string_view key, float number) { value(key, gguf_id::float32, raw(number)); }
  void texts(std::string_view key, const std::vector<std::string>& contents) {
    std::string bytes = raw(gguf_id::string) + raw(std::uint64_t{contents.size()});
    for (const std::string& content : contents) bytes += gguf_text(content);
    value(key, gguf_id::array, bytes);
  }
  template <typename T>
  void list(std::string_view key, std::uint32_t element, const std::vector<T>& numbers) {
    value(key, gguf_id::array,
          raw(element) + raw(std::uint64_t{numbers.size()}) + raw_list(numbers));
  }

  /// Shape innermost first, as the file has it.
  void tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
              const std::string& bytes) {
    tensor_at(name, dims, type, data_.size());
    data_ += bytes;
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
  }
  void tensor_at(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                 std::uint64_t offset) {
    infos_ += gguf_text(name) + raw(static_cast<std::uint32_t>(dims.size())) + raw_list(dims) +
              raw(type) + raw(offset);
    ++num_tensors_;
  }
  /// An F32 tensor of zeros.
  void zeros(std::string_view name, const std::vector<std::uint64_t>& dims) {
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : dims) elements *= extent;
    tensor(name, dims, ggml_id::f32, std::string(4 * elements, '\0'));
  }

  std::string bytes() const {
    std::string file =
        "GGUF" + raw(version) + raw(num_tensors_) + raw(num_values_) + values_ + infos_;
    file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data_;
  }

 private:
  std::string values_;
  std::string infos_;
  std::string data_;
  std::uint64_t num_values_ = 0;
  std::uint64_t num_tensors_ = 0;
};

struct GgufSizes {
  std::uint32_t layers = 3;
  std::uint32_t context = 100;
  std::uint32_t hidden = 24;
  std::uint32_t mlp = 40;
  std::uint32_t heads = 6;
  std::uint32_t vocabulary = 50;
};

/// What all files of llama.cpp's converter have.
inline GgufWriter decoder_file(const std::string& architecture, const GgufSizes& sizes = {}) {
  GgufWriter w;
  w.text("general.architecture", architecture);
  w.text("general.name", "Test model");
  w.whole(architecture + ".block_count", sizes.layers);
  w.whole(architecture + ".context_length", sizes.context);
  w.whole(architecture + ".embedding_length", sizes.hidden);
  w.whole(architecture + ".feed_forward_length", sizes.mlp);
  w.whole(architecture + ".attention.head_count", sizes.heads);
  w.zeros("token_embd.weight", {sizes.hidden, sizes.vocabulary});
  return w;
}

}  // namespace kvcast
