// What need not be typed: the device, the dtype; and what fits on a screen.
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

/// A folder of configuration with a file of this machine: an A100 under another name.
struct CalibratedMachine {
  TestFolder folder;
  std::string file = folder.file("kvcast/this-machine.json");
  std::string config = "config='" + folder.path().string() + "';";

  CalibratedMachine() {
    fs::create_directory(folder / "kvcast");
    json device = json::parse(contents(source_folder / "data/hardware/a100-80gb.json"));
    device["description"] = "The machine of the test";
    write(folder / "kvcast/this-machine.json", device.dump());
  }
};

/// The longest line, in characters.
std::size_t width(const std::string& text) {
  std::size_t widest = 0;
  std::size_t line = 0;
  for (const char c : text) {
    line = c == '\n' ? 0 : line + ((static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0);
    widest = std::max(widest, line);
  }
  return widest;
}

json with_dtypes(const std::string& model, const std::string& more = "") {
  return run_json("estimate --quiet --json --hardware a100-80gb --model " + model + " " + more);
}

}  // namespace

TEST_CASE("short ways: without --hardware, commands take this machine's file and name it") {
  const CalibratedMachine m;
  for (const std::string request :
       {"estimate --json --model llama-7b", "sweep --model llama-7b --prompt-len 1k,2k",
        "simulate prefill --json --model llama-7b --schedule kvr --devices 2",
        "simulate serving --json --model llama-7b --arrivals burst --num-requests 3 "
        "--prompt-lens 100 --output-lens 5",
        "choose slim --json --model llama-7b",
        "choose keep-rate --json --model llama-7b --keep 0.5",
        "choose devices --json --model llama-7b --max-devices 2",
        "choose serving --json --model llama-7b --arrivals poisson:rate=1 --num-requests 20 "
        "--prompt-lens 100 --output-lens 5 --slo ttft=5",
        "partition search --json --model llama-7b --devices 2",
        "partition table --json --model llama-7b --devices 2 --prompt-len 1k"}) {
    const ProgramResult own = run_well(request, m.config);
    CHECK(contains(own.errors, "without --hardware, this machine: " + m.file + "\n"));
    const ProgramResult named = run_well(request + " --hardware " + m.file);
    CHECK_FALSE(contains(named.errors, "this machine"));
    CHECK(own.output == named.output);
  }
  CHECK(contains(run_well("estimate --model llama-7b", m.config).output, "machine of the test"));
  CHECK(contains(run_well("hardware list", m.config).output,
                 "this machine, the default of --hardware: " + m.file));
}

TEST_CASE("short ways: HOME's .config serves where XDG_CONFIG_HOME is no absolute path") {
  const CalibratedMachine m;
  fs::create_directory(m.folder / ".config");
  fs::rename(m.folder / "kvcast", m.folder / ".config/kvcast");
  const std::string home = "export HOME='" + m.folder.path().string() + "'; config=none;";
  CHECK(contains(run_well("estimate --model llama-7b", home).errors,
                 m.folder.file(".config/kvcast/this-machine.json")));
}

TEST_CASE("short ways: a machine that is not calibrated says in one line how to name a device") {
  for (const std::string request :
       {"estimate --model llama-7b", "sweep --model llama-7b",
        "simulate prefill --model llama-7b --schedule kvr --devices 2",
        "choose slim --model llama-7b", "partition search --model llama-7b --devices 2"}) {
    check_refused(request, "--hardware is required: name a device ... kvcast calibrate");
  }
  // What is missing besides is said first.
  check_refused("estimate", "--model is required");
  check_refused("simulate serving --arrivals burst --prompt-lens 1 --output-lens 1",
                "--model is required");
  CHECK(contains(run_well("hardware list").output, "this machine: not calibrated"));
}

TEST_CASE("short ways: calibrate writes this machine's file when no other one is named") {
  const TestFolder folder;
  const std::string config = "config='" + folder.file("new/config") + "';";
  // Two imports stand for calibrations: measuring takes 20 s.
  const std::string columns =
      "device,kind,driver,software,date,benchmark,dtype,shape,flops,bytes,median_s,q1_s,q3_s,"
      "repeats\n";
  const std::string run = "An A100,gpu,535.1,PyTorch 2.4,2026-01-31T12:00:00Z,";
  write(folder / "a.csv", columns + run + "matmul,fp16,4096x4096x4096,156e12,1,1,0.99,1.01,20\n" +
                              run + "copy,fp16,1,0,1500e9,1,0.99,1.01,20\n");
  const std::string import =
      "calibrate --hardware a100-80gb --import " + folder.file("a.csv") + " ";
  for (const char* name : {"a.json", "b.json"}) run_well(import + "-o " + folder.file(name));
  const std::string combine =
      "calibrate --combine " + folder.file("a.json") + " " + folder.file("b.json");
  const std::string file = folder.file("new/config/kvcast/this-machine.json");
  CHECK(contains(run_well(combine, config).errors, "the default of --hardware: " + file));
  CHECK(json::parse(contents(file)).at("factors").contains("matrix_rate"));
  CHECK(contains(run_well("estimate --model llama-7b", config).errors, file));
  // A device that is imported is another one.
  check_refused(import, "--output is required with --import", 2, config);
}

TEST_CASE("short ways: without --dtype, the type is the one that the model is published in") {
  // The files: llama-7b has torch_dtype float16, llama-3.1-8b bfloat16, whisper-base float32, and
  // t5-base none.
  for (const auto& [model, dtype] : {std::pair{"llama-7b", "fp16"},
                                     {"llama-3.1-8b", "bf16"},
                                     {"whisper-base", "fp32"},
                                     {"t5-base", "bf16"}}) {
    json e = with_dtypes(model);
    CHECK(e == with_dtypes(model, std::string("--dtype ") + dtype));
    for (const char* key : {"weight_dtype", "activation_dtype", "cache_dtype"}) {
      CHECK(e.at(key) == dtype);
    }
  }
  CHECK(contains(run_well("estimate --model llama-3.1-8b --hardware a100-80gb").output,
                 ", bf16 as published\n"));
  CHECK(contains(run_well("estimate --model t5-base --hardware a100-80gb").output,
                 ", bf16 by default\n"));
  CHECK_FALSE(contains(
      run_well("estimate --model llama-7b --hardware a100-80gb --dtype fp16").output, "published"));
}

TEST_CASE("short ways: a config's dtype is read under both names, a wrapper's too") {
  const TestFolder folder;
  json config = json::parse(contents(source_folder / "data/models/llama-7b.json"));
  const auto dtype_of = [&](const json& c) {
    write(folder / "config.json", c.dump());
    return with_dtypes(folder.file("config.json")).at("cache_dtype").get<std::string>();
  };
  config["torch_dtype"] = "torch.bfloat16";
  CHECK(dtype_of(config) == "bf16");
  config["dtype"] = "float32";  // transformers 5 writes this one alone
  CHECK(dtype_of(config) == "fp32");
  config["dtype"] = "auto";
  config.erase("torch_dtype");
  CHECK(dtype_of(config) == "bf16");
  const std::string wrapped = oracle + "gemma3_wrapped/config.json";
  CHECK(with_dtypes(wrapped).at("cache_dtype") == "fp32");
}

TEST_CASE("short ways: quantised weights stay as stored, and products read what the config says") {
  const auto types = [](const std::string& flags) {
    const json e = run_json("estimate --quiet --json --tp 8 --model deepseek-v3 " + flags);
    CHECK(e.at("weight_dtype") == "fp8-block");
    CHECK(e.at("cache_dtype") == "bf16");
    return e;
  };
  const json e = types("--hardware h200");
  CHECK(e.at("activation_dtype") == "fp8");
  CHECK(e.at("arithmetic") == "fp8");
  // An A100 has no products in fp8; and whoever names a type means it.
  CHECK(types("--hardware a100-80gb").at("activation_dtype") == "bf16");
  CHECK(types("--hardware h200 --dtype bf16").at("activation_dtype") == "bf16");
  CHECK(types("--hardware h200 --activation-dtype fp8").at("ttft_s") == e.at("ttft_s"));

  const TestFolder folder;
  run_well("sweep --quiet --model deepseek-v3 --hardware h200,a100-80gb --tp 8 --csv " +
           folder.file("s.csv"));
  const CsvTable table = CsvTable::read(folder.file("s.csv"));
  REQUIRE(table.size() == 2);
  CHECK(table[0].text("activation_dtype") == "fp8");
  CHECK(table[1].text("activation_dtype") == "bf16");
}

TEST_CASE("short ways: a sweep gives each model its own type, and the rows say it") {
  const TestFolder folder;
  run_well(
      "sweep --quiet --model llama-7b,llama-3.1-8b,whisper-base --hardware a100-80gb "
      "--prompt-len 1500 --csv " +
      folder.file("s.csv"));
  const CsvTable table = CsvTable::read(folder.file("s.csv"));
  REQUIRE(table.size() == 3);
  const std::vector<std::string> expected{"fp16", "bf16", "fp32"};
  const std::vector<std::string> models{"llama-7b", "llama-3.1-8b", "whisper-base"};
  for (std::size_t i = 0; i < 3; ++i) {
    const CsvRow row = table[i];
    CHECK(row.text("cache_dtype") == expected[i]);
    CHECK(row.text("weight_dtype") == expected[i]);
    check_row(row, with_dtypes(models[i], "--prompt-len 1500"), {"ttft_s", "tpot_s"});
  }
}

TEST_CASE("short ways: a table of partitions is stored with the model's own type") {
  const TestFolder folder;
  const std::string table = folder.file("t.json");
  run_well(
      "partition table --quiet --model llama-3.1-8b --hardware a100-80gb --devices 2 "
      "--prompt-len 2k,4k --output " +
      table);
  CHECK(json::parse(contents(table)).at("settings").at("dtype") == "bf16");
  run_well("partition lookup --table " + table + " --devices 2 --prompt-len 3k");
}

TEST_CASE("short ways: tables fit 100 columns; words that do not are cut with a sign") {
  for (const std::string command :
       {"model list", "model show llama-7b", "model show llama-7b --operators", "hardware list",
        "hardware show a100-80gb", "engine list", "engine show vllm", "platform list",
        "platform show hgx-h100", "reproduce",
        "choose mlkv --quiet --model pythia-160m --hardware rtx-3060-12gb --batch 100",
        "choose devices --model llama-3.1-70b --hardware h100-sxm --objective tpot",
        "choose slim --quiet --model whisper-large-v3 --hardware h100-sxm --prompt-len 1500 "
        "--output-len 448"}) {
    CAPTURE(command);
    CHECK(width(run_well(command).output) <= 100);
  }
  CHECK(contains(run_well("engine list").output, "..."));
  // Descriptions that begin with a number stand to the left as the others do.
  CHECK(contains(run_well("platform list").output, "vllm  8 H100 SXM"));
  // No reference is cut: they continue on the next line.
  const std::string shown = run_well("hardware show a100-80gb").output;
  CHECK_FALSE(contains(shown, "..."));
}

TEST_CASE("short ways: a long name loses its middle before the figures behind it are left out") {
  const TestFolder folder;
  write(folder / "m.csv", "id,model,hardware,batch,prompt_len,output_len,ttft_s\n" +
                              std::string(60, 'a') + std::string(60, 'z') +
                              ",llama-7b,a100-80gb,1,1024,1,0.1\n");
  const std::string table = run_well("validate --measurements " + folder.file("m.csv")).output;
  CHECK(width(table) <= 100);
  const std::string row =
      table.substr(table.find('\n') + 1, table.find('\n', table.find('\n') + 1));
  CHECK(row.starts_with("aaaaaaaaaaaa"));
  CHECK(contains(row, "a...z"));
  CHECK(contains(row, "100 ms"));
  // Names that only their middle tells apart stay whole.
  const std::string alike(32, 'b');
  std::string rows = "id,model,hardware,batch,prompt_len,output_len,ttft_s\n";
  for (const char* middle : {"-one-", "-two-"}) {
    rows += alike + middle + alike + ",llama-7b,a100-80gb,1,1024,1,0.1\n";
  }
  write(folder / "alike.csv", rows);
  const std::string told = run_well("validate --measurements " + folder.file("alike.csv")).output;
  CHECK(contains(told, "-one-"));
  CHECK(contains(told, "-two-"));
}

TEST_CASE("short ways: hardware list says what is calibrated, and how far it was off") {
  std::size_t compared = 0;
  for (const json& device : run_json("hardware list --json")) {
    CAPTURE(device.at("name"));
    const json& validation = device.at("validation");
    if (validation.is_null()) continue;
    ++compared;
    CHECK(validation.at("rows") > 0);
    CHECK(validation.at("median_error") <= validation.at("p90_error"));
  }
  CHECK(compared > 0);
  // By hand: the rows of one device in the stored validations, and the median of their errors.
  std::vector<double> errors;
  for (const auto& entry : fs::directory_iterator(source_folder / "data/validation")) {
    const json stored = json::parse(contents(entry.path()));
    for (const json& row : stored.at("rows")) {
      if (row.at("hardware") != "m2-pro-cpu") continue;
      const std::string metric = row.at("metric");
      if (metric != "ttft_s" && metric != "tpot_s" && metric != "request_s") continue;
      const double ratio = row.at("predicted").get<double>() / row.at("measured").get<double>();
      errors.push_back(std::max(ratio, 1 / ratio) - 1);
    }
  }
  REQUIRE(errors.size() > 2);
  std::sort(errors.begin(), errors.end());
  for (const json& device : run_json("hardware list --json")) {
    if (device.at("name") != "m2-pro-cpu") continue;
    CHECK(device.at("validation").at("rows") == errors.size());
    const double middle = (errors[(errors.size() - 1) / 2] + errors[errors.size() / 2]) / 2;
    CHECK(device.at("validation").at("median_error").get<double>() == near(middle).epsilon(1e-4));
  }
}

TEST_CASE("short ways: --help begins with what is used most, in 100 columns") {
  const std::string help = run_well("estimate --help").output;
  std::size_t last = 0;
  for (const char* part :
       {"\nRequest:\n", "--model", "--hardware", "--prompt-len", "--output-len", "--batch", "--set",
        "\nOptions:\n", "--help", "\nOutput:\n", "\nKernels and element types:\n", "--dtype",
        "\nSeveral devices:\n", "\nTraining:\n", "\nMethods, NAME"}) {
    CAPTURE(part);
    const std::size_t at = help.find(part, last);
    REQUIRE(at != std::string::npos);
    last = at;
  }
  for (const std::string command :
       {"estimate", "sweep", "simulate serving", "run", "choose mlkv", "reproduce"}) {
    CAPTURE(command);
    std::istringstream lines(run_well(command + " --help").output);
    for (std::string line; std::getline(lines, line);) {
      const bool is_example = line.starts_with("  kvcast") || line.starts_with("  mpirun");
      if (!is_example) CHECK(width(line + "\n") <= 100);  // examples stay whole
    }
  }
}

}  // namespace kvcast::cli
