#include "cli/frame/csv_output.h"

#include "model/base/error.h"

namespace kvcast::cli {

std::string csv_target(const std::string& csv) { return csv == "-" ? "/dev/stdout" : csv; }

void check_rows_alone(const std::string& csv,
                      const std::vector<std::pair<const char*, bool>>& flags) {
  if (csv != "-") return;
  for (const auto& [flag, given] : flags) {
    if (!given) continue;
    throw Error(std::string(flag) +
                ": what it prints and the rows of --csv - would share standard output; expected "
                "--csv FILE beside it");
  }
}

}  // namespace kvcast::cli
