#include "model/convert/mlkv_conversion.h"

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/convert/dense_matrix.h"
#include "model/convert/stored_form.h"
#include "model/io/weights/weight_map.h"

namespace kvcast {
namespace {

nlohmann::json config_of(const Checkpoint& checkpoint, const Architecture& after, DType dtype) {
  nlohmann::json config = source_config(checkpoint, dtype);
  const LayerShape& layer = after.decoder.layers.front();
  config["num_key_value_heads"] = layer.heads.num_key_value_heads;
  config["num_key_value_layers"] = after.decoder.num_key_value_layers;
  if (layer.intermediate_size !=
      checkpoint.architecture().decoder.layers.front().intermediate_size) {
    config["intermediate_size"] = layer.intermediate_size;
  }
  return config;
}

/// Writes one weight after another.
class Conversion {
 public:
  Conversion(const Checkpoint& source, const Architecture& after, const MlkvConversion& conversion)
      : source_(source), after_(after), conversion_(conversion) {}

  void write(const StoredForm& form, CheckpointWriter& writer) const {
    if (form.is_plain()) return write(form.parts.front().weight, writer);
    write_stored(
        form,
        [&](const std::string& name, std::size_t first, std::size_t count) -> DenseMatrix {
          const WeightName parsed = parse_weight_name(name);
          if (parsed.part != "key_norm") return read_rows(source_.reader(name), first, count);
          return merged_norm(parsed).middleRows(index(first), index(count));
        },
        writer);
  }

 private:
  void write(const std::string& name, CheckpointWriter& writer) const {
    const WeightName parsed = parse_weight_name(name);
    if (parsed.part == "key" || parsed.part == "value") {
      return merge(parsed, [&](const DenseMatrix& head) { writer.write(numbers_of(head)); });
    }
    if (parsed.part == "key_norm") return writer.write(numbers_of(merged_norm(parsed)));
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

  /// Of each head, or one for all heads, or one for all heads together.
  DenseMatrix merged_norm(const WeightName& name) const {
    DenseMatrix all(0, 1);
    merge(name, [&](const DenseMatrix& head) {
      const Eigen::Index before = all.rows();
      all.conservativeResize(before + head.rows(), 1);
      all.bottomRows(head.rows()) = head;
    });
    return all;
  }

  /// A matrix, bias or norm of keys or values: the mean of heads within each layer, then the
  /// layers', head by head.
  void merge(const WeightName& name, const std::function<void(const DenseMatrix&)>& use) const {
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
    const bool one_for_all = readers.front().shape().front() == before.head_dim;  // heads' norm
    const std::size_t heads = one_for_all ? 1 : before.num_key_value_heads;
    for (std::size_t head = 0; head < heads; head += heads_in_one) {
      DenseMatrix merged;
      for (const WeightReader& reader : readers) {
        DenseMatrix layer =
            mean_head(reader, head, one_for_all ? 1 : heads_in_one, before.head_dim);
        if (mean) layer /= static_cast<double>(layers);
        if (merged.size() == 0) {
          merged = layer;
        } else {
          merged += layer;
          if (!mean) merged /= 2;
        }
      }
      use(merged);
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

  const std::vector<StoredForm> forms = stored_forms(report.after, after, conversion.dtype);
  std::vector<TensorToWrite> tensors;
  for (const StoredForm& form : forms) tensors.push_back(form.tensor);
  const Conversion run(checkpoint, report.after, conversion);
  write_converted(
      checkpoint, output, config_of(checkpoint, report.after, conversion.dtype), tensors,
      [&](std::size_t i, CheckpointWriter& writer) { run.write(forms[i], writer); }, on_tensor,
      report);
  return report;
}

}  // namespace kvcast
