// What the program says of itself: version, manual page, completion, and the report command.
#include <string>

#include "tests/cli/program.h"
#include "tests/cli/shell.h"

namespace kvcast::cli {
namespace {

/// What bash offers for the last of `words`.
std::string completions(const std::string& words) {
  return shell_output(
      "PATH=$(dirname '" KVCAST_PROGRAM
      "'):$PATH bash -c 'source <(kvcast completion bash); "
      "COMP_WORDS=(" +
      words + "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _kvcast; echo \" ${COMPREPLY[*]} \"'");
}

TEST_CASE("documents: --version says what the program was built with") {
  const ProgramResult result = run_well("--version");
  CHECK(result.output.starts_with("kvcast 0."));
  check_contains(result.output,
                 {"\ncommit ", "\ncompiler ", "\nbuild type ", "\nMPI ", "\noneDNN "});
}

TEST_CASE("documents: the program's name alone shows the first steps") {
  const std::string steps = run_well("").output;
  check_contains(steps, {"kvcast estimate", "kvcast run", "kvcast --help", "docs/README.md"});
  CHECK(num_lines(steps) <= 12);
}

TEST_CASE("documents: help names its command, and lists the methods where --method is") {
  for (const std::string command :
       {"model show", "sweep", "hardware show", "engine show", "choose slim"}) {
    const std::string help = run_well(command + " --help").output;
    CHECK(contains(help, "\n\nUsage: kvcast " + command + " [OPTIONS]"));
    CHECK(contains(help, "\n\nMethods, NAME") == contains(help, "  --method "));
    CHECK_FALSE(contains(help, "\n\n\n"));
  }
}

TEST_CASE("documents: the manual page has every command and option of the program") {
  const std::string man = run_well("man").output;
  CHECK(man.starts_with(".TH KVCAST 1 "));
  check_contains(man, {".SH SYNOPSIS", ".SH EXIT STATUS", ".SS kvcast estimate\n",
                       ".SS kvcast choose slim\n", ".SS kvcast simulate prefill\n",
                       ".SS kvcast report\n", "\\fB\\-p, \\-\\-prompt\\-len\\fR",
                       "\\fB\\-q, \\-\\-quiet\\fR", "kvcast man >kvcast.1"});
  // What holds for all commands stands there once.
  for (const std::string once : {"\nMethods, NAME", "\\-\\-help\\fR"}) {
    CAPTURE(once);
    CHECK(contains(man, once));
    CHECK(man.find(once) == man.rfind(once));
  }
  // No text is taken for a roff request.
  for (const char* line : {"\n.help", "\n'"}) CHECK_FALSE(contains(man, line));
}

TEST_CASE("documents: bash completes commands, flags, models and hardware") {
  CHECK(completions("kvcast est") == " estimate \n");
  CHECK(completions("kvcast choose ml") == " mlkv \n");
  CHECK(contains(completions("kvcast estimate --prompt-l"), " --prompt-len "));
  CHECK(completions("kvcast --qui") == " --quiet \n");
  CHECK(contains(completions("kvcast estimate --model llama-7"), " llama-7b "));
  CHECK(contains(completions("kvcast estimate --hardware h2"), " h200 "));
  CHECK(contains(completions("kvcast model show llama-7"), " llama-7b "));
  CHECK(contains(completions("kvcast engine show vl"), " vllm "));
  CHECK(contains(completions("kvcast platform show dgx"), " dgx-a100-2 "));
  CHECK(contains(completions("kvcast estimate --engine vl"), " vllm "));
  CHECK(completions("kvcast estimate --prompt-len 4") == "  \n");
  CHECK(contains(completions("kvcast estimate --model = llama-7"), " llama-7b "));
}

TEST_CASE("documents: other shells get a script, unknown ones an error") {
  const std::string zsh = run_program("completion zsh").output;
  CHECK(zsh.starts_with("#compdef kvcast"));
  // zsh ties `path` to PATH: a local one left the lists of models and hardware empty.
  for (const char* own : {" path=", " words="}) CHECK_FALSE(contains(zsh, own));
  CHECK(contains(run_program("completion fish").output, "complete -c kvcast -f -a"));
  // What the scripts ask the program: words with what they mean, or names of files.
  CHECK(contains(run_well("__complete estimate ''").output, "--prompt-len\tprompt tokens"));
  CHECK(run_well("__complete estimate --plot ''").output == "@files\n");
}

TEST_CASE("report: a folder of results becomes one page") {
  const TestFolder results;
  const std::string point = "--model llama-7b --hardware a100-80gb --prompt-len 1k";
  run_well("estimate --json " + point + " >" + results.file("estimate.json"));
  run_well("sweep " + point + ",2k --csv " + results.file("sweep.csv"));
  run_well("reproduce all --csv " + results.file("all.csv"));
  const ProgramResult result = run_well("report " + results.path().string());
  CHECK(result.output == results.file("report.html") + "\n");
  CHECK(result.errors.empty());
  const std::string html = contents(results / "report.html");
  check_contains(
      html, {"estimate.json: estimate</h2>", "sweep.csv: sweep</h2>", "all.csv: reproduce</h2>"});
  CHECK_FALSE(contains(html, "DIFFERS"));
}

TEST_CASE("report: a page that cannot be written is one line, and the earlier page stays") {
  const TestFolder results;
  write(results / "a.json", "{\"ttft_s\": 1}");
  write(results / "report.html", "earlier");
  const std::string report = "report " + results.path().string();
  check_refused(report + " --output /dev/full", "/dev/full", 1);
  check_refused(report + " --output " + results.file("a.json"),
                "--output: got " + results.file("a.json") +
                    ", a file that is no page, expected a new file, or a page to write anew\n");
  // A limit on file sizes stops the page midway, as a full disk does; unless it is ignored, the
  // system sends a signal beyond it, which used to end the program.
  const std::string full = results.file("report.html") + ": cannot be written: File too large\n";
  check_refused(report, full, 1, "trap '' XFSZ; ulimit -f 1;");
  check_refused(report, full, 1, "ulimit -f 1;");
  CHECK(contents(results / "report.html") == "earlier");
  CHECK(results.num_files() == 2);  // nothing half written is left
}

}  // namespace
}  // namespace kvcast::cli
