#include <string>

#include "tests/cli/program.h"
#include "tests/test_folder.h"

namespace kvcast::cli {
namespace {

const std::string one_gpu = "simulate serving --model llama-3.1-8b --hardware h100-sxm ";

const std::vector<std::string> contract{"requests",
                                        "finished",
                                        "rejected",
                                        "duration_s",
                                        "ttft_s",
                                        "tpot_s",
                                        "itl_s",
                                        "e2e_s",
                                        "steps",
                                        "preemptions",
                                        "prefix_hit_rate",
                                        "peak_kv_blocks",
                                        "peak_running",
                                        "request_throughput",
                                        "output_token_throughput",
                                        "goodput_requests_per_s",
                                        "slo_attainment"};

double mean(const json& j, const char* key) { return j.at(key).at("mean").get<double>(); }

TEST_CASE("simulate serving: one request alone takes what it is estimated to") {
  for (const std::string engine :
       {"ideal", "vllm", "tensorrt-llm", "pytorch",
        "vllm --method specprefill:keep=0.3,speculator=llama-3.2-1b",
        "vllm --weight-dtype q4_k_m --activation-dtype bf16 --cache-dtype fp8"}) {
    CAPTURE(engine);
    const json alone = run_json(one_gpu +
                                "--arrivals burst --num-requests 1 --prompt-lens 1500 "
                                "--output-lens 64 --engine " +
                                engine + " --json");
    const json estimate = run_json(
        "estimate --model llama-3.1-8b --hardware h100-sxm "
        "--prompt-len 1500 --output-len 64 --engine " +
        engine + " --json");
    for (const std::string& key : contract) CHECK(alone.contains(key));
    for (const char* key : {"ttft_s", "tpot_s", "itl_s", "e2e_s"}) {
      for (const char* of : {"mean", "p50", "p90", "p95", "p99"}) CHECK(alone[key].contains(of));
    }
    CHECK(mean(alone, "ttft_s") == near(estimate["ttft_s"].get<double>()).epsilon(1e-9));
    CHECK(mean(alone, "tpot_s") == near(estimate["tpot_s"].get<double>()).epsilon(1e-9));
    CHECK(alone["steps"] == 64);
  }
}

TEST_CASE("simulate serving: a group's prompt takes what simulate prefill plays") {
  const std::string link = " --link-gb-per-s 100 --link-latency-s 2e-6 --json";
  for (const std::string schedule : {"kvr", "tsp"}) {
    CAPTURE(schedule);
    const json alone = run_json(one_gpu +
                                "--arrivals burst --num-requests 1 --prompt-lens 3001 "
                                "--output-lens 9 --method " +
                                schedule + ":p=4" + link);
    const std::string point = "--model llama-3.1-8b --hardware h100-sxm --prompt-len 3001 ";
    const json estimate =
        run_json("estimate " + point + "--output-len 9 --method " + schedule + ":p=4" + link);
    const json played = run_json("simulate prefill " + point +
                                 "--devices 4 --topology ring --schedule " + schedule + link);
    CHECK(alone["devices"] == 4);
    CHECK(mean(alone, "ttft_s") == near(estimate["ttft_s"].get<double>()).epsilon(1e-12));
    CHECK(mean(alone, "ttft_s") == near(played["ttft_s"].get<double>()).epsilon(1e-12));
    CHECK(mean(alone, "tpot_s") == near(estimate["tpot_s"].get<double>()).epsilon(1e-9));
    const json apart = run_json(one_gpu +
                                "--arrivals burst --num-requests 1 --prompt-lens 3001 "
                                "--output-lens 9 --decode-servers 2 --kv-link-gb-per-s 50 "
                                "--replicas 3 --method " +
                                schedule + ":p=4" + link);
    CHECK(apart["devices"] == 14);
    // Keys and values: 32 layers of 8 heads of 128 elements in 2 bytes.
    const double sent_s = 3001.0 * 2 * 32 * 8 * 128 * 2 / 50e9;
    CHECK(mean(apart, "e2e_s") == near(mean(alone, "e2e_s") + sent_s).epsilon(1e-9));
  }
  // Streaming keeps 260 rows, and sends no others.
  const std::string streaming =
      "simulate serving --model llama-3.1-8b --hardware h100-sxm --arrivals burst --num-requests 1 "
      "--prompt-lens 3001 --output-lens 9 --method streaming:sinks=4,window=256 --json";
  const double sent_s = 260.0 * 2 * 32 * 8 * 128 * 2 / 1e9;
  CHECK(mean(run_json(streaming + " --decode-servers 1 --kv-link-gb-per-s 1"), "e2e_s") ==
        near(mean(run_json(streaming), "e2e_s") + sent_s).epsilon(1e-9));
  // Both devices' parts of the kept rows, and none of the speculator's cache.
  const std::string kept =
      "simulate serving --model llama-3.1-8b --hardware h100-sxm --arrivals burst --num-requests 1 "
      "--prompt-lens 3200 --output-lens 9 --tp 2 --engine vllm "
      "--method specprefill:keep=0.25,speculator=llama-3.2-1b --json";
  const double kept_s = 800.0 * 2 * 32 * 8 * 128 * 2 / 1e9;
  CHECK(mean(run_json(kept + " --decode-servers 1 --kv-link-gb-per-s 1"), "e2e_s") ==
        near(mean(run_json(kept), "e2e_s") + kept_s).epsilon(1e-9));
}

TEST_CASE("simulate serving: what is sent to another server is no prefix hit there") {
  const std::string shared =
      one_gpu +
      "--arrivals poisson:rate=1 --num-requests 30 --prompt-lens 2000 --output-lens 9 "
      "--prefixes prefix:groups=3,tokens=1024 --json";
  const json one = run_json(shared);
  const json apart = run_json(shared + " --decode-servers 1 --kv-link-gb-per-s 50");
  // 27 of 30 prompts find 64 blocks of 16 tokens.
  CHECK(one["prefix_hit_rate"] == near(27.0 * 1024 / (30 * 3024)));
  CHECK(apart["prefix_hit_rate"] == one["prefix_hit_rate"]);
}

TEST_CASE("simulate serving: explicit costs, by hand") {
  const TestFolder folder;
  const std::string scenario = folder / "scenario.json";
  const std::string requests = folder / "requests.csv";
  std::ofstream(scenario) << R"({"policy": "vllm-v1", "cost": {"base_s": 1}, "block_size": 4,
      "num_blocks": 3, "max_num_batched_tokens": 8})";
  std::ofstream(requests) << "arrival_s,prompt_tokens,output_tokens\n0,4,4\n0,4,4\n0,40,1\n";
  const json j = run_json("simulate serving --scenario '" + scenario + "' --requests '" + requests +
                          "' --json");
  // As in serving_test; the third needs ten blocks of three.
  CHECK(j["finished"] == 2);
  CHECK(j["rejected"] == 1);
  CHECK(j["preemptions"] == 1);
  CHECK(j["prefill_tokens"] == 13);
  CHECK(j["duration_s"] == 7);
  CHECK(mean(j, "ttft_s") == 1);
  CHECK(mean(j, "e2e_s") == 5.5);
  const json two = run_json("simulate serving --scenario '" + scenario + "' --requests '" +
                            requests + "' --first-requests 1 --json");
  CHECK(two["requests"] == 1);
  CHECK(two["duration_s"] == 4);
}

TEST_CASE("simulate serving: times are those of finished requests, and none without any") {
  const std::string apart = one_gpu +
                            "--arrivals burst --num-requests 5 --output-lens 9 --decode-servers 1 "
                            "--kv-link-gb-per-s 50 --decode-scheduler vllm-v1:num_blocks=";
  const std::string csv = apart + "20 --prompt-lens uniform:100,1000 --csv ";
  const TestFolder folder;
  run_well(csv + (folder / "rows.csv").string());
  double sum_s = 0;
  double finished = 0;
  const CsvTable rows = CsvTable::read(folder / "rows.csv");
  for (const CsvRow& row : rows.rows()) {
    if (row.text("ttft_s").empty()) continue;
    sum_s += row.number("ttft_s");
    ++finished;
  }
  const json some = run_json(apart + "20 --prompt-lens uniform:100,1000 --json");
  CHECK(some["rejected"] == 3);
  REQUIRE(finished == 2);
  CHECK(mean(some, "ttft_s") == near(sum_s / finished));
  const std::string none = apart + "10 --prompt-lens 1000";
  const json all = run_json(none + " --json");
  CHECK(all["rejected"] == 5);
  for (const char* key : {"ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"}) {
    CHECK(all[key]["mean"].is_null());
    CHECK(all[key]["p99"].is_null());
  }
  CHECK(contains(run_well(none).output, "time to first token    -"));
  // A request of one token has no time per output token; vllm bench says 0 then.
  const json one = run_json(one_gpu +
                            "--arrivals burst --num-requests 2 --prompt-lens 9 --output-lens 1 "
                            "--json");
  CHECK(mean(one, "tpot_s") == 0);
  CHECK(mean(one, "ttft_s") > 0);
}

TEST_CASE("serving: where prompts are rejected, searches and sweeps say why") {
  const std::string load =
      "--model llama-3.1-8b --hardware h100-sxm --arrivals poisson:rate=1 --num-requests 9 "
      "--output-lens 9 --prompt-lens ";
  const std::string why = "9 of 9 requests are rejected: prompt and output of 200009 tokens";
  const ProgramResult found =
      run_well("simulate serving --find-max-rate --slo ttft=1 " + load + "200000");
  CHECK(contains(found.output, "no rate meets the objective, as all requests are rejected"));
  CHECK(contains(found.errors, why));
  const std::string chosen = run_well("choose serving --slo ttft=1 " + load + "200000").output;
  check_contains(chosen, {"no server meets the objective", why});
  const TestFolder folder;
  const std::string csv = folder / "rows.csv";
  const ProgramResult swept = run_well("sweep --serving " + load + "200000 --csv " + csv);
  CHECK(contains(swept.errors, "1 are impossible"));
  const CsvTable none = CsvTable::read(csv);
  CHECK(none[0].text("ttft_mean_s").empty());
  CHECK(contains(none[0].text("error"), why));
  const ProgramResult some =
      run_well("sweep --restart --serving " + load + "uniform:1000,200000 --csv " + csv);
  CHECK(contains(some.errors, "warning: 1 rows leave out requests that are rejected"));
  const CsvTable finished = CsvTable::read(csv);
  CHECK(finished[0].number("ttft_mean_s") > 0);
}

TEST_CASE("simulate serving: prompts and caches that are huge take no memory of their own") {
  const TestFolder folder;
  const std::string in_folder = little_memory + "cd '" + folder.path().string() + "';";
  std::ofstream(folder / "long.jsonl")
      << R"({"arrival_s": 0, "prompt_tokens": 2147483648, "output_tokens": 4,)"
      << R"( "block_tokens": 2147483648, "blocks": [1]})";
  const json refused =
      run_json(one_gpu +
                   "--requests long.jsonl --replicas 2 --router prefix-aware --json "
                   "--scheduler vllm-v1:block_size=1,prefix_caching=true",
               in_folder);
  CHECK(refused["rejected"] == 1);
  std::ofstream(folder / "cache.json")
      << R"({"policy": "vllm-v1", "cost": {"base_s": 1}, "num_blocks": 268435456})";
  std::ofstream(folder / "short.csv") << "arrival_s,prompt_tokens,output_tokens\n0,4,4\n";
  const json served =
      run_json("simulate serving --scenario cache.json --requests short.csv --json", in_folder);
  CHECK(served["finished"] == 1);
}

TEST_CASE("simulate serving: requests from a pipe are there for each rate") {
  const std::string piped = "printf 'arrival_s,prompt_tokens,output_tokens\\n0,9,4\\n1,9,4\\n' |";
  const std::string from_pipe = one_gpu + "--requests /dev/stdin ";
  for (const std::string more :
       {"", "--find-max-rate --slo ttft=1", "--arrivals poisson:rate=3,rescale=true"}) {
    const json j = run_json(from_pipe + more + " --json", piped);
    CHECK((more.starts_with("--find") ? j["rates"][0] : j)["finished"] == 2);
  }
  // One that never ends is read as far as asked.
  const json j =
      run_json(from_pipe + "--first-requests 3 --json",
               little_memory + "(echo arrival_s,prompt_tokens,output_tokens; yes 0,9,4) |");
  CHECK(j["finished"] == 3);
}

TEST_CASE("simulate serving: what a measured run left out is said") {
  const TestFolder folder;
  const std::string file = folder / "measured.json";
  std::ofstream(file)
      << R"({"completed": 3, "num_prompts": 4, "model_id": "llama-3.1-8b", "total_input_tokens": )"
      << R"(300, "total_output_tokens": 30, "max_concurrency": 1, "mean_ttft_ms": 30, )"
      << R"("mean_tpot_ms": 7, "request_rate": 1, "input_lens": [100, 90, 110, 100], )"
      << R"("output_lens": [10, 10, 0, 10], "start_times": [1, 2, 3, 4], )"
      << R"("errors": ["", "", "lost", ""]})";
  const ProgramResult served = run_well(one_gpu + "--requests '" + file + "'");
  CHECK(contains(served.errors, "measured.json: left out 1 requests that failed"));
  const json j =
      run_json("validate --hardware h100-sxm --dtype bf16 --json --measurements '" + file + "'");
  CHECK(contains(j["rows"][0]["id"], "(1 requests failed)"));
}

TEST_CASE("simulate serving: the highest rate lies between the last that holds and the next") {
  const json j = run_json(one_gpu +
                          "--engine vllm --arrivals poisson:rate=1 --prompt-lens 1000 "
                          "--output-lens 100 --num-requests 300 --slo ttft=0.3,tpot=0.03 "
                          "--find-max-rate --json");
  const double rate = j["max_rate"].get<double>();
  CHECK(rate > 1);
  bool holds_at = false;
  double first_failure = 1e9;
  for (const json& row : j["rates"]) {
    CHECK(row["holds"] == (row["slo_attainment"].get<double>() >= 0.9));
    holds_at |= row["rate"] == rate && row["holds"] == true;
    if (row["holds"] == false) first_failure = std::min(first_failure, row["rate"].get<double>());
  }
  CHECK(holds_at);
  CHECK(first_failure > rate);
  CHECK(first_failure < 1.011 * rate);
  const json never = run_json(one_gpu +
                              "--arrivals poisson:rate=1 --prompt-lens 1000 "
                              "--output-lens 2 --slo ttft=1us --find-max-rate --json");
  CHECK(never["max_rate"] == 0);
  // One of a hundred may miss what those that meet no other keep.
  const std::string strict = one_gpu +
                             "--arrivals poisson:rate=1 --prompt-lens 1000 --output-lens 2000 "
                             "--slo e2e=14.35,attainment=0.99 --find-max-rate --json";
  CHECK(run_json(strict)["max_rate"] > 0);
}

TEST_CASE("simulate serving: too few requests for a steady rate are told") {
  const std::string short_load = one_gpu +
                                 "--arrivals poisson:rate=1 --prompt-lens 1000 --output-lens 100 "
                                 "--slo ttft=1 --find-max-rate --json --num-requests ";
  const ProgramResult few = run_well(short_load + "50");
  CHECK(contains(few.errors, "50 requests are too few"));
  CHECK(json::parse(few.output)["steady"] == false);
  const ProgramResult many = run_well(short_load + "20000");
  CHECK(!contains(many.errors, "too few"));
  CHECK(json::parse(many.output)["steady"] == true);
}

TEST_CASE("simulate serving: a search that no rate ends says so") {
  const ProgramResult r = run_well(one_gpu +
                                   "--arrivals poisson:rate=1 --prompt-lens 4 --output-lens 2 "
                                   "--num-requests 3 --slo ttft=1e9 --find-max-rate --json");
  CHECK(contains(r.errors, "no limit found: all rates up to"));
}

TEST_CASE("simulate serving: rows, timeline and pictures") {
  const TestFolder folder;
  const std::string at = folder / "";
  run_well(one_gpu +
           "--engine vllm --arrivals poisson:rate=5 --prompt-lens uniform:1,3000 "
           "--output-lens 20 --num-requests 50 --csv '" +
           at + "rows.csv' --trace '" + at + "trace.json' --plot '" + at + "load.svg'");
  const CsvTable rows = CsvTable::read(at + "rows.csv");
  CHECK(rows.size() == 50);
  std::ifstream trace(at + "trace.json");
  const json events = json::parse(trace).at("traceEvents");
  std::size_t begun = 0;
  for (const json& e : events)
    if (e.at("ph") == "b") ++begun;
  CHECK(begun == 100);  // to the first token, and later ones
  CHECK(fs::exists(at + "load.svg"));
  CHECK(fs::exists(at + "load-latency.svg"));
}

TEST_CASE("sweep --serving: each row is the server that simulate serving shows") {
  const TestFolder folder;
  const std::string csv = folder / "servers.csv";
  const std::string load =
      "--prompt-lens 500 --output-lens 20 --arrivals poisson:rate=1 --num-requests 60 ";
  const std::string grid =
      "sweep --serving --model llama-3.1-8b --hardware h100-sxm,a100-80gb --engine vllm " + load +
      "--scheduler vllm-v1:max_num_seqs=4,vllm-v0 --rate 2..8:x2 ";
  run_well(grid + "--csv '" + csv + "'");
  const CsvTable rows = CsvTable::read(csv);
  REQUIRE(rows.size() == 2 * 2 * 3);
  CHECK(rows[1].text("scheduler") == "vllm-v1:max_num_seqs=4");
  CHECK(rows[1].number("rate") == 4);
  const json one = run_json(one_gpu +
                            "--engine vllm --prompt-lens 500 --output-lens 20 "
                            "--arrivals poisson:rate=4 --num-requests 60 --scheduler "
                            "vllm-v1:max_num_seqs=4 --json");
  CHECK(rows[1].number("ttft_mean_s") == mean(one, "ttft_s"));
  CHECK(rows[1].number("steps") == one["steps"].get<double>());
  // The number of threads does not matter.
  std::ifstream whole_file(csv);
  const std::string whole(std::istreambuf_iterator<char>(whole_file), {});
  const std::string again = folder / "again.csv";
  run_well(grid + "--threads 1 --csv '" + again + "'");
  std::ifstream again_file(again);
  CHECK(std::string(std::istreambuf_iterator<char>(again_file), {}) == whole);
}

TEST_CASE("sweep --serving: a row that no server can run says why") {
  const TestFolder folder;
  const std::string csv = folder / "servers.csv";
  run_well(
      "sweep --serving --model gpt2 --hardware h100-sxm --attention tiled,eager "
      "--prompt-lens 50 --output-lens 5 --arrivals burst --num-requests 3 --csv '" +
      csv + "'");
  const CsvTable rows = CsvTable::read(csv);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].text("error").empty());
  CHECK(rows[1].text("error").find("got eager attention, expected tiled attention") !=
        std::string::npos);
}

TEST_CASE("choose serving: servers by requests a second and device") {
  const json j = run_json(
      "choose serving --model llama-3.1-8b --hardware h100-sxm,l4 --engine vllm --tp 1,2 "
      "--prompt-lens 500 --output-lens 50 --arrivals poisson:rate=1 --num-requests 100 "
      "--slo ttft=1,tpot=0.1 --rate 30 --max-devices 4 --json");
  const json& rows = j["rows"];
  REQUIRE(rows.size() + j["rejected"].size() == 4);
  CHECK(rows[0]["on_front"] == true);
  for (const json& row : rows) {
    const double servers = row["servers"].get<double>();
    CHECK(servers * row["max_rate"].get<double>() >= 30);
    CHECK((servers - 1) * row["max_rate"].get<double>() < 30);
    CHECK(row["all_devices"].get<int>() <= 4);
    CHECK(row["max_rate_per_device"].get<double>() <= rows[0]["max_rate_per_device"].get<double>());
  }
  // An L4 has a sixth of an H100's bandwidth: 30 requests a second take more than four.
  CHECK(j["rejected"].size() > 0);
}

TEST_CASE("reproduce specprefill-serving: curves, gains and pictures beside the rows") {
  const TestFolder folder;
  const json j = run_json("reproduce specprefill-serving --json --plot " + folder.file("qps.svg"));
  CHECK(j["rows"].size() == 48);
  const json& serving = j["serving"];
  CHECK(serving["curves"].size() == 12);
  CHECK(serving["gains"].size() == 6);
  CHECK(serving["keep_rates"].size() == 8);
  for (const char* file : {"qps.svg", "qps-few-shot.svg", "qps-summarisation.svg"}) {
    CHECK(fs::file_size(folder / file) > 0);
  }
  // Others have none.
  CHECK_FALSE(run_json("reproduce specprefill-table6 --json").contains("serving"));
  CHECK_FALSE(run_json("reproduce specprefill --json").contains("serving"));
}

TEST_CASE("simulate serving: a wrong trace leaves the rows of an earlier run") {
  const TestFolder folder;
  const std::string trace = folder.file("t.csv");
  const std::string rows = folder.file("rows.csv");
  write(trace, "arrival_s,prompt_tokens,output_tokens\n0,100,2\n1,x,2\n");
  write(rows, "earlier rows\n");
  const std::string request =
      "simulate serving --quiet --model gpt2 --hardware l4 --requests " + trace + " --csv " + rows;
  CHECK(run_program(request).status == 2);
  CHECK(contents(rows) == "earlier rows\n");
  write(trace, "arrival_s,prompt_tokens,output_tokens\n0,100,2\n1,50,2\n");
  run_well(request);
  CHECK(CsvTable::read(rows).size() == 2);
}

}  // namespace
}  // namespace kvcast::cli
