/// How many tokens each expert has read, as runs count them and forecasts expect them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/config/architecture.h"

namespace kvcast {

/// By layer with experts: the tokens of each expert.
using RoutedTokens = std::map<std::uint64_t, std::vector<std::uint64_t>>;

/// Writes a CSV with the columns layer, expert and tokens. Throws Error as CsvWriter does.
void write_routed_tokens(const std::filesystem::path& path, const RoutedTokens& routed);

/// Gives the experts of the decoder the probabilities of such a file (Experts::probabilities): an
/// expert's share of its layer's tokens, times K. Experts that the file leaves out have none.
/// Throws Error for a layer without rows, a row without its expert, an expert twice, and one that
/// has more tokens than there were: more than 1/K of its layer's.
void expect_routed_tokens(const std::filesystem::path& path, Architecture& model);

/// Sets Experts::draws from a whole number. Throws Error for other words.
void expect_fullest(const std::string& draws, Architecture& model);
/// Sets Experts::copies likewise.
void copy_experts(const std::string& copies, Architecture& model);

}  // namespace kvcast
