#include "model/convert/mlkv_conversion.h"

#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/convert/dense_matrix.h"
#include "model/convert/stored_form.h"
#include "model/families/family.h"
#include "model/io/weights/weight_map.h"

namespace kvcast {
namespace {

/// The rows of the converted model's weights.
class Conversion {
 public:
  Conversion(const Checkpoint& source, const Architecture& after, const MlkvConversion& conversion)
      : source_(source), after_(after), conversion_(conversion) {}

  DenseMatrix rows(const std::string& name, std::size_t first, std::size_t count) const {
    const WeightName parsed = parse_weight_name(name);
    if (parsed.part == "key" || parsed.part == "value" || parsed.part == "key_norm") {
      return merged(parsed, first, count);
    }
    const WeightReader reader = source_.reader(name);
    // Beyond the last row of the source stand copies of the first neurons.
    const std::size_t all = reader.shape().front();
    const std::size_t own = std::min(count, all - std::min(first, all));
    DenseMatrix rows = read_rows(reader, std::min(first, all), own);
    if (own < count) {
      rows.conservativeResize(index(count), rows.cols());
      rows.bottomRows(index(count - own)) = read_rows(reader, first + own - all, count - own);
    }
    reader.forget();
    return parsed.part == "down" && parsed.kind == ".weight" ? with_copied_columns(rows) : rows;
  }

 private:
  /// The first columns once more at the end: the copied neurons' way out of the MLP.
  DenseMatrix with_copied_columns(const DenseMatrix& rows) const {
    const Eigen::Index copies =
        index(after_.decoder.layers.front().intermediate_size -
              source_.architecture().decoder.layers.front().intermediate_size);
    DenseMatrix wide(rows.rows(), rows.cols() + copies);
    wide << rows, rows.leftCols(copies);
    if (conversion_.shape.widening == MlpWidening::Preserve) {
      wide.leftCols(copies) *= 0.5;
      wide.rightCols(copies) *= 0.5;
    }
    return wide;
  }

  /// Of a matrix, bias or norm of keys or values: the mean of heads within each layer, then the
  /// layers', head by head. A norm may be one for all heads.
  DenseMatrix merged(const WeightName& name, std::size_t first, std::size_t count) const {
    const Stack& after = after_.decoder;
    const Heads& before = source_.architecture().decoder.layers.front().heads;
    const std::size_t layers = after.layers.size() / after.num_key_value_layers;
    std::vector<WeightReader> readers;
    for (std::size_t i = 0; i < layers; ++i) {
      readers.push_back(source_.reader("layers." + std::to_string(*name.layer + i) + "." +
                                       name.part + name.kind));
    }
    const bool one_for_all = readers.front().shape().front() == before.head_dim;
    const std::size_t heads_in_one =
        one_for_all ? 1
                    : before.num_key_value_heads / after.layers.front().heads.num_key_value_heads;
    const std::size_t first_head = first / before.head_dim;
    const std::size_t end_head = (first + count + before.head_dim - 1) / before.head_dim;
    DenseMatrix all;
    for (std::size_t head = first_head; head < end_head; ++head) {
      const DenseMatrix merged = merged_head(readers, head * heads_in_one, heads_in_one);
      all.conservativeResize(all.rows() + merged.rows(), merged.cols());
      all.bottomRows(merged.rows()) = merged;
    }
    for (const WeightReader& reader : readers) reader.forget();
    return all.middleRows(index(first - first_head * before.head_dim), index(count));
  }

  DenseMatrix merged_head(const std::vector<WeightReader>& layers, std::size_t head,
                          std::size_t heads_in_one) const {
    const std::size_t head_dim = source_.architecture().decoder.layers.front().heads.head_dim;
    const bool mean = conversion_.merge == LayerMerge::Mean;
    DenseMatrix merged;
    for (const WeightReader& reader : layers) {
      DenseMatrix layer = mean_head(reader, head, heads_in_one, head_dim);
      if (mean) layer /= static_cast<double>(layers.size());
      if (merged.size() == 0) {
        merged = layer;
      } else {
        merged += layer;
        if (!mean) merged /= 2;
      }
    }
    return merged;
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

void add_mlkv_keys(const Architecture& before, const Architecture& after, nlohmann::json& config) {
  const LayerShape& layer = after.decoder.layers.front();
  config["num_key_value_heads"] = layer.heads.num_key_value_heads;
  config["num_key_value_layers"] = after.decoder.num_key_value_layers;
  if (layer.intermediate_size != before.decoder.layers.front().intermediate_size) {
    config[find_family(after.model_type)->keys.intermediate_size] = layer.intermediate_size;
  }
}

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

  const Conversion run(checkpoint, report.after, conversion);
  nlohmann::json config = source_config(checkpoint, conversion.dtype);
  add_mlkv_keys(report.before, report.after, config);
  write_in_own_form(
      checkpoint, output, config, after, conversion.dtype,
      [&](const std::string& name, std::size_t first, std::size_t count) {
        return run.rows(name, first, count);
      },
      on_tensor, report);
  return report;
}

}  // namespace kvcast
