#include "model/convert/prune_conversion.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/config/layer_pruning.h"
#include "model/convert/checkpoint_writer.h"
#include "model/families/config_reader.h"
#include "model/io/weights/weight_map.h"

namespace kvcast {
namespace {

constexpr std::size_t numbers_at_a_time = std::size_t{1} << 20;

template <typename Number>
std::optional<Number> parse_all(std::string_view text) {
  Number number{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size()) return {};
  return number;
}

/// A list with an entry for each layer becomes that of the kept ones.
void prune_list(nlohmann::json& config, const char* key, const KeptLayers& pruning) {
  if (!config.contains(key)) return;
  const nlohmann::json all = config[key];
  if (!all.is_array() || all.size() != pruning.of) return;
  config[key] = nlohmann::json::array();
  for (const std::size_t i : pruning.kept) config[key].push_back(all[i]);
}

nlohmann::json config_of(const Checkpoint& checkpoint, const Architecture& after, DType dtype) {
  nlohmann::json config = source_config(checkpoint, dtype);
  for (const char* key : {"num_hidden_layers", "num_transformer_layers", "n_layer", "num_layers"}) {
    if (config.contains(key)) config[key] = after.num_hidden_layers();
  }
  for (const char* key : {"num_query_heads", "num_kv_heads", "ffn_multipliers", "layer_types"}) {
    prune_list(config, key, after.pruning);
  }
  // Which layers have a window follows from their index in these families, unless it is written.
  if (after.model_type == "gemma2" || after.model_type == "qwen2") {
    config["layer_types"] = nlohmann::json::array();
    for (const LayerShape& layer : after.decoder.layers) {
      config["layer_types"].push_back(layer.sliding_window > 0 ? "sliding_attention"
                                                               : "full_attention");
    }
  }
  config["kvcast_prune"] = {{"kept", after.pruning.kept}, {"of", after.pruning.of}};
  return config;
}

/// Where rows of a stored tensor come from.
struct Part {
  std::string weight;               ///< of the pruned model, "layers.3.query.weight"
  std::vector<std::uint64_t> rows;  ///< of the stored tensor; empty: all of it
};

/// A tensor of the file and what it is made of.
struct StoredPlan {
  TensorToWrite tensor;
  std::vector<Part> parts;
  bool transposed = false;
};

std::vector<StoredPlan> plan_tensors(const Architecture& a, const Recording& recording,
                                     DType dtype) {
  std::map<std::string, StoredPlan> plans;
  for (const auto& [name, info] : weights_of(recording)) {
    const WeightSource source = huggingface_weight(a, name);
    StoredPlan& plan = plans[source.names.front()];
    const TensorToWrite tensor = tensor_to_write(source.names.front(), info, dtype);
    if (plan.parts.empty()) {
      plan.tensor = tensor;
    } else {
      plan.tensor.shape[0] += tensor.shape[0];  // a part beside the others
    }
    plan.transposed = source.transposed;
    plan.parts.push_back({name, source.rows});
  }
  std::vector<StoredPlan> list;
  for (auto& [name, plan] : plans) {
    if (plan.transposed) std::swap(plan.tensor.shape[0], plan.tensor.shape[1]);
    list.push_back(std::move(plan));
  }
  return list;
}

/// Writes one stored tensor after another.
class Conversion {
 public:
  Conversion(const Checkpoint& source, const KeptLayers& pruning, CheckpointWriter& writer)
      : source_(source), pruning_(pruning), writer_(writer) {}

  void write(const StoredPlan& plan) {
    if (plan.parts.size() == 1 && !plan.transposed) return copy(reader(plan.parts.front()));
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : plan.tensor.shape) elements *= extent;
    const std::size_t rows = plan.tensor.shape[plan.transposed ? 1 : 0];
    const std::size_t row = elements / rows;
    std::vector<double> whole(elements);
    for (const Part& part : plan.parts) {
      const WeightReader r = reader(part);
      std::vector<double> numbers(r.shape().front() * row);
      r.read_rows(0, std::span(numbers));
      r.forget();
      for (std::size_t i = 0; i < numbers.size() / row; ++i) {
        const std::size_t at = part.rows.empty() ? i : part.rows[i];
        for (std::size_t c = 0; c < row; ++c) {
          whole[plan.transposed ? c * rows + at : at * row + c] = numbers[i * row + c];
        }
      }
    }
    writer_.write(whole);
  }

 private:
  /// The same weight of the layer that it was before.
  WeightReader reader(const Part& part) const {
    const WeightName name = parse_weight_name(part.weight);
    if (!name.layer) return source_.reader(part.weight);
    return source_.reader(
        fmt::format("layers.{}.{}{}", pruning_.kept[*name.layer], name.part, name.kind));
  }

  void copy(const WeightReader& reader) {
    const std::vector<std::uint64_t> shape = reader.shape();
    const std::size_t row = std::accumulate(shape.begin() + 1, shape.end(), std::size_t{1},
                                            [](std::size_t p, std::uint64_t n) { return p * n; });
    const std::size_t at_a_time = std::max<std::size_t>(1, numbers_at_a_time / row);
    std::vector<double> numbers;
    for (std::size_t first = 0; first < shape[0]; first += at_a_time) {
      numbers.resize(std::min<std::size_t>(at_a_time, shape[0] - first) * row);
      reader.read_rows(first, std::span(numbers));
      writer_.write(numbers);
    }
    reader.forget();
  }

  const Checkpoint& source_;
  const KeptLayers& pruning_;
  CheckpointWriter& writer_;
};

}  // namespace

std::vector<std::size_t> parse_kept_layers(std::string_view text, std::size_t num_hidden_layers) {
  const bool list = text.find('.') == std::string_view::npos;
  const auto fraction = parse_all<double>(text);
  if (!list && fraction) return retained_layers(num_hidden_layers, *fraction);
  std::vector<std::size_t> kept;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const auto index = parse_all<std::size_t>(text.substr(begin, end - begin));
    if (!index) {
      throw Error("layers to keep", "'" + std::string(text) + "'",
                  "0.75, 0.5 or 0.25, or indices such as 0,2,5");
    }
    kept.push_back(*index);
    begin = end + 1;
  }
  return kept;
}

ConversionReport convert_to_pruned(
    const Checkpoint& checkpoint, const std::filesystem::path& output,
    const PruneConversion& conversion,
    const std::function<void(std::uint64_t done, std::uint64_t all)>& on_tensor) {
  ConversionReport report;
  report.before = checkpoint.architecture();
  report.after = prune_layers(report.before, conversion.kept);
  const Recording before = record(report.before, {}, {});
  const Recording after = record(report.after, {}, {});
  check_source(checkpoint, before);
  report.compare(before, after);

  const nlohmann::json config = config_of(checkpoint, report.after, conversion.dtype);
  const Architecture written = read_config(config, report.after.name, output.string());
  KVCAST_ASSERT(written.decoder.layers == report.after.decoder.layers);
  const std::vector<StoredPlan> plans = plan_tensors(report.after, after, conversion.dtype);
  std::vector<TensorToWrite> tensors;
  for (const StoredPlan& plan : plans) tensors.push_back(plan.tensor);
  CheckpointWriter writer(output, config, tensors);
  if (checkpoint.gguf() == nullptr) report.copied_files = writer.copy_tokenizer(checkpoint.path());
  Conversion run(checkpoint, report.after.pruning, writer);
  std::uint64_t done = 0;
  for (const StoredPlan& plan : plans) {
    if (on_tensor) on_tensor(done++, plans.size());
    run.write(plan);
  }
  writer.commit();
  return report;
}

}  // namespace kvcast
