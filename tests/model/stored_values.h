/// What a stored tensor holds.
#pragma once

#include <vector>

#include "model/io/tensors/stored_tensor.h"

namespace kvcast {

inline std::vector<float> all_of(const StoredTensor& tensor) {
  std::vector<float> values(tensor.elements());
  read_elements(tensor, 0, values);
  return values;
}

}  // namespace kvcast
