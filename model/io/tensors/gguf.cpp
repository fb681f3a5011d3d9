#include "model/io/tensors/gguf.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_set>
#include <utility>

#include "model/base/error.h"
#include "model/base/units.h"
#include "model/io/tensors/gguf_cursor.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/tensor_layout.h"

namespace kvcast {
namespace {

constexpr std::uint32_t max_dims = 4;  // GGML_MAX_DIMS
constexpr std::uint64_t max_alignment = 1u << 20;
/// Length, type and the smallest value; length, dims, type and offset.
constexpr std::uint64_t min_value_bytes = 8 + 4 + 1;
constexpr std::uint64_t min_tensor_bytes = 8 + 4 + 4 + 8;

struct GgmlType {
  std::uint32_t id;
  ElementType type;
};

// ggml-org/ggml: include/ggml.h, enum ggml_type, and src/ggml-common.h.
constexpr std::array ggml_types{
    GgmlType{0, {"F32", 32, DType::FP32}},
    GgmlType{1, {"F16", 16, DType::FP16}},
    GgmlType{2, {"Q4_0", 144, DType::Q4_0, 32}},
    GgmlType{3, {"Q4_1", 160, DType::Q4_1, 32}},
    GgmlType{6, {"Q5_0", 176, DType::Q5_0, 32}},
    GgmlType{7, {"Q5_1", 192, DType::Q5_1, 32}},
    GgmlType{8, {"Q8_0", 272, DType::Q8_0, 32}},
    GgmlType{9, {"Q8_1", 288, {}, 32}},
    GgmlType{10, {"Q2_K", 672, DType::Q2_K, 256}},
    GgmlType{11, {"Q3_K", 880, DType::Q3_K, 256}},
    GgmlType{12, {"Q4_K", 1152, DType::Q4_K, 256}},
    GgmlType{13, {"Q5_K", 1408, DType::Q5_K, 256}},
    GgmlType{14, {"Q6_K", 1680, DType::Q6_K, 256}},
    GgmlType{15, {"Q8_K", 2336, {}, 256}},
    GgmlType{16, {"IQ2_XXS", 528, {}, 256}},
    GgmlType{17, {"IQ2_XS", 592, {}, 256}},
    GgmlType{18, {"IQ3_XXS", 784, {}, 256}},
    GgmlType{19, {"IQ1_S", 400, {}, 256}},
    GgmlType{20, {"IQ4_NL", 144, DType::IQ4_NL, 32}},
    GgmlType{21, {"IQ3_S", 880, {}, 256}},
    GgmlType{22, {"IQ2_S", 656, {}, 256}},
    GgmlType{23, {"IQ4_XS", 1088, DType::IQ4_XS, 256}},
    GgmlType{24, {"I8", 8}},
    GgmlType{25, {"I16", 16}},
    GgmlType{26, {"I32", 32}},
    GgmlType{27, {"I64", 64}},
    GgmlType{28, {"F64", 64}},
    GgmlType{29, {"IQ1_M", 448, {}, 256}},
    GgmlType{30, {"BF16", 16, DType::BF16}},
    // For some processors' kernels, until December 2024.
    GgmlType{31, {"Q4_0_4_4", 144, {}, 32}},
    GgmlType{32, {"Q4_0_4_8", 144, {}, 32}},
    GgmlType{33, {"Q4_0_8_8", 144, {}, 32}},
    GgmlType{34, {"TQ1_0", 432, {}, 256}},
    GgmlType{35, {"TQ2_0", 528, {}, 256}},
    GgmlType{39, {"MXFP4", 136, DType::MXFP4, 32}},
    GgmlType{40, {"NVFP4", 288, {}, 64}},
    GgmlType{41, {"Q1_0", 144, {}, 128}},
    GgmlType{42, {"Q2_0", 144, {}, 64}},
};

void check_header(GgufCursor& cursor) {
  constexpr std::string_view magic = "GGUF";
  const auto starts = [&] {
    const auto bytes = cursor.take(magic.size(), "the magic");
    return std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
  };
  if (cursor.remaining() < 8 || !starts()) {
    throw Error(cursor.path(), "a file that does not start with 'GGUF'", "a GGUF file");
  }
  const auto version = cursor.number<std::uint32_t>("the version");
  // Versions are small: one whose low half is 0 is written in the other byte order.
  if ((version & 0xffffu) == 0) {
    throw Error(cursor.path(), "a big-endian GGUF file", "a little-endian one");
  }
  if (version != 2 && version != 3) {
    throw Error(cursor.path(), "GGUF version " + std::to_string(version), "version 2 or 3");
  }
}

TensorEntry read_tensor_entry(GgufCursor& cursor, std::uint64_t alignment) {
  TensorEntry entry;
  entry.name = cursor.name("a tensor's name");
  const std::string place = cursor.path() + ": tensor " + shortened(entry.name);
  const auto dims = cursor.number<std::uint32_t>("a number of dimensions");
  if (dims > max_dims) throw Error(place, std::to_string(dims) + " dimensions", "at most 4");
  for (std::uint32_t i = 0; i < dims; ++i) {
    entry.shape.push_back(cursor.number<std::uint64_t>("a dimension"));
  }
  std::reverse(entry.shape.begin(), entry.shape.end());  // the file has the innermost first
  const auto id = cursor.number<std::uint32_t>("a tensor's type");
  const auto known = std::find_if(ggml_types.begin(), ggml_types.end(),
                                  [id](const GgmlType& type) { return type.id == id; });
  if (known != ggml_types.end()) {
    entry.type = known->type.name;
    entry.dtype = known->type.dtype;
    entry.bytes = bytes_of(entry.shape, known->type, place);
  } else {
    entry.type = "ggml type " + std::to_string(id);  // of a later version: its size is unknown
  }
  entry.begin = cursor.number<std::uint64_t>("a tensor's offset");
  if (entry.begin % alignment != 0) {
    throw Error(place, "offset " + std::to_string(entry.begin),
                "a multiple of the alignment, " + std::to_string(alignment));
  }
  return entry;
}

/// As it lies in a file.
template <typename T>
void append(std::string& bytes, T number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}
void append_text(std::string& bytes, std::string_view text) {
  append(bytes, std::uint64_t{text.size()});
  bytes += text;
}

std::uint64_t aligned(std::uint64_t bytes, std::uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

const StoredTensor* GgufFile::find(std::string_view name) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [name](const StoredTensor& t) { return t.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

GgufFile read_gguf(std::shared_ptr<const MappedFile> file) {
  GgufCursor cursor(file->bytes(), file->path());
  check_header(cursor);
  const std::uint64_t num_tensors = cursor.count("number of tensors", min_tensor_bytes);
  const std::uint64_t num_values = cursor.count("number of metadata values", min_value_bytes);
  GgufFile result{file, GgufMetadata(file, cursor, num_values), {}};
  const std::uint64_t alignment = gguf_alignment(result.metadata);

  std::vector<TensorEntry> entries;
  std::unordered_set<std::string> names;
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    entries.push_back(read_tensor_entry(cursor, alignment));
    if (!names.insert(entries.back().name).second) {
      throw Error(file->path() + ": tensor " + shortened(entries.back().name), "the name twice",
                  "each name once");
    }
  }
  // The data starts at the next aligned byte; a file without tensors may end before it.
  const std::uint64_t padding = (alignment - cursor.position() % alignment) % alignment;
  cursor.take(std::min(padding, cursor.remaining()), "padding");
  result.tensors =
      lay_out(std::move(entries), file->bytes().subspan(cursor.position()), Gaps::Allowed, file);
  return result;
}

std::uint64_t gguf_alignment(const GgufMetadata& metadata) {
  const std::uint64_t alignment = metadata.whole_or("general.alignment", 32);
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > max_alignment) {
    metadata.fail("general.alignment", std::to_string(alignment), "a power of two up to 2^20");
  }
  return alignment;
}

std::string_view ggml_type_name(DType dtype) {
  for (const GgmlType& known : ggml_types) {
    if (known.type.dtype == dtype) return known.type.name;
  }
  throw Error("a tensor of a GGUF file", "dtype " + std::string(name(dtype)),
              "one of llama.cpp's types");
}

std::string gguf_value(std::string_view key, std::uint32_t number) {
  constexpr std::uint32_t uint32 = 4;
  std::string bytes;
  append_text(bytes, key);
  append(bytes, uint32);
  append(bytes, number);
  return bytes;
}

std::string gguf_header(const std::vector<std::string>& values,
                        const std::vector<GgufTensor>& tensors, std::uint64_t alignment) {
  std::string bytes = "GGUF";
  append(bytes, std::uint32_t{3});
  append(bytes, std::uint64_t{tensors.size()});
  append(bytes, std::uint64_t{values.size()});
  for (const std::string& value : values) bytes += value;
  std::uint64_t offset = 0;
  for (const GgufTensor& t : tensors) {
    const auto known = std::find_if(ggml_types.begin(), ggml_types.end(),
                                    [&](const GgmlType& type) { return type.type.name == t.type; });
    if (known == ggml_types.end()) {
      throw Error("tensor " + shortened(t.name), "element type " + t.type,
                  "a type that kvcast knows");
    }
    append_text(bytes, t.name);
    append(bytes, static_cast<std::uint32_t>(t.shape.size()));
    for (auto dim = t.shape.rbegin(); dim != t.shape.rend(); ++dim) append(bytes, *dim);
    append(bytes, known->id);
    append(bytes, offset);
    offset = aligned(checked_add(offset, t.bytes), alignment);
  }
  bytes.resize(aligned(bytes.size(), alignment), '\0');
  return bytes;
}

}  // namespace kvcast
