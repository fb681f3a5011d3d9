// Whatever the bytes are, reading them as a GGUF file gives metadata, tensors and a model's config,
// or an Error.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/families/config_reader.h"
#include "model/families/gguf_config.h"
#include "model/io/tensors/block_writer.h"
#include "model/io/tensors/gguf.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/weights/weight_map.h"

using namespace kvcast;

namespace {

template <typename Action>
void allow_error(Action action) {
  try {
    action();
  } catch (const Error&) {
  }
}

void read_all_metadata(const GgufMetadata& metadata) {
  for (const std::string_view key : metadata.keys()) {
    allow_error([&] { metadata.text(key); });
    allow_error([&] { metadata.whole(key); });
    allow_error([&] { metadata.number(key); });
    allow_error([&] { metadata.flag(key); });
    allow_error([&] { metadata.texts(key); });
    allow_error([&] { metadata.integers(key); });
    allow_error([&] { metadata.numbers(key); });
  }
}

void read_model(const GgufFile& file) {
  const Architecture a = read_config(gguf_config(file), "fuzz", "fuzz.gguf");
  for (const char* part : {"query.weight", "key.bias", "value.weight", "gate.weight", "up.weight",
                           "attention_norm.weight", "mlp_norm.bias"}) {
    allow_error([&] { gguf_weight(a, std::string("layers.0.") + part); });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  allow_error([&] {
    const GgufFile file = read_gguf(MappedFile::from_bytes("fuzz.gguf", {bytes, bytes + size}));
    read_all_metadata(file.metadata);
    for (const StoredTensor& tensor : file.tensors) {
      allow_error([&] {
        std::vector<float> values(tensor.elements());
        read_elements(tensor, 0, values);
      });
      const bool is_kept =
          tensor.dtype && can_write_blocks(*tensor.dtype) && tensor.dtype != DType::FP32;
      if (is_kept || tensor.dtype == DType::IQ4_XS || tensor.dtype == DType::MXFP4) {
        allow_error([&] {
          std::vector<std::byte> blocks(tensor.bytes.size());
          read_blocks(tensor, 0, blocks);
        });
      }
    }
    read_model(file);
  });
  return 0;
}
