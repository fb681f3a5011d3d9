#include "model/execute/weight_store.h"

#include <algorithm>
#include <atomic>
#include <set>

#include "model/execute/stored_blocks.h"
#include "model/record/recording.h"

namespace kvcast::execute {

/// How the nodes of some graphs use a weight; it may need several use.
struct WeightUse {
  const TensorInfo* info = nullptr;
  std::uint64_t matrices = 0;  ///< of the weight that a product reads: 1, or one for each expert
  bool table = false;          ///< rows are looked up
  bool rows = false;           ///< read as plain rows of numbers
};

namespace {

std::map<std::string, WeightUse> uses_of(const std::vector<const Graph*>& graphs) {
  std::map<std::string, WeightUse> uses;
  for (const Graph* graph : graphs) {
    for (const Node& node : graph->nodes()) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const TensorInfo& info = graph->tensor(node.inputs[i]);
        if (info.storage != Storage::Weights || info.producer) continue;
        WeightUse& use = uses[info.name];
        use.info = &info;
        const auto* const experts = std::get_if<ExpertLinear>(&node.op);
        const auto* const linear = std::get_if<Linear>(&node.op);
        const bool packed = is_any<Linear, Conv1d>(node.op) && (!linear || !linear->transposed);
        const bool product = packed ? i == 1 : experts != nullptr && i == 2;
        const bool lookup = std::holds_alternative<Embedding>(node.op) && i == 0;
        if (product) use.matrices = experts != nullptr ? experts->num_experts : 1;
        use.table |= lookup;
        use.rows |= !lookup && !product;
      }
    }
  }
  return uses;
}

/// Lets go of a file's pages on the way, whichever thread reads them: packed, they are no longer
/// needed.
class PagesOnTheWay {
 public:
  explicit PagesOnTheWay(const WeightReader& source) : source_(source) {}
  void have_read(std::size_t bytes) {
    constexpr std::size_t together = std::size_t{8} << 20;
    const std::size_t before = bytes_.fetch_add(bytes);
    if (before / together != (before + bytes) / together) source_.forget();
  }

 private:
  const WeightReader& source_;
  std::atomic<std::size_t> bytes_{0};
};

/// Reads every row and lets it go. Throws Error when one is not finite.
void check_rows(const WeightReader& source, std::size_t rows, std::size_t row) {
  constexpr std::size_t together = 64;
  std::vector<float> buffer(together * row);
  for (std::size_t first = 0; first < rows; first += together) {
    const std::size_t n = std::min(together, rows - first);
    source.read_rows(first, {buffer.data(), n * row});
  }
}

/// [..., a, b] -> [..., b, a], in place.
void swap_last_dims(std::span<float> values, std::size_t a, std::size_t b) {
  std::vector<float> row(a * b);
  for (std::size_t first = 0; first < values.size(); first += a * b) {
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(first), a * b, row.begin());
    for (std::size_t i = 0; i < a * b; ++i) values[first + i % b * a + i / b] = row[i];
  }
}

/// The index of the model that a weight is of.
std::size_t owner_of(const std::string& weight, const std::vector<ModelWeights>& models) {
  std::size_t owner = models.size();
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (!weight.starts_with(models[i].prefix)) continue;
    if (owner < models.size() && models[owner].prefix.size() > models[i].prefix.size()) continue;
    owner = i;
  }
  KVCAST_ASSERT(owner < models.size());
  return owner;
}

/// The weight as its checkpoint knows it.
TensorInfo own_info(const TensorInfo& weight, const ModelWeights& model) {
  TensorInfo info = weight;
  info.name.erase(0, model.prefix.size());
  return info;
}

}  // namespace

void check_weights(const std::vector<ModelWeights>& models,
                   const std::vector<const Graph*>& graphs) {
  std::vector<std::set<std::string>> names(models.size());
  for (const auto& [name, use] : uses_of(graphs)) {
    const std::size_t owner = owner_of(name, models);
    const TensorInfo info = own_info(*use.info, models[owner]);
    models[owner].checkpoint->check(info);
    names[owner].insert(info.name);
  }
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (models[i].may_leave) continue;
    // A helper model may serve with less than all of it: without its head, without its last layers.
    const Architecture& whole = models[i].checkpoint->architecture();
    if (!models[i].prefix.empty() && !whole.decoder.layers.empty()) {
      const Recording recording = record(whole, {}, {});
      for (const auto& [name, use] : uses_of({&recording.prefill(), &recording.decode()})) {
        names[i].insert(name);
      }
    }
    models[i].checkpoint->check_nothing_left({names[i].begin(), names[i].end()});
  }
}

WeightReader reader_of(const std::vector<ModelWeights>& models, const TensorInfo& weight) {
  const ModelWeights& model = models[owner_of(weight.name, models)];
  return model.checkpoint->reader(own_info(weight, model));
}

WeightTypes stored_weight_types(const Checkpoint& checkpoint) {
  WeightTypes types = DType::FP32;
  types.text = "as-stored";
  types.in_file = std::make_shared<const WeightTypes::InFile>(
      [checkpoint](const std::string& weight) -> std::optional<DType> {
        if (!checkpoint.holds(weight)) return {};
        const WeightReader reader = checkpoint.reader(weight);
        const std::optional<DType> dtype = reader.stored_dtype();
        const bool kept = dtype && has_strips(*dtype) && reader.shape().size() == 2;
        return kept ? dtype : std::nullopt;
      });
  return types;
}

WeightStore::WeightStore(const std::vector<ModelWeights>& models,
                         const std::vector<const Graph*>& graphs, WeightForm form, DType dtype,
                         Arithmetic arithmetic)
    : dtype_(dtype), arithmetic_(arithmetic) {
  KVCAST_ASSERT(dtype == DType::FP32 || form == WeightForm::Plain);
  // All shapes are checked before the first byte is converted.
  check_weights(models, graphs);
  const auto uses = uses_of(graphs);
  if (arithmetic == Arithmetic::INT8 && std::none_of(uses.begin(), uses.end(), [](const auto& use) {
        return use.second.matrices > 0 && has_bytes(use.second.info->dtype);
      })) {
    throw Error("--arithmetic int8", "no matrix of whole numbers with scales",
                "--weights as-stored and a file with some, such as Q8_0 or Q4_K");
  }
  for (const auto& [name, use] : uses) {
    load(weights_[name], reader_of(models, *use.info), use, form);
  }
  for (const ModelWeights& model : models) model.checkpoint->expect_look_ups();
}

void WeightStore::load(Weight& weight, const WeightReader& source, const WeightUse& use,
                       WeightForm form) {
  const TensorInfo& info = *use.info;
  const std::size_t rows = info.shape.front().constant();
  const std::size_t elements = info.elements().constant();
  const std::size_t row = elements / rows;
  if (form == WeightForm::Plain || use.rows) {
    const std::size_t floats = elements * floats_in(dtype_);
    weight.data = store_.take(floats);
    with_numbers(dtype_, weight.data,
                 [&](auto* numbers) { source.read_rows(0, std::span(numbers, elements)); });
    bytes_ += floats * sizeof(float);
  }
  if (form == WeightForm::Packed && use.matrices > 0) {
    // A convolution's [in, kernel] becomes [kernel, in], so that its input is copied frame by
    // frame.
    const std::size_t kernel = info.shape.size() > 2 ? info.shape[2].constant() : 1;
    const std::size_t of_each = rows / use.matrices;
    // In the type that the graphs say, if the file's rows have it.
    const bool as_stored =
        info.shape.size() == 2 && has_strips(info.dtype) && source.stored_dtype() == info.dtype;
    PagesOnTheWay pages(source);
    for (std::size_t first_row = 0; first_row < rows; first_row += of_each) {
      const auto fill = [&](std::size_t first, std::span<float> out) {
        source.read_rows(first_row + first, out);
        pages.have_read(out.size_bytes());
        if (kernel > 1) swap_last_dims(out, row / kernel, kernel);
      };
      const auto fill_stored = [&](std::size_t first, std::size_t n, std::span<std::byte> out) {
        source.read_stored(first_row + first, n, out);
        pages.have_read(out.size_bytes());
      };
      weight.matrices.push_back(
          as_stored ? Matrix(of_each, row, info.dtype, fill_stored, store_, arithmetic_)
                    : Matrix(of_each, row, fill, store_, arithmetic_));
      const std::uint64_t bytes = weight.matrices.back().bytes();
      bytes_ += bytes;
      Packed& packed = packed_[as_stored ? info.dtype : DType::FP32];
      ++packed.matrices;
      packed.bytes += bytes;
    }
  }
  if (form == WeightForm::Packed && use.table) {
    // Packing a tied matrix has read all of it; a table alone is read once to know that it is
    // sound.
    if (use.matrices == 0) check_rows(source, rows, row);
    weight.table = source;
  }
  // Rows of a table that are needed come back from the file.
  source.forget();
}

void WeightStore::bind(const TensorInfo& weight, Operand& operand) const {
  const auto found = weights_.find(weight.name);
  KVCAST_ASSERT(found != weights_.end());
  operand.data = found->second.data;
  operand.matrix = found->second.matrices.empty() ? nullptr : found->second.matrices.data();
  operand.table = found->second.table ? &*found->second.table : nullptr;
}

}  // namespace kvcast::execute
