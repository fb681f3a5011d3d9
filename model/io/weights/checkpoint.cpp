#include "model/io/weights/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/config/layer_pruning.h"
#include "model/families/config_reader.h"
#include "model/families/gguf_config.h"
#include "model/io/tensors/gguf.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"

namespace kvcast {
namespace fs = std::filesystem;
namespace {

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::uint64_t product_from(const std::vector<std::uint64_t>& shape, std::size_t first) {
  std::uint64_t product = 1;
  for (std::size_t i = first; i < shape.size(); ++i) product *= shape[i];
  return product;
}

/// Frequency factors in GGUF files, which belong to the configuration.
bool is_rope_table(std::string_view name) {
  return name == "rope_freqs.weight" || name == "rope_factors_short.weight" ||
         name == "rope_factors_long.weight";
}

/// The rows of a stored tensor (columns if it is transposed) that weights use.
struct Part {
  std::uint64_t rows = 0;
  bool transposed = false;
};

/// A well-mixed number from a counter. Source: Steele et al. 2014, SplitMix.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// Rows of a random weight: vectors uniform within 1 ± 0.1, others uniform with the variance 1/row.
template <typename N>
void random_rows(const std::vector<std::uint64_t>& shape, std::uint64_t seed, std::size_t first,
                 std::span<N> out) {
  const std::uint64_t row = product_from(shape, 1);
  const bool vector = shape.size() == 1;
  const double half_width = vector ? 0.1 : std::sqrt(3.0 / static_cast<double>(row));
  const auto scale = static_cast<float>(half_width / 2147483648.0);
  const float center = vector ? 1.0F : 0.0F;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto bits = static_cast<std::int32_t>(mix(seed + first * row + i) >> 32);
    out[i] = center + scale * static_cast<float>(bits);
  }
}

std::string model_name(const fs::path& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  const fs::path last = absolute.has_filename() ? absolute : absolute.parent_path();
  return last.extension() == ".gguf" ? last.stem().string() : last.filename().string();
}

}  // namespace

WeightReader::WeightReader(StoredTensor tensor, WeightSource source)
    : tensor_(std::move(tensor)), source_(std::move(source)) {}

WeightReader::WeightReader(std::vector<std::uint64_t> shape, std::uint64_t seed) : seed_(seed) {
  tensor_.shape = std::move(shape);
}

std::vector<std::uint64_t> WeightReader::shape() const {
  std::vector<std::uint64_t> shape = tensor_.shape;
  if (source_.transposed && shape.size() == 2) std::swap(shape[0], shape[1]);
  if (!source_.rows.empty() && !shape.empty()) shape[0] = source_.rows.size();
  return shape;
}

void WeightReader::read_rows(std::size_t first, std::span<float> out) const {
  read_numbers(first, out);
}

void WeightReader::read_rows(std::size_t first, std::span<double> out) const {
  read_numbers(first, out);
}

template <typename N>
void WeightReader::read_numbers(std::size_t first, std::span<N> out) const {
  if (!tensor_.file) return random_rows(tensor_.shape, seed_, first, out);
  if (source_.transposed) {
    const std::uint64_t columns = tensor_.shape[1];
    const std::uint64_t in = tensor_.shape[0];
    const std::size_t rows = out.size() / in;
    const std::uint64_t column = source_.rows.empty() ? first : source_.rows[first];
    // Callers take a few columns at a time: only those are read of each stored row.
    std::vector<N> stored(rows);
    for (std::uint64_t i = 0; i < in; ++i) {
      read_elements(tensor_, i * columns + column, std::span<N>(stored));
      for (std::size_t r = 0; r < rows; ++r) out[r * in + i] = stored[r];
    }
  } else if (source_.rows.empty()) {
    read_elements(tensor_, first * product_from(tensor_.shape, 1), out);
  } else {
    const std::uint64_t row = product_from(tensor_.shape, 1);
    for (std::size_t r = 0; r < out.size() / row; ++r) {
      read_elements(tensor_, source_.rows[first + r] * row, out.subspan(r * row, row));
    }
  }
  if (source_.offset != 0) {
    for (N& x : out) x += static_cast<N>(source_.offset);
  }
}

void WeightReader::forget() const {
  if (tensor_.file) tensor_.file->forget(tensor_.bytes);
}

Checkpoint::Checkpoint(const fs::path& path) : path_(path) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    const fs::path config = path / "config.json";
    architecture_ = read_config(read_json_file(config), model_name(path), config.string());
    take(read_safetensors_folder(path));
    untie_own_head();
  } else {
    if (path.extension() != ".gguf") {
      throw Error(path.string() + (fs::exists(path, ec) ? ": not a folder" : ": no such folder") +
                  "; expected a checkpoint: a folder with config.json and safetensors, or a .gguf "
                  "file");
    }
    gguf_ = std::make_shared<const GgufFile>(read_gguf(MappedFile::open(path)));
    architecture_ = read_config(gguf_config(*gguf_), model_name(path), path.string());
    take(gguf_->tensors);
  }
  architecture_.origin = path;
}

/// A head in the file that differs from the embedding is not tied, whatever tie_word_embeddings
/// says. transformers 5 does the same.
void Checkpoint::untie_own_head() {
  if (!architecture_.tied_embeddings) return;
  const StoredTensor* const head = find(huggingface_weight(architecture_, "head.weight"));
  const StoredTensor* const embedding = find(huggingface_weight(architecture_, "embedding.weight"));
  if (head == nullptr || embedding == nullptr) return;
  architecture_.tied_embeddings = head->dtype == embedding->dtype &&
                                  head->shape == embedding->shape &&
                                  std::ranges::equal(head->bytes, embedding->bytes);
}

void Checkpoint::take(std::vector<StoredTensor> stored) {
  for (StoredTensor& t : stored) {
    std::string name = t.name;
    tensors_.emplace(std::move(name), std::move(t));
  }
}

Checkpoint::Checkpoint(Architecture architecture, std::uint64_t seed)
    : path_(architecture.name + " (random weights)"),
      architecture_(std::move(architecture)),
      seed_(seed) {}

Checkpoint Checkpoint::of_tensors(const fs::path& folder, std::string_view prefix) {
  Checkpoint checkpoint;
  checkpoint.path_ = folder;
  checkpoint.architecture_.name = model_name(folder);
  checkpoint.tensor_prefix_ = prefix;
  checkpoint.take(read_safetensors_folder(folder));
  return checkpoint;
}

Checkpoint Checkpoint::pruned(std::span<const std::size_t> kept) const {
  Checkpoint checkpoint = *this;
  checkpoint.architecture_ = prune_layers(architecture_, kept);
  checkpoint.whole_ = architecture_;
  return checkpoint;
}

WeightSource Checkpoint::source_of(const std::string& weight) const {
  if (tensor_prefix_) return {{*tensor_prefix_ + weight}, {}};
  const Architecture& stored = whole_ ? *whole_ : architecture_;
  std::string name = weight;
  if (whole_) {
    const WeightName parsed = parse_weight_name(weight);
    if (parsed.layer) {
      name = fmt::format("layers.{}.{}{}", architecture_.pruning.kept[*parsed.layer], parsed.part,
                         parsed.kind);
    }
  }
  return gguf_ ? gguf_weight(stored, name) : huggingface_weight(stored, name);
}

WeightReader Checkpoint::reader(const TensorInfo& weight) const {
  if (!seed_) return reader(weight.name);
  std::vector<std::uint64_t> shape;
  for (const Count& dim : weight.shape) shape.push_back(dim.constant());
  std::uint64_t seed = mix(*seed_);
  for (const char c : weight.name) seed = mix(seed ^ static_cast<unsigned char>(c));
  return {std::move(shape), seed};
}

const StoredTensor* Checkpoint::find(const WeightSource& source) const {
  for (const std::string& name : source.names) {
    if (const auto found = tensors_.find(name); found != tensors_.end()) return &found->second;
  }
  return nullptr;
}

WeightReader Checkpoint::reader(const std::string& weight) const {
  WeightSource source = source_of(weight);
  if (const StoredTensor* const tensor = find(source)) {
    static_cast<void>(tensor->readable_dtype());
    return {*tensor, std::move(source)};
  }
  throw Error(fmt::format("{}: tensor {} is missing; expected it for the weight {}", path_.string(),
                          fmt::join(source.names, " or "), weight));
}

void Checkpoint::check(const TensorInfo& weight) const {
  if (seed_) return;
  const WeightReader r = reader(weight);
  std::vector<std::uint64_t> expected;
  for (const Count& dim : weight.shape) expected.push_back(dim.constant());
  const WeightSource source = source_of(weight.name);
  const std::vector<std::uint64_t>& stored = r.tensor().shape;
  const std::size_t dim = source.transposed ? 1 : 0;
  const bool rows_inside =
      std::all_of(source.rows.begin(), source.rows.end(),
                  [&](std::uint64_t row) { return stored.size() > dim && row < stored[dim]; });
  if (r.shape() != expected || !rows_inside) {
    const std::string use = source.rows.empty() ? "" : " in its part for " + weight.name;
    throw Error(r.tensor().place(), "shape " + shape_text(stored),
                shape_text(expected) + use + ", as the configuration says");
  }
}

void Checkpoint::check_nothing_left(const std::vector<std::string>& weights) const {
  if (seed_ || whole_) return;  // pruned layers of whole_ are left over
  std::set<std::string, std::less<>> used;
  std::map<std::string, Part, std::less<>> parts;  // what is read of tensors that hold several
  for (const std::string& weight : weights) {
    const WeightSource source = source_of(weight);
    // A tensor under one of the other names is a copy that nobody reads.
    const StoredTensor* const tensor = find(source);
    if (tensor == nullptr) continue;
    used.insert(tensor->name);
    if (!source.rows.empty()) {
      parts[tensor->name].rows += source.rows.size();
      parts[tensor->name].transposed = source.transposed;
    }
  }
  for (const auto& [name, part] : parts) {
    const StoredTensor& tensor = tensors_.find(name)->second;
    if (tensor.shape[part.transposed ? 1 : 0] == part.rows) continue;
    throw Error(tensor.place(), "shape " + shape_text(tensor.shape),
                fmt::format("{} {}, as the configuration says", part.rows,
                            part.transposed ? "columns" : "rows"));
  }
  for (const auto& [name, tensor] : tensors_) {
    const bool known =
        gguf_ ? is_rope_table(name) || !tensor.dtype : is_unused_buffer(architecture_, name);
    if (known || used.contains(name)) continue;
    throw Error(tensor.place() + ": no weight of a " + architecture_.model_type +
                " model of this configuration is made of it");
  }
}

}  // namespace kvcast
