#include <string>
#include <vector>

#include "model/io/files/csv_table.h"
#include "tests/cli/program.h"
#include "tests/test_folder.h"

namespace kvcast::cli {
namespace {

TEST_CASE("choose frontier: nothing that fits beats what is on it, and all else has a reason") {
  const TestFolder folder;
  const std::string csv = folder.file("rows.csv");
  const std::string axes =
      " --quiet --model llama-3.1-8b,mistral-7b --hardware l4,a100-80gb --batch 1..64:x4 "
      "--method 'plain;streaming:sinks=4,window=1024' --prompt-len 4k ";
  const json j = run_json("choose frontier" + axes +
                          "--goals ttft_s,tokens_per_s_per_device,peak_memory_bytes "
                          "--limits ttft_s=3 --csv '" +
                          csv + "' --plot '" + folder.file("front.svg") + "' --json");
  CHECK(j["rows"].size() + j["rejected"].size() == 2 * 2 * 4 * 2);
  CHECK(CsvTable::read(csv).size() == 32);
  CHECK(std::filesystem::exists(folder.file("front.svg")));
  const json sweep = [&] {
    const std::string file = folder.file("sweep.csv");
    run_well("sweep" + axes + "--csv '" + file + "'");
    json rows;
    const CsvTable table = CsvTable::read(file);
    for (const CsvRow& row : table.rows()) {
      if (!row.text("error").empty() || row.text("fits") == "false") continue;
      if (row.number("ttft_s") > 3) continue;
      const double rate =
          row.number("batch") * row.number("output_len") /
          (row.number("ttft_s") + (row.number("output_len") - 1) * row.number("tpot_s"));
      rows.push_back({row.number("ttft_s"), -rate, row.number("peak_memory_bytes")});
    }
    return rows;
  }();
  CHECK(sweep.size() < 32);
  std::size_t on_front = 0;
  for (const json& a : sweep) {
    bool is_beaten = false;
    for (const json& b : sweep) is_beaten |= b != a && b[0] <= a[0] && b[1] <= a[1] && b[2] <= a[2];
    on_front += is_beaten ? 0 : 1;
  }
  CHECK(j["rows"].size() == on_front);
  double last = 0;
  for (const json& row : j["rows"]) {
    CHECK(row["ttft_s"] >= last);
    last = row["ttft_s"];
    CHECK(row["on_front"] == true);
  }
  std::size_t beaten = 0;
  for (const json& row : j["rejected"]) {
    const std::string reason = row["reason"];
    beaten += contains(reason, "nowhere better than") ? 1u : 0u;
    CHECK((contains(reason, "nowhere better than") || contains(reason, "does not fit") ||
           contains(reason, "above the limit of 3 s")));
  }
  CHECK(beaten == sweep.size() - on_front);
}

TEST_CASE("choose frontier: a limit with a unit, and only the first reasons as text") {
  const std::string axes =
      "choose frontier --quiet --model gpt2 --hardware a100-80gb --batch 1..40 ";
  const std::string rates = axes + "--goals ttft_s,tokens_per_s_per_device --json ";
  CHECK(run_json(rates)["rows"].size() == 40);  // larger batches are slower and make more
  const json few = run_json(rates + "--limits peak_memory_bytes='1 GB'");
  CHECK(few["rows"].size() < 40);
  for (const json& row : few["rows"]) CHECK(row["peak_memory_bytes"] <= 1e9);
  for (const json& row : few["rejected"]) CHECK(row["peak_memory_bytes"] > 1e9);
  CHECK(contains(run_well(axes + "--limits ttft_s=1e-9").output, "no choice fits and meets"));
  const std::string text = run_well(axes).output;  // batch 1 is the fastest and the smallest
  CHECK(contains(text, "gpt2, batch 2: nowhere better than gpt2, batch 1"));
  CHECK(contains(text, "and 19 more, see --csv or --json"));
}

TEST_CASE("choose frontier: one device sends no messages, and holds all of the weights") {
  for (const std::string goals : {"ttft_s,communication_s", "ttft_s,weight_bytes_per_device"}) {
    const json j = run_json("choose frontier --model gpt2 --hardware a100-80gb --tp 1,2 --goals " +
                            goals + " --json");
    std::size_t alone = 0;
    for (const char* list : {"rows", "rejected"}) {
      for (const json& row : j[list]) {
        if (row["devices"] != 1) continue;
        ++alone;
        CHECK(row["communication_s"] == 0);
        CHECK(row["weight_bytes_per_device"] == row["weight_bytes"]);
      }
    }
    CHECK(alone == 1);
  }
}

TEST_CASE("choose frontier: requests of other lengths are not compared") {
  const json j = run_json(
      "choose frontier --model gpt2 --hardware a100-80gb --batch 1,2 --prompt-len 128,512 --json");
  REQUIRE(j["rows"].size() == 2);
  CHECK(j["rows"][0]["prompt_len"] == 128);
  CHECK(j["rows"][1]["prompt_len"] == 512);
}

TEST_CASE("choose devices: the flags of a plan forecast it, kvr with its best partition") {
  const std::string request = "--json --model llama-3.1-8b --hardware h100-sxm --prompt-len 4k ";
  for (const std::string choice :
       {"--max-devices 4",
        "--batch 4 --micro-batches 2 --sequence-parallel --platform hgx-h100-2"}) {
    const std::string batch = contains(choice, "--batch 4") ? "--batch 4 " : "";
    const json rows = run_json("choose devices " + request + choice + " --objective ttft")["rows"];
    std::size_t kvr = 0;
    for (const json& row : rows) {
      const std::string flags = row["flags"];
      CAPTURE(flags);
      CHECK(run_json("estimate " + request + batch + flags)["ttft_s"] == row["ttft_s"]);
      kvr += contains(flags, ",partition=search") ? 1u : 0u;
    }
    CHECK(kvr > 2);
    CHECK(rows.size() > kvr + 4);
  }
  const json best = run_json("estimate " + request + "--method kvr:p=4,partition=search");
  const json even = run_json("estimate " + request + "--method kvr:p=4");
  CHECK(best["ttft_s"].get<double>() < 0.97 * even["ttft_s"].get<double>());
}

}  // namespace
}  // namespace kvcast::cli
