#include "model/convert/mlkv_conversion.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/convert/checkpoint_writer.h"
#include "model/io/weights/weight_map.h"

namespace kvcast {
namespace {

constexpr std::size_t numbers_at_a_time = std::size_t{1} << 20;

nlohmann::json config_of(const Checkpoint& checkpoint, const Architecture& after, DType dtype) {
  nlohmann::json config = source_config(checkpoint, dtype);
  const LayerShape& layer = after.decoder.layers.front();
  config["num_key_value_heads"] = layer.heads.num_key_value_heads;
  config["num_key_value_layers"] = after.decoder.num_key_value_layers;
  config["intermediate_size"] = layer.intermediate_size;
  return config;
}

/// Writes one weight after another.
class Conversion {
 public:
  Conversion(const Checkpoint& source, const Architecture& after, const MlkvConversion& conversion,
             CheckpointWriter& writer)
      : source_(source), after_(after), conversion_(conversion), writer_(writer) {}

  void write(const std::string& name) {
    const WeightName parsed = parse_weight_name(name);
    if (parsed.part == "key" || parsed.part == "value") return merge(parsed);
    const WeightReader reader = source_.reader(name);
    if (parsed.part == "down" && parsed.kind == ".weight") {
      widen_columns(reader);
    } else {
      const std::uint64_t rows = reader.shape().front();
      copy_rows(reader, rows);
      if (parsed.part == "up" || parsed.part == "gate") copy_rows(reader, added());
    }
    reader.forget();
  }

 private:
  std::uint64_t added() const {
    return after_.decoder.layers.front().intermediate_size -
           source_.architecture().decoder.layers.front().intermediate_size;
  }

  /// Rows 0 ... count - 1 as they are.
  void copy_rows(const WeightReader& reader, std::uint64_t count) {
    const std::size_t row = row_of(reader);
    const std::size_t rows_at_a_time = std::max<std::size_t>(1, numbers_at_a_time / row);
    for (std::size_t first = 0; first < count; first += rows_at_a_time) {
      writer_.write(read(reader, first, std::min<std::size_t>(rows_at_a_time, count - first)));
    }
  }

  /// Each row's first numbers once more at its end: the copied neurons' way out of the MLP.
  void widen_columns(const WeightReader& reader) {
    const std::uint64_t rows = reader.shape().front();
    const std::size_t copies = added();
    const double share = conversion_.shape.widening == MlpWidening::Preserve ? 0.5 : 1;
    for (std::size_t r = 0; r < rows; ++r) {
      std::vector<double> row = read(reader, r, 1);
      for (std::size_t i = 0; i < copies; ++i) row[i] *= share;
      row.reserve(row.size() + copies);
      row.insert(row.end(), row.begin(), row.begin() + static_cast<std::ptrdiff_t>(copies));
      writer_.write(row);
    }
  }

  /// A matrix or bias of keys or values: the mean of heads within each layer, then the layers'.
  void merge(const WeightName& name) {
    const Stack& after = after_.decoder;
    const Heads& before = source_.architecture().decoder.layers.front().heads;
    const std::size_t heads_in_one =
        before.num_key_value_heads / after.layers.front().heads.num_key_value_heads;
    const std::size_t layers = after.layers.size() / after.num_key_value_layers;
    std::vector<WeightReader> readers;
    for (std::size_t i = 0; i < layers; ++i) {
      readers.push_back(source_.reader("layers." + std::to_string(*name.layer + i) + "." +
                                       name.part + name.kind));
    }
    const bool mean = conversion_.merge == LayerMerge::Mean;
    for (std::size_t head = 0; head < before.num_key_value_heads; head += heads_in_one) {
      std::vector<double> merged;
      for (std::size_t i = 0; i < layers; ++i) {
        const std::vector<double> layer =
            mean_head(readers[i], head * before.head_dim, heads_in_one, before.head_dim);
        if (i == 0) merged.assign(layer.size(), 0);
        for (std::size_t j = 0; j < layer.size(); ++j) {
          if (mean) {
            merged[j] += layer[j] / static_cast<double>(layers);
          } else {
            merged[j] = i == 0 ? layer[j] : (merged[j] + layer[j]) / 2;
          }
        }
      }
      writer_.write(merged);
    }
    for (const WeightReader& reader : readers) reader.forget();
  }

  /// The mean of `heads` heads of `head_dim` rows each, from row `first` on.
  static std::vector<double> mean_head(const WeightReader& reader, std::size_t first,
                                       std::size_t heads, std::size_t head_dim) {
    std::vector<double> sum = read(reader, first, head_dim);
    for (std::size_t h = 1; h < heads; ++h) {
      const std::vector<double> head = read(reader, first + h * head_dim, head_dim);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += head[i];
    }
    for (double& x : sum) x /= static_cast<double>(heads);
    return sum;
  }

  static std::size_t row_of(const WeightReader& reader) {
    std::size_t row = 1;
    const std::vector<std::uint64_t> shape = reader.shape();
    for (std::size_t i = 1; i < shape.size(); ++i) row *= shape[i];
    return row;
  }

  static std::vector<double> read(const WeightReader& reader, std::size_t first, std::size_t rows) {
    std::vector<double> numbers(rows * row_of(reader));
    reader.read_rows(first, std::span(numbers));
    return numbers;
  }

  const Checkpoint& source_;
  const Architecture& after_;
  const MlkvConversion& conversion_;
  CheckpointWriter& writer_;
};

}  // namespace

LayerMerge parse_layer_merge(std::string_view word) {
  if (word == "mean") return LayerMerge::Mean;
  if (word == "sequential") return LayerMerge::Sequential;
  throw unknown_name("merge", word, {"mean", "sequential"});
}

MlkvReport convert_to_mlkv(
    const Checkpoint& checkpoint, const std::filesystem::path& output,
    const MlkvConversion& conversion,
    const std::function<void(std::uint64_t done, std::uint64_t all)>& on_tensor) {
  MlkvReport report;
  report.before = checkpoint.architecture();
  check_unconverted(report.before, checkpoint.path().string());
  report.after = to_mlkv(report.before, conversion.shape);
  const Recording before = record(report.before, {}, {});
  const Recording after = record(report.after, {}, {});
  check_source(checkpoint, before);
  report.compare(before, after);
  const Stack& stack = report.after.decoder;
  for (std::size_t i = 0; i < stack.layers.size(); ++i) {
    if (!stack.layers[i].kv_layer) report.groups.emplace_back();
    report.groups.back().push_back(i);
  }

  const std::map<std::string, TensorInfo> weights = weights_of(after);
  std::vector<TensorToWrite> plans;
  for (const auto& [name, info] : weights) {
    plans.push_back(tensor_to_write(huggingface_weight(report.after, name).names.front(), info,
                                    conversion.dtype));
  }
  CheckpointWriter writer(output, config_of(checkpoint, report.after, conversion.dtype), plans);
  if (checkpoint.gguf() == nullptr) report.copied_files = writer.copy_tokenizer(checkpoint.path());
  Conversion run(checkpoint, report.after, conversion, writer);
  std::uint64_t done = 0;
  for (const auto& [name, info] : weights) {
    if (on_tensor) on_tensor(done++, weights.size());
    run.write(name);
  }
  writer.commit();
  return report;
}

}  // namespace kvcast
