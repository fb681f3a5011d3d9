/// Servers whose prompts several devices read together (methods kvr and tsp).
///
/// A group takes one prompt after another, each whole and as PlacedEstimator has it. Its last
/// device then has all of the cache and decodes, so that a server has that device's cache and
/// steps. With servers that decode, prompts' caches leave from there.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "search/chain_links.h"
#include "simulate/serving/model_server.h"

namespace kvcast::search {

/// simulate::make_model_server, for methods too that place prompts on several devices. `link`: as
/// PlacedEstimator has it. Throws Error as both do, and for partitions that fit one length of
/// prompt only.
simulate::ModelServer make_server(const roofline::Configuration& configuration,
                                  std::string_view scheduler, const std::string& place,
                                  const std::optional<double>& memory_share = {},
                                  const std::optional<HardwareLink>& link = {});

}  // namespace kvcast::search
