/// Published tables that are data: `data/published/PAPER.json` says which number is compared with
/// which formula. data/published/README.md describes the form.
#pragma once

#include <filesystem>
#include <vector>

#include "reports/reproduce/reproduce.h"

namespace kvcast::reports {

/// The tables of one JSON file. Throws Error naming the place: keys and lists that are missing,
/// unknown or of another type.
std::vector<PublishedTable> read_tables(const std::filesystem::path& file);

}  // namespace kvcast::reports
