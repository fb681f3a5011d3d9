#include <string>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

const std::string eight =
    "simulate collective --operation all_reduce --devices 8 --platform hgx-h100 ";

TEST_CASE("simulate collective: a measured size comes back, and its bus bandwidth") {
  const json j = run_json(eight + "--bytes \"1 MiB,512 MiB\" --simulated --json");
  check_keys(j, {"operation", "devices", "platform", "library", "rows"});
  const json& row = j["rows"][1];
  check_keys(row, {"bytes", "time_s", "speed_of_light_s", "algorithm", "measured",
                   "bus_bytes_per_s", "simulated_s"});
  // collectives.csv: 2111.06 us.
  CHECK(row["time_s"].get<double>() == near(2111.06e-6));
  CHECK(row["measured"] == true);
  CHECK(row["bus_bytes_per_s"].get<double>() == near(1.75 * 536870912 / 2111.06e-6));
  CHECK(row["simulated_s"].get<double>() == near(2111.06e-6).epsilon(0.05));
  CHECK(row["algorithm"] == "in_switch");
}

TEST_CASE("simulate collective: rows go to CSV") {
  const ProgramResult r = run_well(eight + "--bytes \"1 KiB\" --library vllm --csv -");
  CHECK(contains(r.output,
                 "bytes,time_s,speed_of_light_s,algorithm,measured,bus_bytes_per_s\n1024,"));
  CHECK(contains(r.output, ",one_shot,true,"));
}

TEST_CASE("simulate collective: what it cannot do is refused in one line") {
  const auto refused = [](const std::string& arguments, const std::string& part) {
    const ProgramResult r = run_program("simulate collective " + arguments);
    CHECK(r.status == 2);
    CHECK(contains(r.errors, part));
  };
  refused("--operation broadcast --devices 8 --platform hgx-h100", "operation 'broadcast'");
  refused("--operation all_reduce --devices 9 --platform hgx-h100", "at most the 8");
  refused("--operation all_reduce --devices 8 --platform hgx-h100 --library vlm", "'vlm'");
  refused("--operation all_reduce --devices 4 --platform ring-4", "links one by one");
  refused("--operation all_reduce --devices 8 --platform hgx-h100 --bytes 100", "--bytes");
}

}  // namespace
}  // namespace kvcast::cli
