/// The catalog of the source tree.
#pragma once

#include <filesystem>

#include "model/io/weights/catalog.h"

namespace kvcast {

inline const Catalog& catalog() {
  static const Catalog c(std::filesystem::path(KVCAST_SOURCE_DIR) / "data");
  return c;
}

}  // namespace kvcast
