#include "model/convert/quantize_conversion.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/words.h"
#include "model/convert/stored_form.h"
#include "model/io/files/atomic_file.h"
#include "model/io/tensors/block_writer.h"
#include "model/io/tensors/gguf.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/packed_weight.h"
#include "model/io/tensors/safetensors.h"
#include "model/io/weights/packed_checkpoint.h"

namespace kvcast {
namespace fs = std::filesystem;
namespace {

constexpr Words<QuantizedType, 5> type_words{{{QuantizedType::Q8_0, "q8_0"},
                                              {QuantizedType::Q4_0, "q4_0"},
                                              {QuantizedType::Q4_K_M, "q4_k_m"},
                                              {QuantizedType::BF16, "bf16"},
                                              {QuantizedType::FP16, "fp16"}}};

/// ggml-org/llama.cpp: include/llama.h, enum llama_ftype.
std::uint32_t file_type(QuantizedType type) {
  switch (type) {
    case QuantizedType::Q8_0: return 7;
    case QuantizedType::Q4_0: return 2;
    case QuantizedType::Q4_K_M: return 15;
    case QuantizedType::BF16: return 32;
    case QuantizedType::FP16: return 1;
  }
  KVCAST_ASSERT(false);
  return 0;
}
/// ggml-org/ggml: include/ggml.h, GGML_QNT_VERSION.
constexpr std::uint32_t quantization_version = 2;

/// Of most matrices.
DType main_type(QuantizedType type) {
  switch (type) {
    case QuantizedType::Q8_0: return DType::Q8_0;
    case QuantizedType::Q4_0: return DType::Q4_0;
    case QuantizedType::Q4_K_M: return DType::Q4_K;
    case QuantizedType::BF16: return DType::BF16;
    case QuantizedType::FP16: return DType::FP16;
  }
  KVCAST_ASSERT(false);
  return DType::FP32;
}

bool is_16_bit(QuantizedType type) {
  return type == QuantizedType::BF16 || type == QuantizedType::FP16;
}

bool divides(DType type, std::uint64_t row) {
  return row % static_cast<std::uint64_t>(width(type).block_elements) == 0;
}

/// The type of each tensor of a GGUF file.
class TypeRules {
 public:
  TypeRules(const GgufFile& file, QuantizedType type) : type_(type) {
    const GgufMetadata& m = file.metadata;
    const std::string arch(m.text_or("general.architecture", ""));
    falcon_ = arch == "falcon";
    const auto whole = [&](const char* key) -> std::uint64_t {
      const std::string name = arch + "." + key;
      return m.has(name) && !m.is_array(name) ? m.whole(name) : 0;
    };
    layers_ = whole("block_count");
    experts_ = whole("expert_count");
    const std::uint64_t heads = whole("attention.head_count");
    const std::uint64_t kept = whole("attention.head_count_kv");
    is_70b_ = layers_ == 80 && kept != 0 && kept != heads;
    tied_ = !file.has("output.weight");
    for (const StoredTensor& t : file.tensors) {
      if (is_value(t.name)) value_layers_.push_back(layer_of(t.name));
      if (has(t.name, "ffn_down")) down_layers_.push_back(layer_of(t.name));
    }
    std::sort(value_layers_.begin(), value_layers_.end());
    std::sort(down_layers_.begin(), down_layers_.end());
  }

  /// None: as it is.
  std::optional<DType> of(const StoredTensor& t) const {
    if (!is_quantised(t)) return {};
    const DType main = main_type(type_);
    if (is_16_bit(type_)) return main;
    return for_row(chosen(t, main), t.shape.back());
  }

 private:
  static bool has(const std::string& name, std::string_view part) {
    return name.find(part) != std::string::npos;
  }

  /// Of several dimensions, with no part that llama.cpp spares.
  static bool is_quantised(const StoredTensor& t) {
    constexpr std::array spared{"_norm.weight",
                                "ffn_gate_inp.weight",
                                "ffn_gate_tid2eid.weight",
                                "altup",
                                "laurel",
                                "per_layer_model_proj",
                                "ssm_conv1d",
                                "shortconv.conv.weight",
                                "indexer.k_proj.weight",
                                "indexer.q_proj.weight",
                                "attn_rel_b.weight",
                                ".position_embd",
                                ".patch_embd"};
    return is_matrix(t) && t.name.ends_with("weight") && t.name != "position_embd.weight" &&
           t.name != "token_types.weight" &&
           std::none_of(spared.begin(), spared.end(),
                        [&](const char* part) { return has(t.name, part); });
  }
  /// As ggml counts dimensions: outer ones of 1 do not.
  static bool is_matrix(const StoredTensor& t) {
    return !t.shape.empty() &&
           std::any_of(t.shape.begin(), t.shape.end() - 1, [](auto n) { return n > 1; });
  }

  static bool is_value(const std::string& name) {
    return has(name, "attn_v.weight") || has(name, "attn_qkv.weight") ||
           has(name, "attn_kv_b.weight");
  }
  static std::uint64_t layer_of(const std::string& name) {
    constexpr std::string_view prefix = "blk.";
    std::uint64_t layer = 0;
    if (!name.starts_with(prefix)) return 0;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
    return layer;
  }

  /// Not every layer has a tensor of each kind.
  static std::uint64_t place_in(const std::vector<std::uint64_t>& layers, std::uint64_t layer) {
    return static_cast<std::uint64_t>(std::lower_bound(layers.begin(), layers.end(), layer) -
                                      layers.begin());
  }

  static bool has_more_bits(std::uint64_t layer, std::uint64_t layers) {
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
  }

  DType chosen(const StoredTensor& t, DType main) const {
    const std::string& name = t.name;
    const bool mixed = type_ == QuantizedType::Q4_K_M;
    const bool embedding = name == "token_embd.weight" || name == "per_layer_token_embd.weight";
    if (name == "output.weight" || (tied_ && embedding)) {
      if (falcon_ || !divides(main, t.shape.back())) return DType::Q8_0;
      return main == DType::Q8_0 ? main : DType::Q6_K;
    }
    if (embedding) return main;
    if (is_value(name)) {
      if (experts_ == 8) return DType::Q8_0;
      if (!mixed) return main;
      if (has_more_bits(place_in(value_layers_, layer_of(name)), value_layers_.size())) {
        return DType::Q6_K;
      }
      return is_70b_ ? DType::Q5_K : main;
    }
    if (has(name, "attn_k.weight")) return experts_ == 8 ? DType::Q8_0 : main;
    if (!mixed) return main;
    if (has(name, "attn_output.weight")) return experts_ == 8 && !falcon_ ? DType::Q5_K : main;
    if (!has(name, "ffn_down")) return main;
    const std::uint64_t own = layer_of(name);
    const std::uint64_t layer = experts_ > 1 ? own : place_in(down_layers_, own);
    if (falcon_ && layer < layers_ / 16) return DType::Q6_K;
    if (!has_more_bits(layer, layers_)) return main;
    return falcon_ ? DType::Q5_K : DType::Q6_K;
  }

  /// Rows that are no multiple of a block get another type.
  static DType for_row(DType type, std::uint64_t row) {
    if (divides(type, row)) return type;
    if (type == DType::Q4_K) type = DType::Q5_0;
    if (type == DType::Q5_K) type = DType::Q5_1;
    if (type == DType::Q6_K) type = DType::Q8_0;
    return divides(type, row) ? type : DType::FP16;
  }

  QuantizedType type_;
  bool falcon_ = false;
  bool tied_ = false;
  bool is_70b_ = false;
  std::uint64_t layers_ = 0;
  std::uint64_t experts_ = 0;
  std::vector<std::uint64_t> value_layers_;
  std::vector<std::uint64_t> down_layers_;
};

RetypedTensors& entry_of(QuantizeReport& report, const std::string& from, const std::string& to) {
  const auto found =
      std::find_if(report.types.begin(), report.types.end(),
                   [&](const RetypedTensors& t) { return t.from == from && t.to == to; });
  if (found != report.types.end()) return *found;
  return report.types.emplace_back(RetypedTensors{from, to});
}

constexpr std::size_t piece = std::size_t{1} << 18;  ///< numbers converted at a time, whole blocks

/// Of the piece's numbers to what its blocks stand for.
double squared_error(DType type, std::span<const float> numbers,
                     std::span<const std::byte> blocks) {
  StoredTensor written;
  written.dtype = type;
  written.shape = {numbers.size()};
  written.bytes = blocks;
  std::vector<float> read(numbers.size());
  read_elements(written, 0, std::span(read));
  double sum = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double off = static_cast<double>(read[i]) - numbers[i];
    sum += off * off;
  }
  return sum;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<float> transposed(const std::vector<float>& matrix, std::uint64_t columns) {
  const std::uint64_t rows = matrix.size() / columns;
  std::vector<float> turned(matrix.size());
  for (std::uint64_t r = 0; r < rows; ++r) {
    for (std::uint64_t c = 0; c < columns; ++c) turned[c * rows + r] = matrix[r * columns + c];
  }
  return turned;
}

/// Gives the tensor's numbers and their blocks of the type to `take`, piece by piece; returns the
/// squared error. `turns`: each of its matrices is transposed.
template <typename Take>
double write_numbers(const StoredTensor& t, DType type, const Take& take, bool turns = false) {
  const std::uint64_t all = t.elements();
  const std::uint64_t at_once = turns ? t.shape.end()[-2] * t.shape.end()[-1] : piece;
  std::vector<float> numbers;
  std::vector<std::byte> blocks;
  double error = 0;
  for (std::uint64_t first = 0; first < all; first += at_once) {
    numbers.resize(std::min(at_once, all - first));
    read_elements(t, first, std::span(numbers));
    if (turns) numbers = transposed(numbers, t.shape.back());
    blocks.resize(bytes_of(Count(numbers.size()), type).constant());
    try {
      write_blocks(type, numbers, blocks);
    } catch (const Error& e) {
      throw Error(t.place(), e);
    }
    error += squared_error(type, numbers, blocks);
    take(std::span<const float>(numbers), as_text(blocks));
  }
  t.file->forget();
  return error;
}

/// Throws Error when a tensor of plain numbers that stays as it is has one that is not finite.
void check_numbers(const StoredTensor& t) {
  if (!t.dtype || width(*t.dtype).block_elements > 1) return;
  std::vector<float> numbers;
  for (std::uint64_t first = 0; first < t.elements(); first += piece) {
    numbers.resize(std::min<std::uint64_t>(piece, t.elements() - first));
    read_elements(t, first, std::span(numbers));
  }
}

/// Metadata to write: all but what another type and a whole file change.
std::vector<std::string> metadata_for(const GgufMetadata& metadata, QuantizedType type) {
  constexpr std::string_view version = "general.quantization_version";
  constexpr std::string_view number = "general.file_type";
  std::vector<std::string> values;
  for (const GgufMetadata::Entry& e : metadata.entries()) {
    if (e.key != version && e.key != number) values.emplace_back(as_text(e.bytes));
  }
  values.push_back(gguf_value(version, quantization_version));
  values.push_back(gguf_value(number, file_type(type)));
  return values;
}

/// The type that the tensor gets; its own for those that stay. Throws Error when it may not.
std::vector<std::optional<DType>> new_types(const GgufFile& file,
                                            const QuantizeConversion& conversion) {
  const TypeRules rules(file, conversion.type);
  std::vector<std::optional<DType>> types;
  for (const StoredTensor& t : file.tensors) {
    std::optional<DType> type = rules.of(t);
    if (type && t.dtype == type) type.reset();
    if (type) {
      const bool quantised = width(t.readable_dtype()).block_elements > 1;
      if (quantised && !conversion.requantizes) {
        throw Error(t.place(), "element type " + t.type,
                    "F32, F16 or BF16: numbers that are quantised twice lose more "
                    "(--allow-requantize)");
      }
      KVCAST_ASSERT(can_write_blocks(*type));
    }
    types.push_back(type);
  }
  return types;
}

QuantizeReport quantize_gguf(const fs::path& input, const fs::path& output,
                             const QuantizeConversion& conversion, const Progress& on_tensor) {
  if (output.extension() != ".gguf") {
    throw Error(output.string(), "the name of an output without .gguf", "a .gguf file");
  }
  std::error_code ec;
  if (fs::equivalent(input, output, ec)) {
    throw Error(output.string(), "the file that is converted", "the name of another file");
  }
  const GgufFile file = read_gguf(MappedFile::open(input));
  if (file.metadata.whole_or("split.count", 1) > 1) {
    file.metadata.fail("split.count", std::to_string(file.metadata.whole("split.count")),
                       "a model in one file (llama.cpp's llama-gguf-split merges)");
  }
  const std::vector<std::optional<DType>> types = new_types(file, conversion);
  std::vector<GgufTensor> tensors;
  for (std::size_t i = 0; i < types.size(); ++i) {
    const StoredTensor& t = file.tensors[i];
    GgufTensor& to = tensors.emplace_back(GgufTensor{t.name, t.shape, t.type, t.bytes.size()});
    if (!types[i]) continue;
    to.type = ggml_type_name(*types[i]);
    to.bytes = bytes_of(Count(t.elements()), *types[i]).constant();
  }
  const std::uint64_t alignment = gguf_alignment(file.metadata);
  QuantizeReport report;
  AtomicFile out(output);
  out.write(gguf_header(metadata_for(file.metadata, conversion.type), tensors, alignment));
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (on_tensor) on_tensor(i, types.size());
    const StoredTensor& t = file.tensors[i];
    RetypedTensors& entry = entry_of(report, t.type, tensors[i].type);
    ++entry.tensors;
    entry.parameters += t.elements();
    entry.bytes_before += t.bytes.size();
    entry.bytes_after += tensors[i].bytes;
    if (types[i]) {
      entry.squared_error += write_numbers(
          t, *types[i],
          [&](std::span<const float>, std::string_view blocks) { out.write(blocks); });
    } else {
      check_numbers(t);
      out.write(as_text(t.bytes));
    }
    out.write(std::string((alignment - tensors[i].bytes % alignment) % alignment, '\0'));
  }
  out.sync();
  out.commit();
  return report;
}

/// Names of the format, without kvcast's own.
std::string safetensors_name(DType dtype) { return dtype == DType::BF16 ? "BF16" : "F16"; }

/// Tensors whose matrices a family has inputs first. Packed ones have their outputs first.
std::set<std::string> inputs_first(const fs::path& folder) {
  std::set<std::string> names;
  const Architecture a = Checkpoint(folder).architecture();
  for (const StoredForm& form : stored_forms(a, record(a, {}, {}), DType::FP32)) {
    if (form.transposed) names.insert(form.tensor.name);
  }
  return names;
}

QuantizeReport quantize_folder(const fs::path& input, const fs::path& output,
                               const QuantizeConversion& conversion, const Progress& on_tensor) {
  if (!is_16_bit(conversion.type)) {
    throw Error("--type", std::string(word_for(conversion.type, type_words)) + " for a folder",
                "bf16 or fp16; llama.cpp's convert_hf_to_gguf.py makes a GGUF file of a folder, "
                "which can be of this type");
  }
  const DType dtype = main_type(conversion.type);
  const fs::path config_path = input / "config.json";
  nlohmann::json config = read_json_file(config_path);
  const std::vector<StoredTensor> stored = read_checkpoint_folder(input, config);
  const char* const torch = dtype == DType::BF16 ? "bfloat16" : "float16";
  const auto set_dtype = [&](nlohmann::json& c) {
    c.erase("quantization_config");
    if (c.contains("torch_dtype")) c["torch_dtype"] = torch;
    if (c.contains("dtype") || !c.contains("torch_dtype")) c["dtype"] = torch;
  };
  set_dtype(config);
  if (config.contains("text_config") && config["text_config"].is_object()) {
    set_dtype(config["text_config"]);
  }
  const auto is_fp4 = [](const StoredTensor& t) {
    return t.packed != nullptr && std::holds_alternative<Fp4Weight>(t.packed->form);
  };
  const bool has_fp4 = std::any_of(stored.begin(), stored.end(), is_fp4);
  const std::set<std::string> turned = has_fp4 ? inputs_first(input) : std::set<std::string>();
  const auto turns = [&](const StoredTensor& t) {
    return is_fp4(t) && t.shape.size() > 1 && turned.contains(t.name);
  };
  std::vector<TensorToWrite> tensors;
  std::vector<const StoredTensor*> written;
  for (const StoredTensor& t : stored) {
    // Masks and positions, which are no numbers of a model; nobody reads them.
    const bool whole = t.type.starts_with("I") || t.type.starts_with("U") || t.type == "BOOL";
    if ((!t.dtype && whole) || t.name.ends_with(".masked_bias")) continue;
    static_cast<void>(t.readable_dtype());
    tensors.push_back({t.name, t.shape, {}, dtype});
    if (turns(t)) std::swap(tensors.back().shape.end()[-2], tensors.back().shape.end()[-1]);
    written.push_back(&t);
  }
  QuantizeReport report;
  CheckpointWriter writer(output, config, tensors);
  report.copied_files = writer.copy_tokenizer(input);
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (on_tensor) on_tensor(i, written.size());
    const StoredTensor& t = *written[i];
    RetypedTensors& entry = entry_of(report, t.type, safetensors_name(dtype));
    ++entry.tensors;
    entry.parameters += t.elements();
    entry.bytes_before += t.packed ? packed_bytes(*t.packed) : t.bytes.size();
    entry.bytes_after += 2 * t.elements();
    entry.squared_error += write_numbers(
        t, dtype,
        [&](std::span<const float> numbers, std::string_view) {
          writer.write(std::vector<double>(numbers.begin(), numbers.end()));
        },
        turns(t));
  }
  writer.commit();
  return report;
}

}  // namespace

QuantizedType parse_quantized_type(std::string_view text) {
  return parse_word("type", text, type_words);
}

RetypedTensors QuantizeReport::total() const {
  RetypedTensors all;
  for (const RetypedTensors& t : types) {
    all.tensors += t.tensors;
    all.parameters += t.parameters;
    all.bytes_before += t.bytes_before;
    all.bytes_after += t.bytes_after;
    all.squared_error += t.squared_error;
  }
  return all;
}

QuantizeReport quantize_checkpoint(const fs::path& input, const fs::path& output,
                                   const QuantizeConversion& conversion,
                                   const Progress& on_tensor) {
  std::error_code ec;
  if (fs::is_directory(input, ec)) {
    return quantize_folder(input, output, conversion, on_tensor);
  }
  if (input.extension() != ".gguf") {
    throw Error(input.string() + (fs::exists(input, ec) ? ": not a folder" : ": no such folder") +
                "; expected a checkpoint: a folder with config.json and safetensors, or a .gguf "
                "file");
  }
  return quantize_gguf(input, output, conversion, on_tensor);
}

}  // namespace kvcast
