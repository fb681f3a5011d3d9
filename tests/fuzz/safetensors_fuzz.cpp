// Whatever the bytes are, reading them as a safetensors file gives tensors or an Error, and so do
// weights that several of them hold together.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/base/error.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"
#include "model/io/weights/packed_checkpoint.h"

using namespace kvcast;

namespace {

void read_all(const std::vector<StoredTensor>& tensors) {
  for (const StoredTensor& tensor : tensors) {
    try {
      std::vector<float> values(tensor.elements());
      read_elements(tensor, 0, values);
      if (!tensor.packed || tensor.dtype == DType::FP32) continue;
      const std::uint64_t row = tensor.shape.back();
      std::vector<std::byte> blocks(row_bytes(*tensor.dtype, row));
      for (std::uint64_t at = 0; at < values.size(); at += row) read_blocks(tensor, at, blocks);
    } catch (const Error&) {
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using Method = Packing::Method;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    const std::vector<StoredTensor> stored =
        read_safetensors(MappedFile::from_bytes("fuzz.safetensors", {bytes, bytes + size}));
    read_all(stored);
    for (const Packing& packing :
         {Packing{Method::Fp8}, Packing{Method::Fp8, 2, 128}, Packing{Method::Mxfp4},
          Packing{Method::Awq, 0, 0, 32}, Packing{Method::Gptq, 0, 0, 32, 1}, Packing{Method::Gptq},
          Packing{Method::CompressedTensors}}) {
      try {
        read_all(unite_packed(stored, packing));
      } catch (const Error&) {
      }
    }
  } catch (const Error&) {
  }
  return 0;
}
