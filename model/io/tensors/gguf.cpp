#include "model/io/tensors/gguf.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "model/base/error.h"
#include "model/io/tensors/mapped_file.h"

namespace kvcast {
namespace {

constexpr std::uint32_t max_type = 12;  // GgufType::Float64
constexpr int max_array_depth = 4;
constexpr std::uint64_t max_name_bytes = 65535;
constexpr std::uint32_t max_dims = 4;  // GGML_MAX_DIMS
constexpr std::uint64_t max_alignment = 1u << 20;
/// Length, type and the smallest value; length, dims, type and offset.
constexpr std::uint64_t min_value_bytes = 8 + 4 + 1;
constexpr std::uint64_t min_tensor_bytes = 8 + 4 + 4 + 8;

struct GgmlType {
  std::uint32_t id;
  const char* name;
  std::uint64_t block_elements;
  std::uint64_t block_bytes;
  std::optional<DType> dtype;  ///< none: known, but not read
};

// ggml-org/ggml: include/ggml.h, enum ggml_type, and src/ggml-common.h.
constexpr std::array ggml_types{
    GgmlType{0, "F32", 1, 4, DType::FP32},
    GgmlType{1, "F16", 1, 2, DType::FP16},
    GgmlType{2, "Q4_0", 32, 18, DType::Q4_0},
    GgmlType{3, "Q4_1", 32, 20, DType::Q4_1},
    GgmlType{6, "Q5_0", 32, 22, {}},
    GgmlType{7, "Q5_1", 32, 24, {}},
    GgmlType{8, "Q8_0", 32, 34, DType::Q8_0},
    GgmlType{9, "Q8_1", 32, 36, {}},
    GgmlType{10, "Q2_K", 256, 84, {}},
    GgmlType{11, "Q3_K", 256, 110, {}},
    GgmlType{12, "Q4_K", 256, 144, DType::Q4_K},
    GgmlType{13, "Q5_K", 256, 176, {}},
    GgmlType{14, "Q6_K", 256, 210, DType::Q6_K},
    GgmlType{15, "Q8_K", 256, 292, {}},
    GgmlType{16, "IQ2_XXS", 256, 66, {}},
    GgmlType{17, "IQ2_XS", 256, 74, {}},
    GgmlType{18, "IQ3_XXS", 256, 98, {}},
    GgmlType{19, "IQ1_S", 256, 50, {}},
    GgmlType{20, "IQ4_NL", 32, 18, {}},
    GgmlType{21, "IQ3_S", 256, 110, {}},
    GgmlType{22, "IQ2_S", 256, 82, {}},
    GgmlType{23, "IQ4_XS", 256, 136, {}},
    GgmlType{24, "I8", 1, 1, {}},
    GgmlType{25, "I16", 1, 2, {}},
    GgmlType{26, "I32", 1, 4, {}},
    GgmlType{27, "I64", 1, 8, {}},
    GgmlType{28, "F64", 1, 8, {}},
    GgmlType{29, "IQ1_M", 256, 56, {}},
    GgmlType{30, "BF16", 1, 2, DType::BF16},
    GgmlType{34, "TQ1_0", 256, 54, {}},
    GgmlType{35, "TQ2_0", 256, 66, {}},
    GgmlType{39, "MXFP4", 32, 17, {}},
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Reads on from a place in the file; what would leave the file is an error at that byte.
class Cursor {
 public:
  explicit Cursor(const MappedFile& file) : file_(file) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return file_.bytes().size() - position_; }

  std::span<const std::byte> take(std::uint64_t bytes, std::string_view what) {
    if (bytes > remaining()) {
      throw Error(file_.path() + ": byte " + std::to_string(position_),
                  std::string(what) + " of " + std::to_string(bytes) + " bytes",
                  "at most the " + std::to_string(remaining()) + " that the file still has");
    }
    const auto taken = file_.bytes().subspan(position_, bytes);
    position_ += bytes;
    return taken;
  }

  template <typename T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }

  std::span<const std::byte> text(std::string_view what) {
    return take(number<std::uint64_t>(what), what);
  }

  /// A key or a tensor's name.
  std::string_view name(std::string_view what) {
    const std::span<const std::byte> bytes = text(what);
    if (bytes.empty() || bytes.size() > max_name_bytes) {
      throw Error(file_.path() + ": byte " + std::to_string(position_ - bytes.size()),
                  std::string(what) + " of " + std::to_string(bytes.size()) + " bytes",
                  "1 to 65535");
    }
    return text_of(bytes);
  }

  /// The number of things that follow, each at least `min_bytes` long.
  std::uint64_t count(std::string_view what, std::uint64_t min_bytes) {
    const auto claimed = number<std::uint64_t>(what);
    if (claimed > remaining() / min_bytes) {
      throw Error(
          file_.path() + ": " + std::string(what), std::to_string(claimed),
          "as many as the file's " + std::to_string(file_.bytes().size()) + " bytes can hold");
    }
    return claimed;
  }

 private:
  const MappedFile& file_;
  std::uint64_t position_ = 0;
};

GgufType read_type(Cursor& cursor, const std::string& place) {
  const auto type = cursor.number<std::uint32_t>("a value's type");
  if (type > max_type) throw Error(place, "value type " + std::to_string(type), "0 to 12");
  return static_cast<GgufType>(type);
}

void check_booleans(std::span<const std::byte> bytes, const std::string& place) {
  const auto is_boolean = [](std::byte b) { return b <= std::byte{1}; };
  if (!std::all_of(bytes.begin(), bytes.end(), is_boolean)) {
    throw Error(place, "a boolean other than 0 and 1", "true or false");
  }
}

GgufValue read_array(Cursor& cursor, const std::string& place, int depth);

GgufValue read_value(Cursor& cursor, GgufType type, const std::string& place, int depth = 0) {
  if (type == GgufType::Array) return read_array(cursor, place, depth + 1);
  GgufValue value;
  value.type = type;
  value.bytes = type == GgufType::String ? cursor.text("a string")
                                         : cursor.take(gguf_bytes(type), "a number");
  if (type == GgufType::Bool) check_booleans(value.bytes, place);
  return value;
}

GgufValue read_array(Cursor& cursor, const std::string& place, int depth) {
  if (depth > max_array_depth) {
    throw Error(place, "arrays nested deeper than " + std::to_string(max_array_depth),
                "a flat array");
  }
  GgufValue value;
  value.type = GgufType::Array;
  value.element = read_type(cursor, place);
  const std::uint64_t element_bytes = gguf_bytes(value.element);
  // A string starts with its length, an array with a type and a length.
  const std::uint64_t min_bytes = value.element == GgufType::Array ? 12 : 8;
  value.length = cursor.count("an array's length", element_bytes > 0 ? element_bytes : min_bytes);
  Cursor walk = cursor;
  if (element_bytes > 0) {
    walk.take(value.length * element_bytes, "an array");
  } else {
    for (std::uint64_t i = 0; i < value.length; ++i) read_value(walk, value.element, place, depth);
  }
  value.bytes = cursor.take(walk.position() - cursor.position(), "an array");
  if (value.element == GgufType::Bool) check_booleans(value.bytes, place);
  return value;
}

void check_header(Cursor& cursor, const std::string& path) {
  if (cursor.remaining() < 8 || text_of(cursor.take(4, "the magic")) != "GGUF") {
    throw Error(path, "a file that does not start with 'GGUF'", "a GGUF file");
  }
  const auto version = cursor.number<std::uint32_t>("the version");
  // The version is small: on the wrong side of the word, it is one of the other byte order.
  if ((version & 0xffffu) == 0) {
    throw Error(path, "a big-endian GGUF file", "a little-endian one");
  }
  if (version != 2 && version != 3) {
    throw Error(path, "GGUF version " + std::to_string(version), "version 2 or 3");
  }
}

struct TensorInfo {
  std::string_view name;
  std::vector<std::uint64_t> shape;
  std::uint32_t type = 0;
  const GgmlType* ggml_type = nullptr;  ///< null: a type of a later version
  std::uint64_t offset = 0;             ///< from the start of the data
  std::uint64_t bytes = 0;              ///< 0 for unknown types
};

const GgmlType* find_type(std::uint32_t id) {
  const auto it = std::find_if(ggml_types.begin(), ggml_types.end(),
                               [id](const GgmlType& type) { return type.id == id; });
  return it == ggml_types.end() ? nullptr : &*it;
}

/// Throws Error when a row is no whole number of blocks or the size overflows.
std::uint64_t bytes_of(const TensorInfo& info, const std::string& place) {
  const GgmlType& type = *info.ggml_type;
  const std::uint64_t row = info.shape.empty() ? 1 : info.shape.back();
  if (row % type.block_elements != 0) {
    throw Error(place, "rows of " + std::to_string(row) + " elements",
                "multiples of the " + std::to_string(type.block_elements) + " of a " + type.name +
                    " block");
  }
  std::uint64_t bytes = row / type.block_elements;
  bool overflow = __builtin_mul_overflow(bytes, type.block_bytes, &bytes);
  for (std::size_t i = 0; i + 1 < info.shape.size(); ++i) {
    overflow = __builtin_mul_overflow(bytes, info.shape[i], &bytes) || overflow;
  }
  if (overflow) throw Error(place, "a size above 2^64 bytes", "a shape that fits the file");
  return bytes;
}

TensorInfo read_tensor_info(Cursor& cursor, const std::string& path) {
  TensorInfo info;
  info.name = cursor.name("a tensor's name");
  const std::string place = path + ": tensor " + shortened(info.name);
  const auto dims = cursor.number<std::uint32_t>("a number of dimensions");
  if (dims > max_dims) throw Error(place, std::to_string(dims) + " dimensions", "at most 4");
  for (std::uint32_t i = 0; i < dims; ++i) {
    info.shape.push_back(cursor.number<std::uint64_t>("a dimension"));
  }
  std::reverse(info.shape.begin(), info.shape.end());  // the file has the innermost first
  info.type = cursor.number<std::uint32_t>("a tensor's type");
  info.offset = cursor.number<std::uint64_t>("a tensor's offset");
  info.ggml_type = find_type(info.type);
  if (info.ggml_type != nullptr) info.bytes = bytes_of(info, place);
  return info;
}

std::uint64_t alignment_of(const GgufMetadata& metadata) {
  const std::uint64_t alignment = metadata.whole_or("general.alignment", 32);
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > max_alignment) {
    metadata.fail("general.alignment", std::to_string(alignment), "a power of two up to 2^20");
  }
  return alignment;
}

/// Throws Error when a tensor leaves the data, is not aligned or shares bytes with another.
void check_layout(const std::vector<TensorInfo>& infos, std::uint64_t data_bytes,
                  std::uint64_t alignment, const std::string& path) {
  std::vector<const TensorInfo*> by_offset;
  for (const TensorInfo& info : infos) {
    const std::string place = path + ": tensor " + shortened(info.name);
    if (info.offset % alignment != 0) {
      throw Error(place, "offset " + std::to_string(info.offset),
                  "a multiple of the alignment, " + std::to_string(alignment));
    }
    if (info.offset > data_bytes || info.bytes > data_bytes - info.offset) {
      throw Error(place,
                  std::to_string(info.bytes) + " bytes from offset " + std::to_string(info.offset),
                  "a place in the file's " + std::to_string(data_bytes) + " bytes of data");
    }
    if (info.bytes > 0) by_offset.push_back(&info);
  }
  std::sort(by_offset.begin(), by_offset.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < by_offset.size(); ++i) {
    const TensorInfo& before = *by_offset[i - 1];
    if (before.offset + before.bytes <= by_offset[i]->offset) continue;
    throw Error(path + ": tensor " + shortened(by_offset[i]->name),
                "bytes that tensor " + shortened(before.name) + " has too", "bytes of its own");
  }
}

}  // namespace

const StoredTensor* GgufFile::find(std::string_view name) const {
  const auto it = std::find_if(stored.tensors.begin(), stored.tensors.end(),
                               [name](const StoredTensor& t) { return t.name == name; });
  return it == stored.tensors.end() ? nullptr : &*it;
}

bool GgufFile::has(std::string_view name) const {
  return find(name) != nullptr ||
         std::any_of(stored.skipped.begin(), stored.skipped.end(),
                     [name](const SkippedTensor& t) { return t.name == name; });
}

GgufFile read_gguf(std::shared_ptr<const MappedFile> file) {
  const std::string& path = file->path();
  Cursor cursor(*file);
  check_header(cursor, path);
  const std::uint64_t num_tensors = cursor.count("number of tensors", min_tensor_bytes);
  const std::uint64_t num_values = cursor.count("number of metadata values", min_value_bytes);

  std::map<std::string_view, GgufValue, std::less<>> values;
  for (std::uint64_t i = 0; i < num_values; ++i) {
    const std::string_view key = cursor.name("a metadata key");
    const std::string place = path + ": metadata " + shortened(key);
    const GgufType type = read_type(cursor, place);
    if (!values.emplace(key, read_value(cursor, type, place)).second) {
      throw Error(place, "the key twice", "each key once");
    }
  }
  GgufMetadata metadata(file, std::move(values));
  const std::uint64_t alignment = alignment_of(metadata);

  std::vector<TensorInfo> infos;
  std::unordered_set<std::string_view> names;
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    infos.push_back(read_tensor_info(cursor, path));
    if (!names.insert(infos.back().name).second) {
      throw Error(path + ": tensor " + shortened(infos.back().name), "the name twice",
                  "each name once");
    }
  }
  // The data starts at the next aligned byte; a file without tensors may end before it.
  const std::uint64_t padding = (alignment - cursor.position() % alignment) % alignment;
  cursor.take(std::min(padding, cursor.remaining()), "padding");
  const std::span<const std::byte> data = file->bytes().subspan(cursor.position());
  check_layout(infos, data.size(), alignment, path);

  GgufFile result{file, std::move(metadata), {}};
  for (TensorInfo& info : infos) {
    const bool is_read = info.ggml_type != nullptr && info.ggml_type->dtype;
    std::string name(info.name);
    if (is_read) {
      result.stored.tensors.push_back({std::move(name), *info.ggml_type->dtype,
                                       std::move(info.shape), data.subspan(info.offset, info.bytes),
                                       file});
    } else {
      const std::string type = info.ggml_type != nullptr ? std::string(info.ggml_type->name)
                                                         : "ggml type " + std::to_string(info.type);
      result.stored.skipped.push_back({std::move(name), type, std::move(info.shape), file});
    }
  }
  return result;
}

}  // namespace kvcast
