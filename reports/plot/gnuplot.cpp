#include "reports/plot/gnuplot.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/base/error.h"
#include "model/io/files/atomic_file.h"
#include "reports/plot/plot_script.h"
#include "reports/plot/plot_text.h"

extern char** environ;

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
  std::array<int, 2> pipe_ends{};
  if (::pipe2(pipe_ends.data(), O_CLOEXEC) != 0) fail(picture, std::strerror(errno));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDERR_FILENO);
  // Without the user's ~/.gnuplot, so that a plot looks the same everywhere.
  std::array<std::string, 3> words = {"gnuplot", "--default-settings",
                                      "./" + script.filename().string()};
  std::array<char*, 4> arguments = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, "gnuplot", &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(pipe_ends[1]);
  std::string said;
  std::array<char, 4096> buffer;
  ssize_t n = 0;
  while (error == 0 && (n = ::read(pipe_ends[0], buffer.data(), buffer.size())) != 0) {
    if (n > 0) said.append(buffer.data(), static_cast<std::size_t>(n));
    if (n < 0 && errno != EINTR) break;
  }
  ::close(pipe_ends[0]);
  if (error == ENOENT) {
    fail(picture, "the program gnuplot is not installed; install the package gnuplot-nox");
  }
  if (error != 0) fail(picture, std::string("gnuplot does not start: ") + std::strerror(error));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    fail(picture, "gnuplot was stopped by signal " + std::to_string(WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != 0) fail(picture, "gnuplot says: " + last_line(said));
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
