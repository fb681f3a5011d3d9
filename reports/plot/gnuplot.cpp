#include "reports/plot/gnuplot.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include <unistd.h>

#include "model/base/error.h"
#include "model/base/shell_command.h"
#include "model/io/files/atomic_file.h"
#include "reports/plot/plot_script.h"
#include "reports/plot/plot_text.h"

namespace kvcast::reports {
namespace {

namespace fs = std::filesystem;

/// A folder for one drawing, removed with all that is in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "kvcast-plot-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error(name + ": cannot be created: " + std::strerror(errno), Fault::Run);
    }
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

[[noreturn]] void fail(const fs::path& picture, const std::string& reason) {
  throw Error(picture.string() + ": cannot be drawn: " + reason, Fault::Run);
}

/// The last line that holds anything: gnuplot's message, after the line it is about.
std::string last_line(std::string text) {
  text.erase(text.find_last_not_of(" \n\t\r") + 1);
  return printable(text.substr(text.find_last_of('\n') + 1));
}

/// Runs the script in `folder`. Its output is read only for the error.
void run_gnuplot(const fs::path& folder, const fs::path& script, const fs::path& picture) {
  // Without the user's ~/.gnuplot, so that a plot looks the same everywhere.
  const ShellRun run =
      run_shell("cd " + shell_quoted(folder.string()) + " && exec gnuplot --default-settings " +
                    shell_quoted("./" + script.filename().string()) + " </dev/null 2>&1",
                picture.string() + ": cannot be drawn", {});
  const std::string failure = run.failure();
  if (failure == "exit status 127") {
    fail(picture, "the program gnuplot is not installed; install the package gnuplot-nox");
  }
  if (failure.starts_with("ended")) fail(picture, "gnuplot was " + failure);
  if (!failure.empty()) fail(picture, "gnuplot says: " + last_line(run.output));
}

/// gnuplot ends with success on a full disk, so the picture's own end is looked at.
bool is_whole(std::string_view picture, Format format) {
  const std::string_view end = format == Format::Svg ? "</svg>" : "IEND";
  const std::size_t tail = std::min<std::size_t>(picture.size(), 16);
  return picture.substr(picture.size() - tail).find(end) != std::string_view::npos;
}

std::string file_content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

std::string drawn_picture(const PlotFiles& files, const std::string& csv,
                          const std::string& script) {
  const ScratchFolder scratch;
  write_file(scratch.path() / files.csv.filename(), csv);
  write_file(scratch.path() / files.script.filename(), script);
  run_gnuplot(scratch.path(), files.script, files.picture);
  std::string drawn = file_content(scratch.path() / files.picture.filename());
  if (!is_whole(drawn, format_of(files.picture))) {
    fail(files.picture, "gnuplot left an incomplete picture");
  }
  return drawn;
}

}  // namespace kvcast::reports
