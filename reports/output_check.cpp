#include "reports/output_check.h"

#include <system_error>

#include "reports/atomic_file.h"
#include "reports/plot.h"

namespace kvcast::reports {

namespace fs = std::filesystem;

void check_writable(const fs::path& path) {
  std::error_code ec;
  const fs::file_status status = fs::status(path, ec);
  const bool special =
      fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
  if (!special) const AtomicFile file(path);
}

void check_plot_writable(const fs::path& picture) {
  const PlotFiles files = plot_files(picture);
  for (const fs::path& file : {files.csv, files.script, files.picture}) check_writable(file);
}

}  // namespace kvcast::reports
