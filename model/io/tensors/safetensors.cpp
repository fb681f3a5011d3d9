#include "model/io/tensors/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <type_traits>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/units.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/tensor_layout.h"

namespace kvcast {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t max_header_bytes = 100'000'000;  // the format's own limit

// huggingface/safetensors: safetensors/src/tensor.rs, enum Dtype.
constexpr std::array element_types{
    ElementType{"F32", 32, DType::FP32},
    ElementType{"F16", 16, DType::FP16},
    ElementType{"BF16", 16, DType::BF16},
    ElementType{"F64", 64, DType::FP64},
    ElementType{"I64", 64},
    ElementType{"I32", 32},
    ElementType{"I16", 16},
    ElementType{"I8", 8},
    ElementType{"U64", 64},
    ElementType{"U32", 32},
    ElementType{"U16", 16},
    ElementType{"U8", 8},
    ElementType{"BOOL", 8},
    ElementType{"C64", 64},
    ElementType{"F8_E4M3", 8},
    ElementType{"F8_E5M2", 8},
    ElementType{"F8_E4M3FNUZ", 8},
    ElementType{"F8_E5M2FNUZ", 8},
    ElementType{"F8_E8M0", 8},
    ElementType{"F6_E2M3", 6},
    ElementType{"F6_E3M2", 6},
    ElementType{"F4", 4},
};

const ElementType& type_named(std::string_view name, const std::string& place) {
  for (const ElementType& type : element_types) {
    if (type.name == name) return type;
  }
  throw Error(place, shortened(name), "F64, F32, F16, BF16 or another known type");
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
    throw Error(file.path(),
                "a header length of " + std::to_string(length) + " in a file of " +
                    std::to_string(bytes.size()) + " bytes",
                "a complete safetensors file, its header at most 100000000 bytes");
  }
  return bytes.subspan(length_bytes, length);
}

std::vector<std::uint64_t> whole_numbers(const JsonObject& entry, const char* key) {
  const json& list = entry.at(key);
  const bool is_whole = list.is_array() && std::all_of(list.begin(), list.end(), [](const json& n) {
                          return n.is_number_unsigned();
                        });
  if (!is_whole) entry.fail(key, "a list of whole numbers");
  return list.get<std::vector<std::uint64_t>>();
}

/// {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
TensorEntry read_entry(const json& value, const std::string& name, const std::string& place) {
  const JsonObject json_entry(value, place);
  TensorEntry entry;
  entry.name = name;
  entry.type = json_entry.text("dtype");
  const ElementType& type = type_named(entry.type, json_entry.place_of("dtype"));
  entry.dtype = type.dtype;
  entry.shape = whole_numbers(json_entry, "shape");
  entry.bytes = bytes_of(entry.shape, type, place);
  const std::vector<std::uint64_t> offsets = whole_numbers(json_entry, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    json_entry.fail("data_offsets", "two ascending numbers");
  }
  entry.begin = offsets[0];
  if (offsets[1] - offsets[0] != entry.bytes) {
    json_entry.fail("data_offsets", std::to_string(entry.bytes) + " bytes as the shape demands");
  }
  json_entry.reject_unknown_keys();
  return entry;
}

/// Reads entry by entry: a document of a 100 MB header would be large, and it would keep only the
/// last of two equal keys.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  std::vector<TensorEntry> entries;

  /// The parser's callback: false drops a value that has been read.
  bool operator()(int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    const bool starts = event == Event::object_start || event == Event::array_start;
    if (depth == 1 && event == Event::key) {
      name_ = value.get<std::string>();
      if (!names_.insert(name_).second) fail("its name twice", "each name once");
      keys_.clear();
    } else if (depth == 2 && event == Event::key) {
      const auto key = value.get<std::string>();
      if (!keys_.insert(key).second) fail("the key " + shortened(key) + " twice", "each key once");
    } else if (depth == 1 && event == Event::array_start) {
      fail("a list", "an object");
    } else if (starts && depth >= (event == Event::array_start ? 3 : 2)) {
      fail("lists or objects inside each other", "dtype, shape and data_offsets");
    } else if (starts) {
      list_length_ = 0;
    } else if (depth == 3 && ++list_length_ > max_list_length) {
      fail("a list of more than " + std::to_string(max_list_length) + " numbers", "a shape");
    } else if (depth == 1) {
      read(value);
      return false;
    }
    return true;
  }

 private:
  static constexpr std::string_view metadata = "__metadata__";
  static constexpr std::size_t max_list_length = 64;

  std::string place() const {
    return path_ + (name_ == metadata ? ": " : ": tensor ") + shortened(name_);
  }
  [[noreturn]] void fail(const std::string& found, const char* expected) const {
    throw Error(place(), found, expected);
  }

  void read(const json& value) {
    if (name_ != metadata) return entries.push_back(read_entry(value, name_, place()));
    const JsonObject texts(value, place());
    for (const std::string& key : texts.keys()) texts.text(key);
  }

  const std::string& path_;
  std::string name_;                       ///< of the entry that is being read
  std::unordered_set<std::string> names_;  ///< of the header
  std::unordered_set<std::string> keys_;   ///< of the entry
  std::size_t list_length_ = 0;
};

std::vector<TensorEntry> parse_header(std::span<const std::byte> header, const std::string& path) {
  HeaderReader reader(path);
  const auto* text = reinterpret_cast<const char*>(header.data());
  try {
    [[maybe_unused]] const json rest = json::parse(text, text + header.size(), std::ref(reader));
  } catch (const json::parse_error& e) {
    throw Error(path + ": the header is not valid JSON at its byte " + std::to_string(e.byte));
  } catch (const json::exception&) {  // a number beyond a double
    throw Error(path + ": the header has a number that is too large");
  }
  return std::move(reader.entries);
}

/// "model-00001-of-00002.safetensors" and nothing that leads out of the folder.
bool is_plain_name(const std::string& name) {
  const bool is_odd = std::any_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
  });
  return !name.empty() && name != "." && name != ".." && !is_odd;
}

/// Those tensors of a shard that the index places there: a copy elsewhere does not count.
std::vector<StoredTensor> read_shard(const fs::path& path, std::set<std::string> missing,
                                     const std::string& index) {
  std::vector<StoredTensor> shard = read_safetensors(MappedFile::open(path));
  std::erase_if(shard, [&](const auto& tensor) { return missing.erase(tensor.name) == 0; });
  if (!missing.empty()) {
    throw Error(path.string() + ": has no tensor " + shortened(*missing.begin()) + ", which " +
                index + " places there");
  }
  return shard;
}

std::vector<StoredTensor> read_shards(const fs::path& folder, const fs::path& index) {
  const json document = read_json_file(index);
  const JsonObject map = JsonObject(document, index.string()).object("weight_map");
  std::map<std::string, std::set<std::string>> tensors_of;
  for (const std::string& tensor : map.keys()) {
    const std::string shard = map.text(tensor);
    if (!is_plain_name(shard)) map.fail(tensor, "the name of a file in the same folder");
    tensors_of[shard].insert(tensor);
  }
  std::vector<StoredTensor> all;
  for (const auto& [shard, names] : tensors_of) {
    std::error_code ec;
    if (!fs::exists(folder / shard, ec)) {
      throw Error(index.string() + ": names " + shard + ", which is not in the folder");
    }
    std::ranges::move(read_shard(folder / shard, names, index.string()), std::back_inserter(all));
  }
  return all;
}

const ElementType& type_of(const TensorToWrite& tensor) {
  for (const ElementType& type : element_types) {
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

std::vector<StoredTensor> read_safetensors(std::shared_ptr<const MappedFile> file) {
  const std::span<const std::byte> header = header_of(*file);
  if (header.empty() || header[0] != std::byte{'{'}) {
    throw Error(file->path(), "a header that does not start with '{'", "a safetensors file");
  }
  const std::span<const std::byte> data = file->bytes().subspan(length_bytes + header.size());
  // The tensors cover the data without gaps, so that a file can hide nothing.
  return lay_out(parse_header(header, file->path()), data, Gaps::Refused, file);
}

std::vector<StoredTensor> read_safetensors_folder(const fs::path& folder) {
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
    const ElementType& type = type_of(tensor);
    const std::uint64_t begin = end;
    end = checked_add(end, checked_multiply(elements_of(tensor), type.block_bits / 8));
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
