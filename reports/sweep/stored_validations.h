/// The stored validations behind error bounds, for programs that ask many times: reading them costs
/// more than an estimate.
#pragma once

#include <string>
#include <vector>

#include "measure/validation_store.h"
#include "model/io/weights/catalog.h"

namespace kvcast::reports {

/// As ValidationStore(catalog, hardware). Those of the catalog are kept on each thread, and read
/// again once a file of its validations or devices has changed.
measure::ValidationStore stored_validations(const Catalog& catalog,
                                            const std::vector<std::string>& hardware);

}  // namespace kvcast::reports
