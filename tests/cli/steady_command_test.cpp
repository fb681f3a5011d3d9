#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "tests/cli/program.h"
#include "tests/cli/shell.h"
#include "tests/test_folder.h"

namespace kvcast::cli {
namespace {

/// No machine is a billion times slower than this one, and every one within so many per cent of it.
std::string any_machine(const TestFolder& folder, const std::string& gflops) {
  const std::string number = R"("source": "datasheet", "reference": "a test"})";
  const auto quantity = [&](const std::string& value) {
    return R"({"value": ")" + value + "\", " + number;
  };
  std::ofstream(folder / "machine.json")
      << R"({"name": "machine", "description": "a test", "kind": "cpu", "peak_flops_per_second": {"fp32": )"
      << quantity(gflops + " GFLOP/s") << R"(}, "vector_flops_per_second": )"
      << quantity(gflops + " GFLOP/s") << R"(, "memory_bandwidth": )" << quantity("1000 GB/s")
      << R"(, "memory_capacity": )" << quantity("1 GB") << R"(, "on_chip_memory_capacity": )"
      << quantity("1 MiB") << R"(, "links": {}, "latency": {"operator": )" << quantity("1 us")
      << R"(, "host_operator": )" << quantity("0 us") << R"(}, "factors": {}})";
  return (folder / "machine.json").string();
}

}  // namespace

TEST_CASE("steady: prints what a command prints on a machine as it was calibrated") {
  const TestFolder folder;
  const std::string machine = any_machine(folder, "1");
  const std::string command = "steady --tolerance 1e9 --hardware " + machine;
  const ProgramResult r = run_program(command + " 'echo a line; echo a note >&2'");
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  CHECK(r.output == "a line\n");
  CHECK(r.errors.find("a note") != std::string::npos);
  CHECK(r.errors.find("0 runs discarded") != std::string::npos);
  // Its environment is the user's, not ours.
  const std::string program = " '" KVCAST_PROGRAM "' --quiet " + command;
  const std::string shown = " 'echo $GOMP_SPINCOUNT.'";
  const std::string unset = "env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT";
  CHECK(shell_output(unset + program + shown) == ".\n");
  CHECK(shell_output(unset + " GOMP_SPINCOUNT=7" + program + shown) == "7.\n");
  // All of it, also of much.
  CHECK(run_program(command + " 'seq 300000'").output.size() == 1988895);
}

TEST_CASE("steady: a machine in another state is an error, or a warning when forced") {
  const TestFolder folder;
  const std::string command =
      "steady --tolerance 50 --looks 0 --hardware " + any_machine(folder, "1e9");
  const ProgramResult refused = run_program(command + " 'touch " + (folder / "ran").string() + "'");
  CHECK(refused.status == 1);
  CHECK(refused.output.empty());
  CHECK(!std::filesystem::exists(folder / "ran"));
  CHECK(refused.errors.find("arithmetic at 0.00") != std::string::npos);
  CHECK(refused.errors.find("expected them within 50 %") != std::string::npos);
  const ProgramResult forced = run_program(command + " --force 'echo a line'");
  CHECK(forced.status == 0);
  CHECK(forced.output == "a line\n");
  CHECK(forced.errors.find("expected them within 50 %") != std::string::npos);
}

TEST_CASE("steady: a command that fails, and bad requests") {
  const TestFolder folder;
  const std::string machine = any_machine(folder, "1");
  const std::string command = "steady --tolerance 1e9 --hardware " + machine;
  const ProgramResult failed = run_program(command + " 'echo a line; exit 3'");
  CHECK(failed.status == 1);
  CHECK(failed.output.empty());
  CHECK(failed.errors.find("exit status 3") != std::string::npos);
  check_refused("steady --hardware " + machine + " --tolerance 0 true", "--tolerance");
  check_refused("steady --hardware /nowhere.json true", "/nowhere.json");
  check_refused("steady --hardware " + machine, "command");
}

}  // namespace kvcast::cli
