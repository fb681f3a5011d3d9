// What the program says of itself: version, manual page, completion, and the report command.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <doctest/doctest.h>
#include <unistd.h>

#include "tests/cli/program.h"
#include "tests/cli/shell.h"

namespace kvcast::cli {
namespace {

namespace fs = std::filesystem;

/// What bash offers for the last of `words`.
std::string completions(const std::string& words) {
  return shell_output(
      "PATH=$(dirname '" KVCAST_PROGRAM
      "'):$PATH bash -c 'source <(kvcast completion bash); "
      "COMP_WORDS=(" +
      words + "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _kvcast; echo \" ${COMPREPLY[*]} \"'");
}

TEST_CASE("documents: --version says what the program was built with") {
  const ProgramResult result = run_program("--version");
  CHECK(result.status == 0);
  CHECK(result.output.starts_with("kvcast 0."));
  for (const char* fact : {"\ncommit ", "\ncompiler ", "\nbuild type ", "\nMPI ", "\noneDNN "}) {
    CAPTURE(fact);
    CHECK(result.output.find(fact) != std::string::npos);
  }
}

TEST_CASE("documents: the manual page has every command and option of the program") {
  const ProgramResult man = run_program("man");
  CHECK(man.status == 0);
  CHECK(man.output.starts_with(".TH KVCAST 1 "));
  for (const char* part :
       {".SH SYNOPSIS", ".SH EXIT STATUS", ".SS kvcast estimate\n", ".SS kvcast choose slim\n",
        ".SS kvcast simulate prefill\n", ".SS kvcast report\n", "\\fB\\-p, \\-\\-prompt\\-len\\fR",
        "\\fB\\-q, \\-\\-quiet\\fR", "kvcast man >kvcast.1"}) {
    CAPTURE(part);
    CHECK(man.output.find(part) != std::string::npos);
  }
  // What holds for all commands stands there once.
  for (const std::string once : {"\nMethods, NAME", "\\-\\-help\\fR"}) {
    CAPTURE(once);
    const std::size_t first = man.output.find(once);
    CHECK(first != std::string::npos);
    CHECK(man.output.find(once, first + 1) == std::string::npos);
  }
  for (const std::string& line : {std::string("\n.help"), std::string("\n'")}) {
    CHECK(man.output.find(line) == std::string::npos);  // no text taken for a roff request
  }
}

TEST_CASE("documents: bash completes commands, flags, models and hardware") {
  CHECK(completions("kvcast est") == " estimate \n");
  CHECK(completions("kvcast choose ml") == " mlkv \n");
  CHECK(completions("kvcast estimate --prompt-l").find(" --prompt-len ") != std::string::npos);
  CHECK(completions("kvcast --qui") == " --quiet \n");
  CHECK(completions("kvcast estimate --model llama-7").find(" llama-7b ") != std::string::npos);
  CHECK(completions("kvcast estimate --hardware h2").find(" h200 ") != std::string::npos);
  CHECK(completions("kvcast model show llama-7").find(" llama-7b ") != std::string::npos);
  CHECK(completions("kvcast estimate --prompt-len 4") == "  \n");
  CHECK(completions("kvcast estimate --model = llama-7").find(" llama-7b ") != std::string::npos);
}

TEST_CASE("documents: other shells get a script, unknown ones an error") {
  const std::string zsh = run_program("completion zsh").output;
  CHECK(zsh.starts_with("#compdef kvcast"));
  // zsh ties `path` to PATH: a local one left the lists of models and hardware empty.
  for (const char* own : {" path=", " words="}) CHECK(zsh.find(own) == std::string::npos);
  CHECK(run_program("completion fish").output.find("-a estimate ") != std::string::npos);
  check_refused("completion bsah", "did you mean 'bash'?");
}

struct Folder {
  Folder() : path("/tmp/kvcast_report_" + std::to_string(::getpid())) {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

TEST_CASE("report: a page that does not fit the disk is one line, and the earlier page stays") {
  const Folder results;
  const std::string estimate = "estimate --json --model llama-7b --hardware a100-80gb ";
  REQUIRE(run_program(estimate + ">" + results.path + "/estimate.json").status == 0);
  std::ofstream(results.path + "/report.html") << "earlier";
  // 4 blocks of 1024 bytes; beyond them the system sends a signal, which used to end the program.
  const std::string said = shell_output("bash -c 'ulimit -f 4; \"" KVCAST_PROGRAM "\" report " +
                                        results.path + " 2>&1; echo status $?'");
  CHECK(said ==
        "kvcast: " + results.path + "/report.html: cannot be written: File too large\nstatus 1\n");
  std::ostringstream kept;
  kept << std::ifstream(results.path + "/report.html").rdbuf();
  CHECK(kept.str() == "earlier");
}

TEST_CASE("report: a folder of results becomes one page") {
  const Folder results;
  const std::string point = "--model llama-7b --hardware a100-80gb --prompt-len 1k";
  REQUIRE(run_program("estimate --json " + point + " >" + results.path + "/estimate.json").status ==
          0);
  REQUIRE(run_program("sweep " + point + ",2k --csv " + results.path + "/sweep.csv").status == 0);
  REQUIRE(run_program("reproduce all --csv " + results.path + "/all.csv").status == 0);
  const ProgramResult result = run_program("report " + results.path);
  CHECK(result.status == 0);
  CHECK(result.output == results.path + "/report.html\n");
  CHECK(result.errors.empty());
  std::ostringstream html;
  html << std::ifstream(results.path + "/report.html").rdbuf();
  CHECK(html.str().find("estimate.json: estimate</h2>") != std::string::npos);
  CHECK(html.str().find("sweep.csv: sweep</h2>") != std::string::npos);
  CHECK(html.str().find("all.csv: reproduce</h2>") != std::string::npos);
  CHECK(html.str().find("DIFFERS") == std::string::npos);
}

TEST_CASE("report: a full disk is one line, and the earlier report stays") {
  const Folder results;
  std::ofstream(results.path + "/a.json") << "{\"ttft_s\": 1}";
  std::ofstream(results.path + "/report.html") << "earlier";
  const ProgramResult full = run_program("report " + results.path + " --output /dev/full");
  CHECK(full.status == 1);
  CHECK(full.output.empty());
  CHECK(std::count(full.errors.begin(), full.errors.end(), '\n') == 1);
  CHECK(full.errors.find("/dev/full") != std::string::npos);
  const ProgramResult result =
      run_program("report " + results.path + " --output " + results.path + "/a.json");
  CHECK(result.status == 2);
  CHECK(result.errors == "kvcast: --output: got " + results.path +
                             "/a.json, a file that is no page, expected a new file, or a page to "
                             "write anew\n");
  // A limit on file sizes stops the page midway, as a full disk does.
  const ProgramResult limited = run_program("report " + results.path, "trap '' XFSZ; ulimit -f 1;");
  CHECK(limited.status == 1);
  CHECK(std::count(limited.errors.begin(), limited.errors.end(), '\n') == 1);
  std::ostringstream kept;
  kept << std::ifstream(results.path + "/report.html").rdbuf();
  CHECK(kept.str() == "earlier");
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(results.path)) ++files;
  CHECK(files == 2);  // nothing half written is left
}

TEST_CASE("report: wrong requests are refused in one line") {
  check_refused("report /nonexistent", "expected a folder with results");
  const Folder empty;
  check_refused("report " + empty.path, "no result that kvcast printed");
}

}  // namespace
}  // namespace kvcast::cli
