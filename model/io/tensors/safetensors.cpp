#include "model/io/tensors/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <type_traits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/units.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors_header.h"

namespace kvcast {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t max_header_bytes = 100'000'000;  // the format's own limit

struct StoredType {
  const char* name;
  std::uint64_t bits;
  std::optional<DType> dtype;  ///< none: known, but not read
};

// huggingface/safetensors: safetensors/src/tensor.rs, enum Dtype.
constexpr std::array stored_types{
    StoredType{"F32", 32, DType::FP32},  StoredType{"F16", 16, DType::FP16},
    StoredType{"BF16", 16, DType::BF16}, StoredType{"F64", 64, DType::FP64},
    StoredType{"I64", 64, {}},           StoredType{"I32", 32, {}},
    StoredType{"I16", 16, {}},           StoredType{"I8", 8, {}},
    StoredType{"U64", 64, {}},           StoredType{"U32", 32, {}},
    StoredType{"U16", 16, {}},           StoredType{"U8", 8, {}},
    StoredType{"BOOL", 8, {}},           StoredType{"C64", 64, {}},
    StoredType{"F8_E4M3", 8, {}},        StoredType{"F8_E5M2", 8, {}},
    StoredType{"F8_E4M3FNUZ", 8, {}},    StoredType{"F8_E5M2FNUZ", 8, {}},
    StoredType{"F8_E8M0", 8, {}},        StoredType{"F6_E2M3", 6, {}},
    StoredType{"F6_E3M2", 6, {}},        StoredType{"F4", 4, {}},
};

const StoredType& type_of(const SafetensorsEntry& entry, const std::string& place) {
  for (const StoredType& type : stored_types) {
    if (entry.dtype == type.name) return type;
  }
  throw Error(place + ": dtype", shortened(entry.dtype),
              "F64, F32, F16, BF16 or another known type");
}

/// Throws Error when the shape's bytes overflow or are not those the offsets enclose.
void check_size(const SafetensorsEntry& entry, const StoredType& type, const std::string& place) {
  std::uint64_t bits = type.bits;
  bool overflow = false;
  for (const std::uint64_t extent : entry.shape) {
    overflow = __builtin_mul_overflow(bits, extent, &bits) || overflow;
  }
  // A zero anywhere makes the tensor empty, whatever the product before it did.
  if (std::find(entry.shape.begin(), entry.shape.end(), 0u) != entry.shape.end()) {
    overflow = false;
    bits = 0;
  }
  const std::uint64_t stored = entry.data_offsets[1] - entry.data_offsets[0];
  if (overflow || bits % 8 != 0 || bits / 8 != stored) {
    const std::string expected = overflow ? "a shape whose bytes fit 64 bits"
                                          : std::to_string(bits / 8) + " as its shape demands";
    throw Error(place + ": data_offsets", std::to_string(stored) + " bytes", expected);
  }
}

/// The buffer must be covered without gap or overlap: a file can hide nothing.
void check_coverage(const std::vector<SafetensorsEntry>& entries, std::uint64_t buffer_bytes,
                    const std::string& path) {
  std::uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.data_offsets[0] != end) {
      throw Error(path + ": tensor " + shortened(entry.name) + ": data_offsets",
                  "a begin at byte " + std::to_string(entry.data_offsets[0]),
                  "byte " + std::to_string(end) + ", where the tensor before it ends");
    }
    end = entry.data_offsets[1];
  }
  if (end != buffer_bytes) {
    throw Error(path, std::to_string(buffer_bytes) + " bytes after the header",
                std::to_string(end) + ", where the last tensor ends");
  }
}

/// The header's bytes, after their length.
std::span<const std::byte> header_of(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() < length_bytes) {
    throw Error(file.path(), std::to_string(bytes.size()) + " bytes",
                "a safetensors file, which starts with 8 bytes of header length");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), length_bytes);
  if (length > max_header_bytes || length > bytes.size() - length_bytes) {
    throw Error(file.path() + ": header length", std::to_string(length),
                "at most 100000000 and the file's " + std::to_string(bytes.size()) + " bytes");
  }
  return bytes.subspan(length_bytes, length);
}

/// "model-00001-of-00002.safetensors" and nothing that leads out of the folder.
bool is_plain_name(const std::string& name) {
  const bool is_odd = std::any_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
  });
  return !name.empty() && name != "." && name != ".." && !is_odd;
}

void append(StoredTensors& all, StoredTensors part) {
  std::move(part.tensors.begin(), part.tensors.end(), std::back_inserter(all.tensors));
  std::move(part.skipped.begin(), part.skipped.end(), std::back_inserter(all.skipped));
}

/// Those tensors of a shard that the index places there: a copy elsewhere does not count.
StoredTensors read_shard(const fs::path& path, const std::set<std::string>& names,
                         const std::string& index) {
  StoredTensors shard = read_safetensors(MappedFile::open(path));
  std::set<std::string> missing = names;
  const auto is_elsewhere = [&](const auto& tensor) { return missing.erase(tensor.name) == 0; };
  std::erase_if(shard.tensors, is_elsewhere);
  std::erase_if(shard.skipped, is_elsewhere);
  if (!missing.empty()) {
    throw Error(path.string() + ": has no tensor " + shortened(*missing.begin()) + ", which " +
                index + " places there");
  }
  return shard;
}

StoredTensors read_shards(const fs::path& folder, const fs::path& index) {
  const nlohmann::json document = read_json_file(index);
  const JsonObject map = JsonObject(document, index.string()).object("weight_map");
  std::map<std::string, std::set<std::string>> tensors_of;
  for (const std::string& tensor : map.keys()) {
    const std::string shard = map.text(tensor);
    if (!is_plain_name(shard)) map.fail(tensor, "the name of a file in the same folder");
    tensors_of[shard].insert(tensor);
  }
  StoredTensors all;
  for (const auto& [shard, names] : tensors_of) {
    std::error_code ec;
    if (!fs::exists(folder / shard, ec)) {
      throw Error(index.string() + ": names " + shard + ", which is not in the folder");
    }
    append(all, read_shard(folder / shard, names, index.string()));
  }
  return all;
}

const StoredType& type_of(const TensorToWrite& tensor) {
  for (const StoredType& type : stored_types) {
    if (type.dtype == tensor.dtype) return type;
  }
  throw Error("tensor " + shortened(tensor.name), "dtype " + std::string(name(tensor.dtype)),
              "fp64, fp32, fp16 or bf16, which safetensors files hold");
}

std::uint64_t elements_of(const TensorToWrite& tensor) {
  StoredTensor stored;
  stored.shape = tensor.shape;
  return stored.elements();
}

/// A binary type of 16 bits. The exponent's bias is 1 - min_exponent (IEEE 754).
struct HalfType {
  int fraction_bits;
  int min_exponent;  ///< of normal numbers
  double largest;
};
constexpr HalfType fp16_type{10, -14, 65504};
constexpr HalfType bf16_type{7, -126, 0x1.fep127};

/// The bits of the nearest number, ties to even; none when x is NaN or nearer to the power of two
/// that the type's exponents end before.
std::optional<std::uint16_t> half_bits(double x, const HalfType& type) {
  constexpr int double_bits = std::numeric_limits<double>::digits - 1;
  const double magnitude = std::abs(x);
  if (!(magnitude <= 2 * type.largest)) return {};
  const int exponent =
      magnitude > 0 ? std::max(std::ilogb(magnitude), type.min_exponent) : type.min_exponent;
  // The last bit of this power of two is worth one step of the type, and so is the sum's.
  const double aligned = magnitude + std::ldexp(1.0, exponent - type.fraction_bits + double_bits);
  const std::uint64_t steps =
      std::bit_cast<std::uint64_t>(aligned) & ((std::uint64_t{1} << double_bits) - 1);
  // The steps of a normal number hold its leading bit, which adds 1 to the exponent.
  const std::uint64_t bits =
      (static_cast<std::uint64_t>(exponent - type.min_exponent) << type.fraction_bits) + steps;
  const std::uint64_t infinity = std::uint64_t{0x7fff} >> type.fraction_bits << type.fraction_bits;
  if (bits >= infinity) return {};
  return static_cast<std::uint16_t>(bits | (std::signbit(x) ? 0x8000 : 0));
}

Error no_number_of(const TensorToWrite& tensor, std::uint64_t element, double value,
                   double largest) {
  return {fmt::format("tensor {}, element {}", shortened(tensor.name), element),
          fmt::format("{}", value),
          fmt::format("a number of {}, at most {}", name(tensor.dtype), largest)};
}

template <typename N>
std::string encoded(const TensorToWrite& tensor, std::uint64_t first, std::span<const N> numbers) {
  const DType own = std::is_same_v<N, float> ? DType::FP32 : DType::FP64;
  if (tensor.dtype == own) {
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()};
  }
  std::string bytes;
  const auto append_all = [&](double largest, const auto& convert) {
    bytes.reserve(numbers.size() * sizeof(*convert(0)));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto value = convert(numbers[i]);
      if (!value) throw no_number_of(tensor, first + i, numbers[i], largest);
      bytes.append(reinterpret_cast<const char*>(&*value), sizeof *value);
    }
  };
  const auto finite = [](auto x) { return std::isfinite(x) ? std::optional(x) : std::nullopt; };
  switch (tensor.dtype) {
    case DType::FP64:
      append_all(std::numeric_limits<double>::max(), [&](double x) { return finite(x); });
      break;
    case DType::FP32:
      append_all(std::numeric_limits<float>::max(),
                 [&](double x) { return finite(static_cast<float>(x)); });
      break;
    default: {
      const HalfType& type = tensor.dtype == DType::FP16 ? fp16_type : bf16_type;
      append_all(type.largest, [&](double x) { return half_bits(x, type); });
    }
  }
  return bytes;
}

}  // namespace

StoredTensors read_safetensors(std::shared_ptr<const MappedFile> file) {
  const std::string& path = file->path();
  const std::span<const std::byte> header = header_of(*file);
  if (header.empty() || header[0] != std::byte{'{'}) {
    throw Error(path, "a header that does not start with '{'", "a safetensors file");
  }
  const std::span<const std::byte> buffer = file->bytes().subspan(length_bytes + header.size());
  std::vector<SafetensorsEntry> entries = parse_safetensors_header(header, path);
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.data_offsets < b.data_offsets; });

  StoredTensors result;
  for (const SafetensorsEntry& entry : entries) {
    const auto [begin, end] = entry.data_offsets;
    const std::string place = path + ": tensor " + shortened(entry.name);
    if (begin > end || end > buffer.size()) {
      throw Error(
          place + ": data_offsets", std::to_string(begin) + ", " + std::to_string(end),
          "an ascending pair up to the buffer's " + std::to_string(buffer.size()) + " bytes");
    }
    const StoredType& type = type_of(entry, place);
    check_size(entry, type, place);
  }
  check_coverage(entries, buffer.size(), path);
  for (SafetensorsEntry& entry : entries) {
    const auto [begin, end] = entry.data_offsets;
    const std::optional<DType> dtype = type_of(entry, path).dtype;
    if (dtype) {
      result.tensors.push_back({std::move(entry.name), *dtype, std::move(entry.shape),
                                buffer.subspan(begin, end - begin), file});
    } else {
      result.skipped.push_back(
          {std::move(entry.name), std::move(entry.dtype), std::move(entry.shape), file});
    }
  }
  return result;
}

StoredTensors read_safetensors_folder(const fs::path& folder) {
  std::error_code ec;
  if (!fs::is_directory(folder, ec)) {
    throw Error(folder.string() + ": no folder; expected one with safetensors files");
  }
  const fs::path whole = folder / "model.safetensors";
  if (fs::exists(whole, ec)) return read_safetensors(MappedFile::open(whole));
  const fs::path index = folder / "model.safetensors.index.json";
  if (fs::exists(index, ec)) return read_shards(folder, index);

  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder, ec)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  if (files.size() != 1) {
    throw Error(folder.string(), std::to_string(files.size()) + " *.safetensors files",
                "model.safetensors, model.safetensors.index.json or a single file");
  }
  return read_safetensors(MappedFile::open(files.front()));
}

std::string safetensors_header(const std::vector<TensorToWrite>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"]["format"] = "pt";  // transformers refuses files that do not say it
  std::uint64_t end = 0;
  for (const TensorToWrite& tensor : tensors) {
    const StoredType& type = type_of(tensor);
    const std::uint64_t begin = end;
    end = checked_add(end, checked_multiply(elements_of(tensor), type.bits / 8));
    header[tensor.name] = {
        {"dtype", type.name}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  KVCAST_ASSERT(header.size() == tensors.size() + 1);
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::string bytes;
  bytes.append(reinterpret_cast<const char*>(&length), length_bytes);
  return bytes + text;
}

std::string safetensors_data(const TensorToWrite& tensor, std::uint64_t first) {
  type_of(tensor);
  return std::visit([&](const auto& numbers) { return encoded(tensor, first, numbers); },
                    tensor.data);
}

std::string safetensors_bytes(const std::vector<TensorToWrite>& tensors) {
  std::string bytes = safetensors_header(tensors);
  for (const TensorToWrite& tensor : tensors) {
    const std::uint64_t given =
        std::visit([](const auto& data) { return data.size(); }, tensor.data);
    KVCAST_ASSERT(given == elements_of(tensor));
    bytes += safetensors_data(tensor);
  }
  return bytes;
}

}  // namespace kvcast
