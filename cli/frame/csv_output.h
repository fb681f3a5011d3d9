/// `--csv FILE` of the commands whose rows may go to standard output.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvcast::cli {

/// The file to write; "-" is standard output.
std::string csv_target(const std::string& csv);

/// With `--csv -` the rows have standard output to themselves. Throws Error naming the first of
/// `flags` that is given and would print there too; flags with whether they are given.
void check_rows_alone(const std::string& csv,
                      const std::vector<std::pair<const char*, bool>>& flags);

}  // namespace kvcast::cli
