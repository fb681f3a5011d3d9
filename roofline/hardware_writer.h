/// Writes hardware files.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "roofline/hardware.h"

namespace kvcast::roofline {

/// {"lengths": [...], "values": [...]}, as a hardware file has them.
nlohmann::ordered_json by_length_json(const std::vector<FactorAt>& points);

/// The entries of a hardware file, in the order of data/hardware/README.md, as read_hardware reads
/// them. Measured numbers are written with five digits, others exactly.
nlohmann::ordered_json hardware_entries(const Hardware& hardware);

}  // namespace kvcast::roofline
