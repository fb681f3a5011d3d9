/// Platforms from JSON files.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "simulate/platform.h"

namespace kvcast::simulate {

/// A graph, with links of one direction unless `both_directions` is true:
///     {"name": "two boxes", "devices": ["gpu0", "gpu1"], "switches": ["spine"],
///      "links": [{"from": "gpu0", "to": "spine", "bandwidth": "25 GB/s", "latency": "5 us",
///                 "both_directions": true}]}
/// or a built-in: {"topology": "ring", "devices": 8, "bandwidth": "300 GB/s", "latency": "2 us"},
/// or a node or a cluster of them, as roofline::read_interconnect reads it.
/// `description` and `reference` are for people; data/platforms has one of each topology. Throws
/// Error, naming the file and the place in it: unknown keys and nodes, names used twice, quantities
/// without a unit, what Platform refuses.
Platform read_platform(const std::filesystem::path& path);

/// The same, from a document; `place` starts the errors.
Platform parse_platform(const nlohmann::json& document, const std::string& place);

}  // namespace kvcast::simulate
