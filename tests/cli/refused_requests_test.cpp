// Bad input: every request of refused_requests.txt, which says what must hold of it.
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <string>

#include <doctest/doctest.h>

#include "tests/cli/program.h"
#include "tests/cli/shell.h"

namespace kvcast::cli {
namespace {

using Files = std::map<std::string, std::string>;

Files files_in(const fs::path& folder) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    files[entry.path().string()] = entry.is_regular_file() ? contents(entry.path()) : "";
  }
  return files;
}

}  // namespace

TEST_CASE("bad input: one clear line, the right status, nothing on stdout, no file changed") {
  const std::regex request(R"((.*) =(\d?)> (.*))");
  std::ifstream lines(source_folder / "tests/cli/refused_requests.txt");
  std::unique_ptr<TestFolder> folder;
  std::string shell;  // run before each request
  std::optional<Files> files;
  std::size_t requests = 0;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (line.empty() || line.starts_with("#")) continue;
    if (line.starts_with("== ")) {
      folder = std::make_unique<TestFolder>();
      shell = "cd " + folder->path().string() +
              "; source='" KVCAST_SOURCE_DIR "' oracle='" KVCAST_SOURCE_DIR
              "/tests/oracle' little_memory='" +
              little_memory + "'\n";
      files.reset();
    } else if (line.starts_with("$ ")) {
      shell += line.substr(2) + "\n";
      files.reset();
    } else {
      INFO(line);
      REQUIRE(std::regex_match(line, match, request));
      if (!files) {
        shell_output(shell);
        files = files_in(folder->path());
      }
      check_refused(match[1], match[3], match[2].length() == 0 ? 2 : std::stoi(match[2]), shell);
      CHECK(files_in(folder->path()) == *files);
      ++requests;
    }
  }
  CHECK(requests > 400);
}

}  // namespace kvcast::cli
