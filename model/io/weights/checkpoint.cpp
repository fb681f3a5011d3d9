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
#include "model/families/wrappers.h"
#include "model/io/tensors/gguf.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"
#include "model/io/weights/packed_checkpoint.h"

namespace kvcast {
namespace fs = std::filesystem;
namespace {

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::vector<std::uint64_t> constants(const std::vector<Count>& shape) {
  std::vector<std::uint64_t> numbers;
  for (const Count& dim : shape) numbers.push_back(dim.constant());
  return numbers;
}

/// What a file holds of the weight.
std::vector<std::uint64_t> stored_shape(const TensorInfo& weight) {
  return constants(weight.part ? weight.part->whole : weight.shape);
}

std::uint64_t product_from(const std::vector<std::uint64_t>& shape, std::size_t first) {
  std::uint64_t product = 1;
  for (std::size_t i = first; i < shape.size(); ++i) product *= shape[i];
  return product;
}

/// The rows of a stored tensor (columns if it is transposed) that weights use.
struct Part {
  std::uint64_t rows = 0;
  bool transposed = false;
  std::uint64_t all = 0;  ///< that the tensor has
};

/// Throws Error unless all pieces of a weight have one shape.
void check_pieces(const std::vector<StoredTensor>& pieces) {
  for (const StoredTensor& piece : pieces) {
    if (piece.shape == pieces.front().shape) continue;
    throw Error(piece.place(), "shape " + shape_text(piece.shape),
                shape_text(pieces.front().shape) + ", as " + pieces.front().name);
  }
}

/// A well-mixed number from a counter. Source: Steele et al. 2014, SplitMix.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// Rows of a random weight: vectors uniform within `center` ± 0.1, others uniform around 0 with the
/// variance 1/row.
template <typename N>
void random_rows(const std::vector<std::uint64_t>& shape, std::uint64_t seed, float center,
                 std::size_t first, std::span<N> out) {
  const std::uint64_t row = product_from(shape, 1);
  const bool vector = shape.size() == 1;
  const double half_width = vector ? 0.1 : std::sqrt(3.0 / static_cast<double>(row));
  const auto scale = static_cast<float>(half_width / 2147483648.0);
  if (!vector) center = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto bits = static_cast<std::int32_t>(mix(seed + first * row + i) >> 32);
    out[i] = center + scale * static_cast<float>(bits);
  }
}

/// Adds nothing. AutoGPTQ writes biases of all packed weights, also where the model has none.
bool is_bias_of_zeros(const StoredTensor& tensor) {
  return tensor.name.ends_with(".bias") && tensor.dtype &&
         std::all_of(tensor.bytes.begin(), tensor.bytes.end(),
                     [](std::byte b) { return b == std::byte{0}; });
}

std::string model_name(const fs::path& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  const fs::path last = absolute.has_filename() ? absolute : absolute.parent_path();
  return last.extension() == ".gguf" ? last.stem().string() : last.filename().string();
}

}  // namespace

WeightReader::WeightReader(std::vector<StoredTensor> tensors, WeightSource source)
    : tensors_(std::move(tensors)), source_(std::move(source)) {
  // Packed weights have their outputs first, whatever the family does.
  if (tensors_.front().packed) source_.transposed = false;
  const std::vector<std::uint64_t>& stored = tensors_.front().shape;
  if (source_.inputs > 0 && !stored.empty() && stored.back() == source_.inputs) {
    source_.transposed = false;
  }
  if (source_.shape.empty() || tensors_.size() != 1) return;
  if (product_from(source_.shape, 0) == tensors_[0].elements()) tensors_[0].shape = source_.shape;
}

WeightReader::WeightReader(std::vector<std::uint64_t> shape, std::uint64_t seed, float center)
    : seed_(seed), center_(center) {
  tensors_.emplace_back().shape = std::move(shape);
}

std::vector<std::uint64_t> WeightReader::shape() const {
  std::vector<std::uint64_t> shape = tensor().shape;
  if (source_.blocks > 0 && shape.size() > 1 && shape[0] == source_.blocks) {
    shape.erase(shape.begin());
    if (source_.transposed && shape.size() == 2) std::swap(shape[0], shape[1]);
    shape[0] *= source_.blocks;
  } else if (source_.transposed && shape.size() == 2) {
    std::swap(shape[0], shape[1]);
  }
  if (source_.pieces > 0 && !shape.empty()) shape[0] *= source_.pieces;
  if (!source_.rows.empty() && !shape.empty()) shape[0] = source_.rows.size();
  return shape;
}

void WeightReader::read_rows(std::size_t first, std::span<float> out) const {
  part_ ? read_part(first, out) : read_numbers(first, out);
}

void WeightReader::read_rows(std::size_t first, std::span<double> out) const {
  part_ ? read_part(first, out) : read_numbers(first, out);
}

void WeightReader::take_part(const TensorInfo& weight) {
  if (!weight.part) return;
  const WeightPart& part = *weight.part;
  const std::vector<std::uint64_t> whole = constants(part.whole);
  const std::vector<std::uint64_t> own = constants(weight.shape);
  part_ = {.stored_rows = whole[0],
           .stored_block = whole[0] / part.blocks,
           .first_block = part.first_block,
           .block = own[0] / part.blocks_here,
           .first_row = part.first_row,
           .stored_row = product_from(whole, 1),
           .row = product_from(own, 1),
           .first_number = part.first_column * product_from(own, 2)};
}

std::uint64_t WeightReader::row_of_whole(std::size_t row) const {
  const RowPart& p = *part_;
  return (p.first_block + row / p.block) * p.stored_block + p.first_row + row % p.block;
}

template <typename N>
void WeightReader::read_part(std::size_t first, std::span<N> out) const {
  const RowPart& p = *part_;
  std::vector<N> stored;
  const std::size_t rows = out.size() / p.row;
  for (std::size_t r = 0; r < rows;) {
    const std::uint64_t in_block = (first + r) % p.block;
    const std::uint64_t at = row_of_whole(first + r);
    // Of one block, and as many as are stored.
    const std::size_t n = std::min<std::size_t>(p.block - in_block, rows - r);
    const std::size_t there = at < p.stored_rows ? std::min<std::size_t>(n, p.stored_rows - at) : 0;
    const std::span<N> to = out.subspan(r * p.row, n * p.row);
    std::fill(to.begin(), to.end(), N{0});
    if (p.row == p.stored_row && there > 0) {
      read_numbers(at, to.first(there * p.row));
    } else if (there > 0) {
      stored.resize(there * p.stored_row);
      read_numbers(at, std::span<N>(stored));
      for (std::size_t i = 0; i < there; ++i) {
        std::copy_n(stored.data() + i * p.stored_row + p.first_number, p.row,
                    to.data() + i * p.row);
      }
    }
    r += n;
  }
}

template <typename N>
void WeightReader::read_row(std::uint64_t row, std::span<N> out) const {
  const std::uint64_t of_piece = source_.pieces > 0 ? tensor().shape[0] : 0;
  const StoredTensor& tensor = tensors_[of_piece > 0 ? row / of_piece : 0];
  read_elements(tensor, (of_piece > 0 ? row % of_piece : row) * out.size(), out);
}

template <typename N>
void WeightReader::read_columns(std::size_t first, std::span<N> out) const {
  const std::vector<std::uint64_t>& stored = tensor().shape;
  const std::uint64_t columns = stored.back();
  const std::uint64_t in = stored[stored.size() - 2];
  const std::size_t rows = out.size() / in;
  const auto wanted = [&](std::size_t r) {
    return source_.rows.empty() ? first + r : source_.rows[first + r];
  };
  // Callers take a few at a time, which lie near each other: between the first and the last of a
  // matrix everything is read.
  std::vector<N> between;
  // Blocks of quantised numbers are read whole.
  const auto whole = static_cast<std::uint64_t>(width(tensor().readable_dtype()).block_elements);
  for (std::size_t r = 0; r < rows;) {
    const std::uint64_t block = wanted(r) / columns;
    std::size_t end = r + 1;
    while (end < rows && wanted(end) / columns == block && wanted(end) > wanted(end - 1)) ++end;
    const std::uint64_t from = wanted(r) / whole * whole;
    between.resize((wanted(end - 1) / whole + 1) * whole - from);
    for (std::uint64_t i = 0; i < in; ++i) {
      const std::uint64_t at = (block * in + i) * columns + from % columns;
      read_elements(tensor(), at, std::span<N>(between));
      for (std::size_t c = r; c < end; ++c) out[c * in + i] = between[wanted(c) - from];
    }
    r = end;
  }
}

template <typename N>
void WeightReader::read_numbers(std::size_t first, std::span<N> out) const {
  const StoredTensor& stored = tensor();
  if (!stored.file) return random_rows(stored.shape, seed_, center_, first, out);
  const std::uint64_t row = product_from(stored.shape, source_.blocks > 0 ? 2 : 1);
  if (source_.transposed) {
    read_columns(first, out);
  } else if (source_.rows.empty() && source_.pieces == 0) {
    read_elements(stored, first * row, out);
  } else {
    for (std::size_t r = 0; r < out.size() / row; ++r) {
      read_row(source_.rows.empty() ? first + r : source_.rows[first + r],
               out.subspan(r * row, row));
    }
  }
  if (source_.offset != 0) {
    for (N& x : out) x += static_cast<N>(source_.offset);
  }
  if (source_.negated_exponent) {
    for (N& x : out) {
      if (!(x < 0)) throw Error(stored.place(), fmt::format("{}", x), "numbers below 0");
      x = std::log(-x);
    }
  }
  if (!source_.columns.empty() && row == source_.columns.size()) {
    std::vector<N> moved(row);
    for (std::size_t first_of = 0; first_of < out.size(); first_of += row) {
      const std::span<N> one = out.subspan(first_of, row);
      for (std::size_t i = 0; i < row; ++i) moved[i] = one[source_.columns[i]];
      std::copy(moved.begin(), moved.end(), one.begin());
    }
  }
}

std::optional<DType> WeightReader::stored_dtype() const {
  const bool as_it_is = !source_.transposed && source_.offset == 0 && !source_.negated_exponent &&
                        source_.columns.empty();
  if (!tensor().file || !as_it_is) return {};
  const DType dtype = tensor().readable_dtype();
  const std::uint64_t block = row_block(dtype).elements;
  const bool whole_blocks = !part_ || (part_->first_number % block == 0 && part_->row % block == 0);
  const bool same = std::all_of(tensors_.begin(), tensors_.end(),
                                [&](const StoredTensor& t) { return t.dtype == dtype; });
  return whole_blocks && same ? std::optional(dtype) : std::nullopt;
}

void WeightReader::read_stored(std::size_t first, std::size_t rows,
                               std::span<std::byte> out) const {
  KVCAST_ASSERT(out.size() % rows == 0);
  const std::size_t size = out.size() / rows;
  const std::uint64_t of_piece = source_.pieces > 0 ? tensor().shape[0] : 0;
  const std::uint64_t numbers = product_from(tensor().shape, source_.blocks > 0 ? 2 : 1);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::span<std::byte> to = out.subspan(r * size, size);
    std::uint64_t row = part_ ? row_of_whole(first + r) : first + r;
    if (part_ && row >= part_->stored_rows) {
      std::fill(to.begin(), to.end(), std::byte{0});  // zeros in every type
      continue;
    }
    if (!source_.rows.empty()) row = source_.rows[row];
    const StoredTensor& from = tensors_[of_piece > 0 ? row / of_piece : 0];
    if (of_piece > 0) row %= of_piece;
    read_blocks(from, row * numbers + (part_ ? part_->first_number : 0), to);
  }
}

void WeightReader::forget() const {
  for (const StoredTensor& t : tensors_) {
    if (t.file) t.file->forget();
  }
}

Checkpoint::Checkpoint(const fs::path& path) : path_(path) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    const fs::path config = path / "config.json";
    const nlohmann::json read = read_json_file(config);
    architecture_ = read_config(read, model_name(path), config.string());
    take(read_checkpoint_folder(path, read));
    const Wrapper* const wrapper = find_wrapper(architecture_.wrapper);
    const bool may_tie =
        wrapper != nullptr && wrapper->ties && !read.contains("tie_word_embeddings");
    if (may_tie && find(huggingface_weight(architecture_, "head.weight")).empty()) {
      architecture_.tied_embeddings = true;
    }
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
  const auto heads = find(huggingface_weight(architecture_, "head.weight"));
  const auto embeddings = find(huggingface_weight(architecture_, "embedding.weight"));
  if (heads.empty() || embeddings.empty()) return;
  const StoredTensor& head = *heads.front();
  const StoredTensor& embedding = *embeddings.front();
  architecture_.tied_embeddings = head.dtype == embedding.dtype && head.shape == embedding.shape &&
                                  std::ranges::equal(head.bytes, embedding.bytes);
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
  if (!gguf_) return huggingface_weight(stored, name);
  return gguf_weight(stored, name, has_tensor());
}

void Checkpoint::expect_look_ups() const {
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.file) tensor.file->expect_look_ups();
  }
}

HasTensor Checkpoint::has_tensor() const {
  return [this](std::string_view tensor) { return tensors_.contains(tensor); };
}

WeightReader Checkpoint::reader(const TensorInfo& weight) const {
  const auto whole = [&]() -> WeightReader {
    if (!seed_) return reader(weight.name);
    std::uint64_t seed = mix(*seed_);
    for (const char c : weight.name) seed = mix(seed ^ static_cast<unsigned char>(c));
    return {stored_shape(weight), seed, weight.name.ends_with(".bias") ? 0.0F : 1.0F};
  };
  WeightReader r = whole();
  r.take_part(weight);
  return r;
}

std::vector<const StoredTensor*> Checkpoint::find(const WeightSource& source) const {
  for (const std::string& name : source.names) {
    std::vector<const StoredTensor*> pieces;
    for (std::uint64_t i = 0; i < std::max<std::uint64_t>(source.pieces, 1); ++i) {
      const auto found = tensors_.find(source.pieces > 0 ? piece_name(name, i) : name);
      if (found != tensors_.end()) pieces.push_back(&found->second);
    }
    if (!pieces.empty()) return pieces;
  }
  return {};
}

bool Checkpoint::holds(const std::string& weight) const {
  if (seed_ || tensor_prefix_) return false;
  const bool known =
      gguf_ ? gguf_may_hold(architecture_, weight, has_tensor()) : may_hold(architecture_, weight);
  return known && !find(source_of(weight)).empty();
}

WeightReader Checkpoint::reader(const std::string& weight) const {
  WeightSource source = source_of(weight);
  std::vector<StoredTensor> tensors;
  for (const StoredTensor* const tensor : find(source)) {
    static_cast<void>(tensor->readable_dtype());
    tensors.push_back(*tensor);
  }
  if (tensors.size() == std::max<std::uint64_t>(source.pieces, 1)) {
    check_pieces(tensors);
    return {std::move(tensors), std::move(source)};
  }
  throw Error(fmt::format("{}: tensor {} is missing; expected it for the weight {}", path_.string(),
                          fmt::join(source.names, " or "), weight));
}

void Checkpoint::check(const TensorInfo& weight) const {
  if (seed_) return;
  const WeightReader r = reader(weight);
  const std::vector<std::uint64_t> expected = stored_shape(weight);
  const WeightSource source = source_of(weight.name);
  const std::vector<std::uint64_t>& stored = r.tensor().shape;
  WeightSource whole = source;
  whole.rows.clear();
  const std::vector<std::uint64_t> all = WeightReader({r.tensor()}, std::move(whole)).shape();
  const bool rows_inside =
      std::all_of(source.rows.begin(), source.rows.end(),
                  [&](std::uint64_t row) { return !all.empty() && row < all[0]; });
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
    for (const StoredTensor* const tensor : find(source)) {
      used.insert(tensor->name);
      if (source.rows.empty()) continue;
      Part& part = parts[tensor->name];
      part.rows += source.rows.size();
      part.transposed = source.transposed;
      WeightSource whole = source;
      whole.rows.clear();
      part.all = WeightReader({*tensor}, std::move(whole)).shape().front();
    }
  }
  for (const auto& [name, part] : parts) {
    const StoredTensor& tensor = tensors_.find(name)->second;
    if (part.all == part.rows) continue;
    throw Error(tensor.place(), "shape " + shape_text(tensor.shape),
                fmt::format("{} {}, as the configuration says", part.rows,
                            part.transposed ? "columns" : "rows"));
  }
  for (const auto& [name, tensor] : tensors_) {
    const bool known = gguf_ ? is_unused_in_gguf(architecture_, name) || !tensor.dtype
                             : is_unused_buffer(architecture_, name);
    if (known || used.contains(name) || is_bias_of_zeros(tensor)) continue;
    throw Error(tensor.place() + ": no weight of a " + architecture_.model_type +
                " model of this configuration is made of it");
  }
}

}  // namespace kvcast
