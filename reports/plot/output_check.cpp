#include "reports/plot/output_check.h"

#include <system_error>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/io/files/atomic_file.h"
#include "reports/plot/plot.h"

namespace kvcast::reports {

namespace fs = std::filesystem;

namespace {

fs::path resolved(const fs::path& path) {
  std::error_code ec;
  // Made absolute first: of a file that is not there yet, weakly_canonical keeps a relative name.
  const fs::path absolute = fs::absolute(path, ec);
  fs::path found = fs::weakly_canonical(absolute, ec);
  if (ec) found = absolute;
  return found.has_filename() ? found : found.parent_path();
}

}  // namespace

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

void check_plot_spares(const fs::path& picture, const fs::path& file, std::string_view flag) {
  const fs::path points = plot_files(picture).csv;
  if (file.empty() || resolved(points) != resolved(file)) return;
  throw Error("plot " + picture.string(), fmt::format("points that go to the file of {}", flag),
              "another stem");
}

void check_spares_input(const fs::path& file, const fs::path& input, std::string_view flag,
                        std::string_view read_by) {
  if (file.empty() || resolved(file) != resolved(input)) return;
  throw Error(std::string(flag), fmt::format("{}, which {} reads", file.string(), read_by),
              "another file");
}

void check_spares_folder(const fs::path& file, const fs::path& folder, std::string_view flag) {
  if (file.empty() || resolved(file) != resolved(folder)) return;
  throw Error(std::string(flag) + " " + file.string(), "the name of the new folder",
              "another name");
}

}  // namespace kvcast::reports
