// Whatever the bytes are, reading them as a safetensors file gives tensors or an Error.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/base/error.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"

using namespace kvcast;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    const std::vector<StoredTensor> stored =
        read_safetensors(MappedFile::from_bytes("fuzz.safetensors", {bytes, bytes + size}));
    for (const StoredTensor& tensor : stored) {
      std::vector<float> values(tensor.elements());
      read_elements(tensor, 0, values);
    }
  } catch (const Error&) {
  }
  return 0;
}
