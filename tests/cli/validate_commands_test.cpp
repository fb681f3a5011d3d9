// `kvcast validate`: measurements from files, fits, stored errors, and a tiny matrix run here.
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "model/io/files/csv_table.h"
#include "tests/cli/program.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::cli {
namespace {

using kvcast::TestFolder;
using nlohmann::json;

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

std::string contents(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

const std::string header = "model,hardware,batch,prompt_len,output_len,ttft_s,tpot_s\n";

TEST_CASE("validate: rows have predicted, measured and error, the summary MAPE and worst") {
  const TestFolder folder;
  const std::string file = (folder / "m.csv").string();
  write(file, header + "pythia-160m,h200,1,512,8,0.01,0.001\nno-model,h200,1,8,1,1,\n");
  const json j = run_json("validate --json --measurements " + file);
  CHECK(j["format"] == "kvcast CSV");
  REQUIRE(j["rows"].size() == 2);
  double sum = 0;
  double worst = 0;
  for (const json& row : j["rows"]) {
    check_keys(
        row, {"model", "hardware", "method", "metric", "predicted", "measured", "relative_error"});
    const double error = row["predicted"].get<double>() / row["measured"].get<double>() - 1;
    CHECK(row["relative_error"].get<double>() == near(error));
    sum += std::abs(error);
    worst = std::max(worst, std::abs(error));
  }
  CHECK(j["summary"]["mape"].get<double>() == near(sum / 2));
  CHECK(j["summary"]["worst"].get<double>() == near(worst));
  CHECK(j["summary"]["methods"][0]["method"] == "plain");
  REQUIRE(j["unmatched"].size() == 1);
  CHECK(j["unmatched"][0]["reason"].get<std::string>().find("no-model") != std::string::npos);
  const json estimate = run_json(
      "estimate --json --model pythia-160m --hardware h200 --prompt-len 512 --output-len 8");
  CHECK(j["rows"][0]["predicted"] == estimate["ttft_s"]);
}

TEST_CASE("validate: bad measurement files are one line, and earlier results stay") {
  const TestFolder folder;
  const std::string file = (folder / "m.csv").string();
  const std::string out = (folder / "out.csv").string();
  const std::string store = (folder / "store.json").string();
  write(out, "earlier");
  write(store, "earlier");
  const auto refused = [&](const std::string& text, const std::string& part) {
    write(file, text);
    check_refused("validate --measurements " + file + " --csv " + out + " --store " + store, part);
    CHECK(contents(out) == "earlier");
    CHECK(contents(store) == "earlier");
  };
  refused("model,colour,ttft_s\n", "unknown column 'colour'");
  refused("model,batch,prompt_len,output_len,ttft_s,tpot_ms\n", "tpot_ms");
  refused(header + "pythia-160m,h200,1,512,8,-1,\n", "'-1'");
  refused(header + "pythia-160m,h200,1,512,8,0,\n", "above zero");
  refused(header + "pythia-160m,h200,1,512,8,1,\npythia-160m,h200,1,512,8,1,\n", "the same run");
  refused("{\"avg_ns\":", "not valid JSON");
  write(file, header + "pythia-160m,h200,1,512,8,1,\n");
  const std::string rows = contents(file);
  const std::string elsewhere = (folder / "." / "m.csv").string();
  for (const std::string flags : {"--csv ", "--store ", "--fit matrix_rate --output "}) {
    check_refused("validate --measurements " + out + " " + file + " " + flags + elsewhere,
                  "which --measurements reads");
    CHECK(contents(file) == rows);
  }
  check_refused("validate", "--measurements");
  check_refused("validate --measurements " + file + " --measure", "both");
  check_refused("validate --measurements /nowhere", "cannot be read");
  check_refused("validate --measurements " + file + " --rows color=1", "--rows");
  check_refused("validate --measurements " + file + " --output hw.json", "--fit");
  check_refused("validate --measurements " + file + " --quick", "--measure");
  check_refused("validate --measurements " + file + " --rounds 5", "--measure");
  check_refused("validate --measurements " + file + " --force", "--measure");
  check_refused("validate --measure --quick", "--hardware");
  check_refused("validate --measurements " + file + " --fit matrix_rate --store " + store,
                "--store");
  check_refused("validate --measurements " + file + " --method nomethod", "--method");
}

TEST_CASE("validate: a store of no rows does not replace an earlier one") {
  const TestFolder folder;
  const std::string file = (folder / "m.csv").string();
  const std::string store = (folder / "s.json").string();
  write(file, header + "no-model,h200,1,8,1,1,\n");
  write(store, "earlier");
  const ProgramResult result = run_program("validate --measurements " + file + " --store " + store);
  CHECK(result.status == 0);
  CHECK(result.errors.find("no row has a forecast") != std::string::npos);
  CHECK(result.output.find("1 row without a forecast:") != std::string::npos);
  CHECK(contents(store) == "earlier");
  write(file, header + "pythia-160m,h200,1,8,1,1,\n");
  check_refused("validate --measurements " + file + " --rows batch=2", "takes no row");
}

TEST_CASE("validate --plot: its points go neither over the measurements nor over the rows") {
  const TestFolder folder;
  const std::string file = (folder / "m.csv").string();
  const std::string rows = header + "pythia-160m,h200,1,8,1,1,\n";
  write(file, rows);
  const std::string command = "validate --measurements " + file + " --csv ";
  check_refused(command + (folder / "rows.csv").string() + " --plot " + (folder / "m.svg").string(),
                "the file of --measurements");
  check_refused(
      command + (folder / "rows.csv").string() + " --plot " + (folder / "rows.svg").string(),
      "the file of --csv");
  CHECK(contents(file) == rows);
  CHECK(folder.num_files() == 1);
}

TEST_CASE("validate --measurements: a file without end is refused") {
  check_refused("validate --measurements /dev/zero", "more than 64 MiB");
}

TEST_CASE("validate --fit: the other rows' error is reported, and the device written") {
  const TestFolder folder;
  const std::string file = (folder / "m.csv").string();
  const std::string hw = (folder / "mine.json").string();
  std::string rows = header;
  for (const int prompt_len : {512, 1024, 2048, 4096}) {
    const json e = run_json("estimate --json --model llama-7b --hardware a100-80gb --prompt-len " +
                            std::to_string(prompt_len));
    // A machine whose prefill is a fifth slower.
    rows += "llama-7b,a100-80gb,1," + std::to_string(prompt_len) + ",1," +
            std::to_string(1.2 * e["ttft_s"].get<double>()) + ",\n";
  }
  write(file, rows);
  const json j = run_json("validate --json --measurements " + file +
                          " --fit matrix_rate,tiled_attention_rate --fit-rows 'prompt_len<=1024' "
                          "--output " +
                          hw);
  CHECK(j["fit"]["factors"].size() == 2);
  CHECK(j["fit"]["fitted_rows"]["after"]["rows"] == 2);
  CHECK(j["fit"]["other_rows"]["after"]["rows"] == 2);
  CHECK(j["fit"]["other_rows"]["before"]["mape"].get<double>() == near(1 - 1 / 1.2).epsilon(1e-3));
  CHECK(j["fit"]["other_rows"]["after"]["mape"].get<double>() < 0.02);
  CHECK(j["rows"][0]["fitted_to"] == true);
  CHECK(j["rows"][3]["fitted_to"] == false);
  const json again =
      run_json("validate --json --measurements " + file + " --hardware a100-80gb=" + hw);
  CHECK(again["summary"]["worst"].get<double>() < 0.02);
}

TEST_CASE("validate --store: estimate and sweep print the bounds, or that there are none") {
  const TestFolder folder;
  const std::string file = (folder / "m.csv").string();
  const std::string hw = (folder / "here.json").string();
  write(hw, contents(KVCAST_SOURCE_DIR "/data/hardware/tpu-v4.json"));
  write(file,
        "model,batch,prompt_len,output_len,ttft_s,tpot_s\npythia-160m,1,512,8,0.0092,0.001\n");
  const std::string estimate = "estimate --json --model pythia-160m --hardware " + hw;
  const json none = run_json(estimate);
  CHECK(none["ttft_error_bound"].is_null());
  CHECK(none["tpot_error_bound"].is_null());
  CHECK(none["error_bound_note"].get<std::string>().find("no stored validation") !=
        std::string::npos);
  const json v = run_json("validate --json --measurements " + file + " --hardware " + hw +
                          " --store " + (folder / "here.validation.json").string());
  const json some = run_json(estimate);
  CHECK(some["ttft_error_bound"].get<double>() ==
        near(std::abs(v["rows"][0]["relative_error"].get<double>())).epsilon(1e-4));
  CHECK(some["tpot_error_bound"].get<double>() ==
        near(std::abs(v["rows"][1]["relative_error"].get<double>())).epsilon(1e-4));
  CHECK(some["error_bound_note"] == "");
  const std::string text =
      run_program("estimate --model pythia-160m --hardware " + hw).output;  // rounded up
  const double bound = 100 * some["ttft_error_bound"].get<double>();
  const double per_cent = std::ceil(bound);
  REQUIRE(per_cent - bound > 0.5);  // else rounding to the nearest would do
  CHECK(text.find(fmt::format("+-{:.0f} %, 1 stored row\nTPOT", per_cent)) != std::string::npos);
  CHECK(run_json(estimate + " --mode speed-of-light")["ttft_error_bound"].is_null());
  // The measurements were of fp16.
  CHECK(run_json(estimate + " --dtype bf16")["ttft_error_bound"] == some["ttft_error_bound"]);
  const json narrow = run_json(estimate + " --cache-dtype int8");
  CHECK(narrow["ttft_error_bound"].is_null());
  CHECK(narrow["ttft_error_rows"] == 0);
  CHECK(narrow["error_bound_note"].get<std::string>().find("only of fp16/bf16") !=
        std::string::npos);
  const std::string rows = (folder / "rows.csv").string();
  REQUIRE(run_program("sweep --quiet --model pythia-160m --dtype fp16,bf16 --cache-dtype "
                      "fp16,int8 --hardware " +
                      hw + " --csv " + rows)
              .status == 0);
  const CsvTable table = CsvTable::read(rows);
  REQUIRE(table.size() == 4);
  for (const CsvRow& row : table.rows()) {
    CAPTURE(row.text("cache_dtype"));
    CHECK(row.text("ttft_error_bound").empty() == (row.text("cache_dtype") == "int8"));
  }

  const ProgramResult sweep =
      run_program("sweep --model pythia-160m --attention tiled,eager --hardware " + hw);
  CHECK(sweep.status == 0);
  CHECK(sweep.errors.find("no stored validation of TTFT and TPOT with plain, eager") !=
        std::string::npos);
  const std::string first = sweep.output.substr(0, sweep.output.find('\n'));
  CHECK(first.find(",ttft_error_bound,tpot_error_bound,") != std::string::npos);
  CHECK(sweep.output.find(std::to_string(some["ttft_error_bound"].get<double>()).substr(0, 5)) !=
        std::string::npos);

  write(folder / "here.validation.json", "{}");
  check_refused("estimate --model pythia-160m --hardware " + hw, "here.validation.json");
}

TEST_CASE("validate --measure: runs a matrix and keeps its rows") {
  const TestFolder folder;
  const std::string csv = (folder / "v.csv").string();
  const std::string hw = (folder / "here.json").string();
  write(hw, contents(KVCAST_SOURCE_DIR "/data/hardware/x86-server-cpu.json"));
  const std::string command =
      "validate --measure --quick --force --threads 1 --rounds 1 --json "
      "--hardware " +
      hw + " --csv " + csv +
      " --model " KVCAST_SOURCE_DIR
      "/tests/oracle/llama_mha --method plain,random-prune:keep=0.5 "
      "--batch 1,2 --prompt-len 5,9 --output-len 3";
  const json j = run_json(command);
  REQUIRE(j["rows"].size() == 32);  // 2 methods, 2 kernels, 2 batches, 2 prompts; TTFT and TPOT
  CHECK(j["unmatched"].empty());
  CHECK(j["summary"]["methods"].size() == 2);
  const json& speedups = j["summary"]["speedups"];
  REQUIRE(speedups.size() == 2);  // random-prune's TTFT and TPOT, 8 rows each
  CHECK(speedups[0]["method"] == "random-prune");
  CHECK(speedups[0]["metric"] == "ttft_s");
  CHECK(speedups[0]["rows"] == 8);
  CHECK(speedups[1]["metric"] == "tpot_s");
  for (const json& row : j["rows"]) CHECK(row["measured"].get<double>() > 0);
  const std::string whole = contents(csv);
  CHECK(std::count(whole.begin(), whole.end(), '\n') == 17);
  const CsvTable rows = CsvTable::read(csv);
  for (const CsvRow& row : rows.rows()) CHECK(row.text("rounds") == "1");
  CHECK(std::filesystem::exists(folder / "here.validation.json"));
  // The file is a measurement file of its own.
  const json again = run_json("validate --json --measurements " + csv + " --hardware " + hw);
  CHECK(again["rows"].size() == 32);
  CHECK(again["summary"]["worst"] == j["summary"]["worst"]);
  // Other rows take the place of these among the errors, which is said; so is a calibration of
  // other threads.
  json other = json::parse(contents(hw));
  other["calibration"] = {{"date", "2026-01-31T12:00:00Z"}, {"threads", 7}};
  write(hw, other.dump());
  const ProgramResult less = run_program(
      "validate --measure --quick --force --threads 1 --rounds 1 --attention tiled --hardware " +
      hw + " --csv " + (folder / "w.csv").string() +
      " --model " KVCAST_SOURCE_DIR
      "/tests/oracle/llama_mha --method plain --batch 1 --prompt-len 5 --output-len 3");
  CAPTURE(less.errors);
  CHECK(less.status == 0);
  CHECK(less.errors.find("estimate and sweep, in the place of 32 rows of v.csv\n") !=
        std::string::npos);
  CHECK(less.errors.find("here.json: calibrated with 7 threads; the runs have 1\n") !=
        std::string::npos);
}

TEST_CASE("validate --measure: where results cannot go is said before anything is measured") {
  const TestFolder folder;
  const std::string csv = (folder / "v.csv").string();
  const std::string command = "validate --measure --quick --hardware x86-server-cpu --csv " + csv;
  check_refused(command + " --store " + (folder / "none/s.json").string(), "does not exist");
  check_refused(command + " --plot " + (folder / "none/p.svg").string(), "does not exist");
  check_refused(command + " --plot " + (folder / "v.svg").string(), "the file of --csv");
  // In other words the same file; then the points of the second picture.
  check_refused(command + " --plot " + (folder / "../").string() +
                    folder.path().filename().string() + "/v.png",
                "another stem");
  check_refused("validate --measure --quick --hardware x86-server-cpu --csv " +
                    (folder / "p-errors.csv").string() + " --plot " + (folder / "p.svg").string(),
                "p-errors.svg");
  CHECK(folder.num_files() == 0);
}

TEST_CASE("validate --measure: ranks need their calibration, of as many, and mpirun") {
  const TestFolder folder;
  const std::string two = (folder / "two.json").string();
  write(two, contents(KVCAST_SOURCE_DIR "/reports/studies/kvr-measured/hardware/memory-2.json"));
  const std::string command =
      "validate --measure --quick --hardware x86-server-cpu --csv " + (folder / "v.csv").string() +
      " --model " KVCAST_SOURCE_DIR "/tests/oracle/llama_mha --prompt-len 8 --method ";
  check_refused(command + "kvr:p=2", "mpirun -n 2 kvcast calibrate");
  check_refused(command + "slim+tsp:p=2 --rank-hardware x86-server-cpu", "no link between ranks");
  check_refused(command + "kvr:p=3 --rank-hardware " + two, "mpirun -n 3 kvcast calibrate");
  check_refused("validate --measure --quick --hardware " + two + " --rank-hardware " + two +
                    " --csv " + (folder / "v.csv").string(),
                "names that differ");
  const ProgramResult alone =
      run_program(command + "plain,kvr:p=2 --rank-hardware " + two, "PATH=/nowhere; export PATH;");
  CHECK(alone.status == 1);
  CHECK(alone.errors.find("kvr:p=2 runs on ranks") != std::string::npos);
  CHECK(alone.errors.find("expected Open MPI") != std::string::npos);
  CHECK(std::count(alone.errors.begin(), alone.errors.end(), '\n') == 1);
  std::string broken = contents(two);
  broken.replace(broken.find("\"ranks\": 2"), 10, "\"ranks\": 0");
  write(two, broken);
  check_refused(command + "kvr:p=2 --rank-hardware " + two, "/calibration/ranks: got 0");
  CHECK(folder.num_files() == 1);
}

TEST_CASE("validate --measure: what cannot run is a row with the reason") {
  const TestFolder folder;
  const std::string csv = (folder / "v.csv").string();
  const json j = run_json(
      "validate --measure --quick --force --threads 1 --json --hardware x86-server-cpu --csv " +
      csv +
      " --model " KVCAST_SOURCE_DIR
      "/tests/oracle/llama_mha --attention tiled "
      "--method plain,mlkv:layers=1,heads=1 --batch 1 --prompt-len 5 --output-len 1");
  CHECK(j["rows"].size() == 1);  // a TTFT; one token has no TPOT
  REQUIRE(j["unmatched"].size() == 1);
  CHECK(j["unmatched"][0]["reason"].get<std::string>().find("unchanged model") !=
        std::string::npos);
  check_refused("validate --measure --hardware x86-server-cpu --csv " + csv +
                    " --model " KVCAST_SOURCE_DIR
                    "/tests/oracle/llama_mha --method mlkv:layers=7,heads=1",
                "no combination");
}

}  // namespace
}  // namespace kvcast::cli
