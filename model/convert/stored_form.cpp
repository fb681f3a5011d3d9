#include "model/convert/stored_form.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/families/config_reader.h"
#include "model/io/weights/weight_map.h"

namespace kvcast {
namespace {

std::uint64_t elements_of(const std::vector<std::uint64_t>& shape) {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : shape) product *= extent;
  return product;
}

/// A weight of which each piece is a tensor.
void add_pieces(const std::string& weight, const WeightSource& source, const TensorToWrite& whole,
                std::map<std::string, StoredForm>& forms) {
  for (std::uint64_t i = 0; i < source.pieces; ++i) {
    StoredForm form;
    form.tensor = whole;
    form.tensor.name = piece_name(source.names.front(), i);
    form.tensor.shape[0] /= source.pieces;
    form.parts.push_back({weight, {}});
    form.first_row = i * form.tensor.shape[0];
    form.offset = source.offset;
    forms.emplace(form.tensor.name, std::move(form));
  }
}

/// [rows, in] becomes the shape in the file.
void finish_shape(StoredForm& form) {
  std::vector<std::uint64_t>& shape = form.tensor.shape;
  const bool matrix = shape.size() > 1;
  if (form.blocks > 0) {
    shape[0] /= form.blocks;
    shape.insert(shape.begin(), form.blocks);
  }
  if (form.transposed && matrix) std::swap(shape.end()[-1], shape.end()[-2]);
}

/// One weight, as the forward pass reads it.
bool is_plain(const StoredForm& form) {
  return form.parts.size() == 1 && form.parts.front().rows.empty() && !form.first_row &&
         form.blocks == 0 && !form.transposed && form.offset == 0;
}

/// Some MiB at a time.
void write_plain(const StoredForm& form, const WeightRows& rows_of, CheckpointWriter& writer) {
  constexpr std::uint64_t numbers_at_a_time = std::uint64_t{1} << 20;
  const std::uint64_t rows = form.tensor.shape.front();
  const std::uint64_t row_size = elements_of(form.tensor.shape) / rows;
  const std::uint64_t at_a_time = std::max<std::uint64_t>(1, numbers_at_a_time / row_size);
  for (std::uint64_t first = 0; first < rows; first += at_a_time) {
    writer.write(
        numbers_of(rows_of(form.parts.front().weight, first, std::min(at_a_time, rows - first))));
  }
}

}  // namespace

std::vector<StoredForm> stored_forms(const Architecture& read, const Recording& recording,
                                     DType dtype) {
  Architecture a = read;
  a.wrapper.clear();  // a converted text model stands alone
  std::map<std::string, StoredForm> forms;
  for (const auto& [name, info] : weights_of(recording)) {
    const WeightSource source = huggingface_weight(a, name);
    const TensorToWrite tensor = tensor_to_write(source.names.front(), info, dtype);
    if (source.pieces > 0) {
      add_pieces(name, source, tensor, forms);
      continue;
    }
    StoredForm& form = forms[tensor.name];
    if (form.parts.empty()) {
      form.tensor = tensor;
    } else {
      form.tensor.shape[0] += tensor.shape[0];  // a part beside the others
    }
    form.parts.push_back({name, source.rows});
    form.blocks = source.blocks;
    form.transposed = source.transposed;
    form.offset = source.offset;
  }
  std::vector<StoredForm> list;
  for (auto& [name, form] : forms) {
    finish_shape(form);
    list.push_back(std::move(form));
  }
  return list;
}

void write_stored(const StoredForm& form, const WeightRows& rows_of, CheckpointWriter& writer) {
  if (is_plain(form)) return write_plain(form, rows_of, writer);
  const std::vector<std::uint64_t>& shape = form.tensor.shape;
  const std::size_t first_extent = form.blocks > 0 ? 1 : 0;
  const std::uint64_t blocks = std::max<std::uint64_t>(form.blocks, 1);
  const bool matrix = shape.size() > first_extent + 1;
  const std::uint64_t elements = elements_of(shape) / blocks;
  const std::uint64_t rows = !matrix           ? elements
                             : form.transposed ? shape.back()
                                               : shape[first_extent];
  for (std::uint64_t b = 0; b < blocks; ++b) {
    DenseMatrix block(index(rows), index(elements / rows));
    for (const StoredForm::Part& part : form.parts) {
      const std::uint64_t count = part.rows.empty() ? rows : part.rows.size() / blocks;
      const std::uint64_t first = form.first_row.value_or(0) + b * count;
      const DenseMatrix own = rows_of(part.weight, first, count);
      for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t at = part.rows.empty() ? i : part.rows[b * count + i] - b * rows;
        block.row(index(at)) = own.row(index(i));
      }
    }
    block.array() -= form.offset;
    if (form.transposed) block.transposeInPlace();
    writer.write(numbers_of(block));
  }
}

void write_in_own_form(const Checkpoint& source, const std::filesystem::path& output,
                       const nlohmann::json& config, const Recording& recording, DType dtype,
                       const WeightRows& rows_of, const Progress& on_tensor,
                       ConversionReport& report) {
  const Architecture read = read_config(config, report.after.name, output.string());
  if (read.decoder.layers != report.after.decoder.layers) {
    throw Error("the layers of " + report.before.name,
                "a family whose config.json cannot say them one by one", "one that can");
  }
  const std::vector<StoredForm> forms = stored_forms(report.after, recording, dtype);
  std::vector<TensorToWrite> tensors;
  for (const StoredForm& form : forms) tensors.push_back(form.tensor);
  write_converted(
      source, output, config, tensors,
      [&](std::size_t i, CheckpointWriter& writer) { write_stored(forms[i], rows_of, writer); },
      on_tensor, report);
}

}  // namespace kvcast
