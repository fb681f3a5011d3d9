// `kvcast validate`: measurements from files, fits, stored errors, and a tiny matrix run here.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

const std::string header = "model,hardware,batch,prompt_len,output_len,ttft_s,tpot_s\n";
const std::string measure =
    "validate --measure --quick --force --threads 1 --model " + oracle + "llama_mha ";

TEST_CASE("validate --serving: what is measured beside forecasts, as calibrated and at its clock") {
  const TestFolder folder;
  const std::string slow = folder.file("slow.json");  // any clock is faster than its
  json device = json::parse(contents(source_folder / "data/hardware/m2-pro-cpu.json"));
  device["name"] = "slow";
  device["vector_flops_per_second"]["value"] = "0.001 GFLOP/s";
  write(slow, device.dump());
  const std::string workload =
      " --json --threads 1 --num-blocks 64 --load 0.5,0.9 --prompt-lens 12 --output-lens 20 "
      "--num-requests 3 --model " +
      oracle + "llama_mha";
  const json of_slow = run_json("validate --serving --hardware " + slow + workload);
  for (const json& row : of_slow["rows"]) {
    CHECK(row["clock"] > 1);
    if (row["metric"] != "mean_tpot_s") continue;
    CHECK(row["relative_error_at_clock"] < row["relative_error"]);
  }
  const json j = run_json("validate --serving --hardware m2-pro-cpu" + workload);
  CHECK(j["workload"] == "prompts of 12, outputs of 20, poisson:rate=1, requests 3");
  REQUIRE(j["rows"].size() == 10);
  std::map<std::string, std::vector<double>> errors;
  std::map<std::string, std::vector<double>> at_clock;
  for (std::size_t i = 0; i < 10; ++i) {
    const json& row = j["rows"][i];
    const std::string metric = row["metric"];
    const auto number = [&](const char* key) { return row[key].get<double>(); };
    CHECK(number("measured") > 0);
    CHECK(number("relative_error") == near(number("predicted") / number("measured") - 1));
    CHECK(number("clock") > 0);
    CHECK(row["clock"] == j["rows"][i / 5 * 5]["clock"]);  // of one workload
    if (metric == "mean_tpot_s") {                         // which a slower clock makes longer
      CHECK((number("relative_error_at_clock") > number("relative_error")) ==
            (number("clock") < 1));
    }
    errors[metric].push_back(std::abs(number("relative_error")));
    at_clock[metric].push_back(std::abs(number("relative_error_at_clock")));
  }
  CHECK(j["rows"][9]["rate"].get<double>() == near(j["rows"][0]["rate"].get<double>() * 0.9 / 0.5));
  for (const auto& [metric, summary] : j["summary"].items()) {
    CAPTURE(metric);
    REQUIRE(errors[metric].size() == 2);
    CHECK(summary["rows"] == 2);
    CHECK(summary["mape"].get<double>() == near((errors[metric][0] + errors[metric][1]) / 2));
    CHECK(summary["worst"] == std::max(errors[metric][0], errors[metric][1]));
    CHECK(summary["mape_at_clock"].get<double>() ==
          near((at_clock[metric][0] + at_clock[metric][1]) / 2));
  }
}

TEST_CASE("validate: rows have predicted, measured and error, the summary MAPE and worst") {
  const TestFolder folder;
  const std::string file = folder.file("m.csv");
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
  CHECK(contains(j["unmatched"][0]["reason"], "no-model"));
  const std::string csv = run_well("validate --csv - --measurements " + file).output;
  CHECK(contains(csv, ",metric,predicted_s,measured_s,relative_error,source,place\n"));
  CHECK(num_lines(csv) == 3);  // a row for each time
  check_refused("validate --json --csv - --measurements " + file, "--csv -");
  const json estimate = run_json(
      "estimate --json --model pythia-160m --hardware h200 --prompt-len 512 --output-len 8");
  CHECK(j["rows"][0]["predicted"] == estimate["ttft_s"]);
}

TEST_CASE("validate: rows of servers without a forecast leave a CSV of the header") {
  const TestFolder folder;
  const std::string file = folder.file("servers.csv");
  write(file,
        "id,run,source,model,hardware,tp,engine,engine_version,weight_dtype,scheduler,workload,"
        "trace,arrival,load,metric,value,unit,note\n"
        "a,b,c,no-model,h200,1,vllm,0.11,bf16,,\"random, input 100, output 10\",,closed loop,1,"
        "mean_ttft,1,s,\n");
  const std::string csv = run_well("validate --csv - --measurements " + file).output;
  CHECK(num_lines(csv) == 1);
  CHECK(contains(csv, "id,run,load,model,"));
  CHECK(contains(csv, ",below_saturation,source,place\n"));
}

TEST_CASE("validate: a store of no rows does not replace an earlier one") {
  const TestFolder folder;
  const std::string file = folder.file("m.csv");
  const std::string store = folder.file("s.json");
  write(file, header + "no-model,h200,1,8,1,1,\n");
  write(store, "earlier");
  const ProgramResult result = run_well("validate --measurements " + file + " --store " + store);
  CHECK(contains(result.errors, "no row has a forecast"));
  CHECK(contains(result.output, "1 row without a forecast:"));
  CHECK(contents(store) == "earlier");
}

TEST_CASE("validate --fit: the other rows' error is reported, and the device written") {
  const TestFolder folder;
  const std::string file = folder.file("m.csv");
  const std::string hw = folder.file("mine.json");
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

// Three rows of each of four repositories: each row has nine of three others, whose worst is a
// bound for nine in ten.
TEST_CASE("validate coverage: how often the bounds of other sources hold, by regime") {
  const TestFolder folder;
  const std::string file = folder.file("m.csv");
  std::string rows = "id,model,hardware,source,batch,prompt_len,output_len,tpot_s\n";
  for (int i = 0; i < 12; ++i) {
    rows +=
        fmt::format("{},pythia-160m,a100-80gb,org/{}: {},1,{},8,0.0005\n", i, i % 4, i, 500 + i);
  }
  write(file, rows);
  const std::string command = "validate coverage --measurements " + file;
  const json j = run_json(command + " --json");
  REQUIRE(j["regimes"].size() == 2);
  const json& regime = j["regimes"][0];
  CHECK(regime["regime"] == "decode of 1 sequence");
  CHECK(regime["rows"] == 12);
  CHECK(regime["bounded"] == 12);
  int inside = 0;
  for (const json& row : j["rows"]) {
    CHECK(row["population"] ==
          "9 rows of 3 sources: any engine on a100-80gb, tiled attention, weights of 16 bits or "
          "more, decode of 1 sequence");
    const double ratio = row["predicted"].get<double>() / row["measured"].get<double>();
    const bool is_inside = std::max(ratio, 1 / ratio) - 1 <= row["error_bound"].get<double>();
    CHECK(row["inside"] == is_inside);
    inside += is_inside ? 1 : 0;
  }
  CHECK(regime["coverage"].get<double>() == near(inside / 12.));
  CHECK(j["regimes"][1]["regime"] == "all");

  const std::string csv = folder.file("rows.csv");
  const std::string plot = folder.file("coverage.svg");
  const ProgramResult text = run_well(command + " --csv " + csv + " --plot " + plot);
  CHECK(contains(text.output, "decode of 1 sequence    12            12"));
  CHECK(CsvTable::read(csv).size() == 12);
  CHECK(contains(contents(folder.file("coverage.csv")), "decode of 1 sequence"));
  CHECK(contains(contents(folder.file("coverage-forecasts.csv")), "ideal"));
}

TEST_CASE("validate --store: estimate and sweep print the bounds, or that there are none") {
  const TestFolder folder;
  const std::string file = folder.file("m.csv");
  const std::string hw = folder.file("here.json");
  write(hw, contents(KVCAST_SOURCE_DIR "/data/hardware/tpu-v4.json"));
  write(file,
        "model,batch,prompt_len,output_len,ttft_s,tpot_s\npythia-160m,1,512,8,0.0092,0.001\n");
  const std::string estimate = "estimate --json --model pythia-160m --hardware " + hw;
  const json none = run_json(estimate);
  CHECK(none["ttft_error_bound"].is_null());
  CHECK(none["tpot_error_bound"].is_null());
  CHECK(contains(none["error_bound_note"], "no stored row is alike"));
  const json v = run_json("validate --json --measurements " + file + " --hardware " + hw +
                          " --store " + folder.file("here.validation.json"));
  const json some = run_json(estimate);
  // The factor between the two times, whichever is longer.
  const auto error = [&](std::size_t row) {
    const double ratio = 1 + v["rows"][row]["relative_error"].get<double>();
    return std::max(ratio, 1 / ratio) - 1;
  };
  CHECK(some["ttft_error_bound"].get<double>() == near(error(0)).epsilon(1e-4));
  CHECK(some["tpot_error_bound"].get<double>() == near(error(1)).epsilon(1e-4));
  CHECK(some["ttft_error_rows"] == 1);
  CHECK(some["ttft_error_population"] ==
        "1 own row: any engine on tpu-v4, tiled attention, fp16/bf16, any prefill; the worst of "
        "them, which holds for 1 in 2");
  CHECK(some["error_bound_note"] == "");
  const std::string text = run_program("estimate --model pythia-160m --hardware " + hw).output;
  const double bound = 100 * some["ttft_error_bound"].get<double>();
  const double per_cent = std::ceil(bound);
  REQUIRE(per_cent - bound > 0.5);  // else rounding to the nearest would do
  CHECK(contains(text, fmt::format("+-{:.0f} %\nTPOT", per_cent)));
  CHECK(contains(text, "\nTTFT's bound: 1 own row: any engine on tpu-v4"));
  CHECK(run_json(estimate + " --mode speed-of-light")["ttft_error_bound"].is_null());
  // The measurements were of fp16.
  CHECK(run_json(estimate + " --dtype bf16")["ttft_error_bound"] == some["ttft_error_bound"]);
  const json narrow = run_json(estimate + " --cache-dtype int8");
  CHECK(narrow["ttft_error_bound"].is_null());
  CHECK(narrow["ttft_error_rows"] == 0);
  CHECK(narrow["ttft_error_population"].is_null());
  CHECK(contains(narrow["error_bound_note"], "1 stored row of 1 source like it"));
  const std::string rows = folder.file("rows.csv");
  run_well("sweep --quiet --model pythia-160m --dtype fp16,bf16 --cache-dtype fp16,int8 --csv " +
           rows + " --hardware " + hw);
  const CsvTable table = CsvTable::read(rows);
  REQUIRE(table.size() == 4);
  for (const CsvRow& row : table.rows()) {
    CAPTURE(row.text("cache_dtype"));
    CHECK(row.text("ttft_error_bound").empty() == (row.text("cache_dtype") == "int8"));
  }

  const ProgramResult sweep =
      run_well("sweep --model pythia-160m --attention tiled,eager --hardware " + hw);
  CHECK(contains(sweep.errors,
                 "512 and more tokens with plain, eager attention, on tpu-v4: no stored row"));
  const std::string first = sweep.output.substr(0, sweep.output.find('\n'));
  CHECK(contains(first, ",ttft_error_bound,tpot_error_bound,"));
  CHECK(
      contains(sweep.output, std::to_string(some["ttft_error_bound"].get<double>()).substr(0, 5)));

  write(folder / "here.validation.json", "{}");
  check_refused("estimate --model pythia-160m --hardware " + hw, "here.validation.json");
}

TEST_CASE("validate --measure: runs a matrix and keeps its rows") {
  const TestFolder folder;
  const std::string csv = folder.file("v.csv");
  const std::string hw = folder.file("here.json");
  write(hw, contents(KVCAST_SOURCE_DIR "/data/hardware/x86-server-cpu.json"));
  const json j = run_json(measure + "--rounds 1 --json --hardware " + hw + " --csv " + csv +
                          " --method plain,random-prune:keep=0.5 --batch 1,2 --prompt-len 5,9 "
                          "--output-len 3");
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
  CHECK(num_lines(contents(csv)) == 17);
  const CsvTable rows = CsvTable::read(csv);
  for (const CsvRow& row : rows.rows()) CHECK(row.text("rounds") == "1");
  CHECK(fs::exists(folder / "here.validation.json"));
  // The file is a measurement file of its own.
  const json again = run_json("validate --json --measurements " + csv + " --hardware " + hw);
  CHECK(again["rows"].size() == 32);
  CHECK(again["summary"]["worst"] == j["summary"]["worst"]);
  // Other rows take the place of these among the errors, which is said; so is a calibration of
  // other threads.
  json other = json::parse(contents(hw));
  other["calibration"] = {{"date", "2026-01-31T12:00:00Z"}, {"threads", 7}};
  write(hw, other.dump());
  const ProgramResult less =
      run_well(measure + "--rounds 1 --attention tiled --hardware " + hw + " --csv " +
               folder.file("w.csv") + " --method plain --batch 1 --prompt-len 5 --output-len 3");
  CAPTURE(less.errors);
  CHECK(contains(less.errors, "estimate and sweep, replacing 32 rows of v.csv\n"));
  CHECK(contains(less.errors, "here.json: calibrated with 7 threads; the runs have 1\n"));
}

TEST_CASE("validate --measure: what cannot run is a row with the reason") {
  const TestFolder folder;
  const json j = run_json(measure + "--json --hardware x86-server-cpu --csv " +
                          folder.file("v.csv") + " --attention tiled --batch 1 --prompt-len 5 " +
                          "--output-len 1 --method plain,mlkv:layers=1,heads=1");
  CHECK(j["rows"].size() == 1);  // a TTFT; one token has no TPOT
  REQUIRE(j["unmatched"].size() == 1);
  CHECK(contains(j["unmatched"][0]["reason"], "unchanged model"));
}

}  // namespace
}  // namespace kvcast::cli
