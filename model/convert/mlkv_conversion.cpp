#include "model/convert/mlkv_conversion.h"

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/convert/dense_matrix.h"
#include "model/io/weights/weight_map.h"

namespace kvcast {
namespace {

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
  Conversion(const Checkpoint& source, const Architecture& after, const MlkvConversion& conversion)
      : source_(source), after_(after), conversion_(conversion) {}

  void write(const std::string& name, CheckpointWriter& writer) const {
    const WeightName parsed = parse_weight_name(name);
    if (parsed.part == "key" || parsed.part == "value") return merge(parsed, writer);
    const WeightReader reader = source_.reader(name);
    const std::size_t rows = reader.shape().front();
    const bool widens_columns = parsed.part == "down" && parsed.kind == ".weight";
    const auto copy = [&](const DenseMatrix& piece) { writer.write(numbers_of(piece)); };
    for_pieces(reader, rows, [&](const DenseMatrix& piece) {
      copy(widens_columns ? with_copied_columns(piece) : piece);
    });
    if (parsed.part == "up" || parsed.part == "gate") for_pieces(reader, added(), copy);
    reader.forget();
  }

 private:
  std::size_t added() const {
    return after_.decoder.layers.front().intermediate_size -
           source_.architecture().decoder.layers.front().intermediate_size;
  }

  /// The first columns once more at the end: the copied neurons' way out of the MLP.
  DenseMatrix with_copied_columns(const DenseMatrix& rows) const {
    const Eigen::Index copies = index(added());
    DenseMatrix wide(rows.rows(), rows.cols() + copies);
    wide << rows, rows.leftCols(copies);
    if (conversion_.shape.widening == MlpWidening::Preserve) {
      wide.leftCols(copies) *= 0.5;
      wide.rightCols(copies) *= 0.5;
    }
    return wide;
  }

  /// A matrix or bias of keys or values: the mean of heads within each layer, then the layers'.
  void merge(const WeightName& name, CheckpointWriter& writer) const {
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
      DenseMatrix merged;
      for (const WeightReader& reader : readers) {
        DenseMatrix layer = mean_head(reader, head, heads_in_one, before.head_dim);
        if (mean) layer /= static_cast<double>(layers);
        if (merged.size() == 0) {
          merged = layer;
        } else {
          merged += layer;
          if (!mean) merged /= 2;
        }
      }
      writer.write(numbers_of(merged));
    }
    for (const WeightReader& reader : readers) reader.forget();
  }

  /// The mean of `heads` heads of `head_dim` rows each.
  static DenseMatrix mean_head(const WeightReader& reader, std::size_t first, std::size_t heads,
                               std::size_t head_dim) {
    DenseMatrix sum = read_rows(reader, first * head_dim, head_dim);
    for (std::size_t h = first + 1; h < first + heads; ++h) {
      sum += read_rows(reader, h * head_dim, head_dim);
    }
    return sum / static_cast<double>(heads);
  }

  const Checkpoint& source_;
  const Architecture& after_;
  const MlkvConversion& conversion_;
};

}  // namespace

LayerMerge parse_layer_merge(std::string_view word) {
  if (word == "mean") return LayerMerge::Mean;
  if (word == "sequential") return LayerMerge::Sequential;
  throw unknown_name("merge", word, {"mean", "sequential"});
}

MlkvReport convert_to_mlkv(const Checkpoint& checkpoint, const std::filesystem::path& output,
                           const MlkvConversion& conversion, const Progress& on_tensor) {
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

  std::vector<std::string> names;
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, info] : weights_of(after)) {
    names.push_back(name);
    tensors.push_back(tensor_to_write(huggingface_weight(report.after, name).names.front(), info,
                                      conversion.dtype));
  }
  const Conversion run(checkpoint, report.after, conversion);
  write_converted(
      checkpoint, output, config_of(checkpoint, report.after, conversion.dtype), tensors,
      [&](std::size_t i, CheckpointWriter& writer) { run.write(names[i], writer); }, on_tensor,
      report);
  return report;
}

}  // namespace kvcast
