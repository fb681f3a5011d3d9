#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "model/io/files/csv_table.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"
#include "model/io/tensors/stored_tensor.h"
#include "tests/cli/program.h"
#include "tests/cli/shell.h"
#include "tests/test_folder.h"

namespace kvcast::cli {
namespace {

const std::string step = "estimate --train --model llama-7b --hardware a100-80gb --dtype bf16 ";

TEST_CASE("estimate --train: the contract's keys, in base units") {
  const json j = run_json(step + "--batch 4 --seq-len 2048 --json");
  for (const char* key :
       {"step_s", "tokens_per_s", "model_flops", "hardware_flops", "mfu", "peak_memory_bytes",
        "weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "fits"}) {
    CHECK(j.contains(key));
  }
  CHECK(j["tokens_per_s"].get<double>() * j["step_s"].get<double>() == near(4.0 * 2048));
  CHECK(j["mfu"].get<double>() ==
        near(j["model_flops"].get<double>() / (312e12 * j["step_s"].get<double>())));
  CHECK(j["peak_memory_bytes"].get<double>() ==
        near(j["weight_bytes"].get<double>() + j["gradient_bytes"].get<double>() +
             j["optimizer_bytes"].get<double>() + j["activation_bytes"].get<double>()));
  // 6,738,415,616 parameters of 16 bytes alone are more than the card has.
  CHECK(j["parameters"] == 6738415616);
  CHECK(j["fits"] == false);
  const json full = run_json(step + "--batch 4 --seq-len 2048 --recompute full --json");
  CHECK(full["saved_activation_bytes"] < j["saved_activation_bytes"]);
  CHECK(full["model_flops"] == j["model_flops"]);
}

TEST_CASE("estimate --train: of a loss in chunks one chunk's logits are alive") {
  const auto activations = [](const std::string& flags) {
    const json j = run_json(
        "estimate --train --quiet --model llama-3.2-1b --hardware h100-sxm "
        "--batch 8 --seq-len 4096 --recompute full --dtype bf16 --json " +
        flags);
    return j["activation_bytes"].get<double>();
  };
  // 8 x 4,096 rows of 128,256 logits in bf16 are 8.4 GB. Halves of them are still what is largest.
  const double half = 8.0 * 2048 * 128256 * 2;
  const double saved = activations("") - activations("--loss-chunks 2");
  CHECK(saved > 0.9 * half);
  CHECK(saved < 1.1 * half);
  // A weight's gradient is there once, however many chunks and tied places add to it.
  const std::string eager =
      "estimate --train --quiet --model llama-3.2-1b --hardware h100-sxm --engine pytorch "
      "--batch 1 --seq-len 4096 --recompute full --dtype bf16 --json ";
  CHECK(run_json(eager + "--loss-chunks 16")["peak_memory_bytes"] <=
        run_json(eager)["peak_memory_bytes"]);
  const std::string most = step + "--batch 4 --seq-len 64 --loss-chunks 64 ";
  CHECK(contains(run_well(most).output, "loss in 64 chunks"));
  const json one = run_json(most + "--json");
  CHECK(one["loss_chunks"] == 64);
  const TestFolder folder;
  std::string sweep = most + "--quiet --csv " + folder.file("sweep.csv");
  sweep.replace(0, std::string("estimate").size(), "sweep");
  run_well(sweep);
  const CsvTable table = CsvTable::read(folder / "sweep.csv");
  CHECK(std::stod(table[0].text("activation_bytes")) == one["activation_bytes"].get<double>());
}

TEST_CASE("estimate --train: weights in blocks that rows do not fill are whole bytes") {
  // Blocks of 128 x 128 with a scale do not divide all of deepseek-v3's weights, so that some would
  // take a fraction of a byte: this was a failed assertion. An element takes a byte; those of the
  // embedding and the head, of 7,168 x 129,280 each, take two.
  const json j = run_json(
      "estimate --train --quiet --model deepseek-v3 --hardware h200 --batch 1 --seq-len 64 --json");
  const auto parameters = j["parameters"].get<double>();
  CHECK(j["weight_bytes"] > parameters);
  CHECK(j["weight_bytes"] < 1.01 * parameters);
  CHECK(j["step_s"] > 0);
}

TEST_CASE("estimate --train: the breakdown's rows are the step") {
  // Then where the host is slower than the device, which waits for it.
  for (const char* engine : {"ideal", "megatron", "pytorch"}) {
    const json j = run_json(
        "estimate --train --model gpt2 --hardware a100-80gb --dtype bf16 --batch 2 --seq-len 64 "
        "--micro-batches 2 --breakdown --json --engine " +
        std::string(engine));
    double sum = 0;
    for (const json& row : j["breakdown"]) sum += row["seconds"].get<double>();
    CHECK(sum == near(j["step_s"].get<double>()));
  }
  // A replica updates the part whose states it has.
  const json j = run_json(
      "estimate --train --model gpt2 --hardware a100-80gb --dtype bf16 --batch 4 --seq-len 64 "
      "--dp 2 --zero 1 --engine pytorch --breakdown --json");
  double update = 0;
  for (const json& row : j["breakdown"]) {
    if (row["pass"] == "update") update += row["seconds"].get<double>();
  }
  CHECK(update == near(j["update_s"].get<double>()));
}

TEST_CASE("validate --measure --train: steps that ran, beside what estimate --train says") {
  const TestFolder folder;
  const std::string csv = folder.file("steps.csv");
  const std::string model = KVCAST_SOURCE_DIR "/tests/oracle/llama_mha";
  const json j = run_json(
      "validate --quiet --measure --train --force --rounds 2 --threads 1 --model " + model +
      " --batch 2 --seq-len 8 --recompute none,full --hardware x86-server-cpu "
      "--csv '" +
      csv + "' --json");
  REQUIRE(j["rows"].size() == 2);
  const CsvTable table = CsvTable::read(csv);
  for (std::size_t i = 0; i < 2; ++i) {
    const json said = run_json("estimate --quiet --train --model " + model +
                               " --hardware x86-server-cpu --dtype fp32 --batch 2 --seq-len 8 "
                               "--recompute " +
                               table[i].text("recompute") + " --json");
    CHECK(table[i].number("predicted_step_s") == said["step_s"].get<double>());
    CHECK(table[i].number("predicted_peak_memory_bytes") ==
          said["peak_memory_bytes"].get<double>());
    CHECK(j["rows"][i]["predicted"] == said["step_s"]);
    CHECK(table[i].number("step_s") > 0);
    CHECK(table[i].number("rounds") == 2);
  }
  CHECK(table[0].text("recompute") == "none");
  CHECK(table[1].text("recompute") == "full");
  // Where the system can forget a peak, both rows have one.
  CHECK(j["peak_memory"]["rows"].get<int>() % 2 == 0);
}

TEST_CASE("model show --graph: a pass of training, there and back, like layers drawn once") {
  const TestFolder folder;
  const std::string dot = folder.file("train.dot");
  run_well("model show gpt2 --pass training --graph '" + dot + "'");
  check_contains(contents(dot), {"layer 0 to 11 (x12)", "layer 10 to 0 (x11)", "cross_entropy",
                                 "query_weight_gradient\\nweight_gradient [768, 768]"});
  run_well("model show openelm-1.1b --pass training --method kvp:auxiliary=openelm-450m --graph '" +
           dot + "'");
  check_contains(contents(dot), {"auxiliary_loss", "key_consistency"});
}

TEST_CASE("sweep --train: a row for each point, the same numbers as estimate") {
  const TestFolder folder;
  const std::string csv = folder.file("train.csv");
  run_well(
      "sweep --train -m gpt2 --hardware a100-80gb,h100-sxm --dtype bf16 --batch 4,8 --seq-len "
      "256..1k:x2 --recompute none,full --micro-batches 1..4:x2 --csv '" +
      csv + "'");
  const CsvTable table = CsvTable::read(csv);
  CHECK(table.size() == 2 * 2 * 3 * 2 * 3);
  for (const CsvRow& row : table.rows()) {
    if (row.text("hardware") != "h100-sxm" || row.text("batch") != "8" ||
        row.text("seq_len") != "512" || row.text("recompute") != "full" ||
        row.text("micro_batches") != "2") {
      continue;
    }
    const json j = run_json(
        "estimate --train -m gpt2 --hardware h100-sxm --dtype bf16 --batch 8 "
        "--seq-len 512 --recompute full --micro-batches 2 --json");
    CHECK(row.number("step_s") == near(j["step_s"].get<double>()));
    CHECK(row.number("peak_memory_bytes") == near(j["peak_memory_bytes"].get<double>()));
  }
  // The same axes in a file.
  std::ofstream(folder.file("axes.json"))
      << R"({"model": "gpt2", "hardware": ["a100-80gb", "h100-sxm"], "dtype": "bf16",
             "batch": [4, 8], "seq_len": "256..1k:x2", "recompute": ["none", "full"],
             "micro_batches": "1..4:x2"})";
  const std::string from_file = folder.file("from-file.csv");
  run_well("sweep --train --spec '" + folder.file("axes.json") + "' --csv '" + from_file + "'");
  CHECK(contents(from_file) == contents(csv));
  check_contains(run_program("sweep --spec '" + folder.file("axes.json") + "' --csv -").errors,
                 {"axes.json: /seq_len: got a sweep of requests, expected --train"});
  check_contains(run_program("choose frontier --spec '" + folder.file("axes.json") + "'").errors,
                 {"got the axis recompute of training, expected axes of requests"});
  // Stages of a pipeline, with as many micro-batches as a replica has sequences.
  run_well(
      "sweep --train -m gpt2 --hardware a100-80gb --dtype bf16 --batch 8 --seq-len 512 --pp 2 "
      "--virtual-stages 1,2 --csv '" +
      csv + "'");
  const CsvTable staged = CsvTable::read(csv);
  REQUIRE(staged.size() == 2);
  const json two = run_json(
      "estimate --train -m gpt2 --hardware a100-80gb --dtype bf16 --batch 8 --seq-len 512 --pp 2 "
      "--virtual-stages 2 --json");
  CHECK(two["micro_batches"] == 8);
  CHECK(staged[1].number("virtual_stages") == 2);
  CHECK(staged[1].number("step_s") == near(two["step_s"].get<double>()));
  CHECK(staged[1].number("bubble_s") == near(two["bubble_s"].get<double>()));
  CHECK(staged[1].number("bubble_s") < staged[0].number("bubble_s"));
  // Nothing is generated behind a sequence.
  CHECK_FALSE(contains(
      run_program("sweep --train -m gpt2 --hardware a100-80gb --seq-len 1024 --csv -").errors,
      "longer than"));
}

TEST_CASE("train: a checkpoint that kvcast runs, and goes on from") {
  const TestFolder folder;
  const std::string text = folder.file("text.txt");
  std::ofstream(text) << std::string(40, 'a') + std::string(3000, 'b') + "the end of it\n";
  const std::string config = folder.file("config.json");
  std::ofstream(config) << R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
      "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 128})";
  const std::string base = "train --model '" + config +
                           "' --random-weights 1 --tokenizer bytes "
                           "--text '" +
                           text + "' --validation-text '" + text +
                           "' --seq-len 32 --batch 4 --warmup 2 --threads 1 ";
  const std::string out = folder.file("out");
  const json j = run_json(base + "--learning-rate 1e-2 --steps 12 --save-every 6 --output '" + out +
                          "' --json");
  for (const char* key : {"steps", "loss", "validation_loss", "tokens_per_s", "step_s"}) {
    CHECK(j.contains(key));
  }
  CHECK(j["steps"] == 12);
  CHECK(j["loss"].get<double>() < 2);
  const CsvTable metrics = CsvTable::read(out + "/metrics.csv");
  CHECK(metrics.size() == 13);
  CHECK(metrics[0].number("validation_loss") > 5);  // about ln 256
  CHECK(metrics[1].number("loss") > 5);
  CHECK(std::filesystem::exists(out + "/checkpoint-000006/model.safetensors"));
  const json generated = run_json("run --model '" + out +
                                  "/checkpoint-000012' --tokens 98,98,98 --output-len 4 --json");
  CHECK(generated["generated_tokens"].dump().find("98") != std::string::npos);

  // The second half again, from the first one's checkpoint.
  std::filesystem::remove_all(out + "/checkpoint-000012");
  check_contains(
      run_program(base + "--learning-rate 1e-2 --steps 12 --set rope_theta=7 --output '" + out +
                  "' --resume")
          .errors,
      {"was trained with set []"});
  const json again = run_json(base + "--learning-rate 0.01 --steps 12 --save-every 6 --output '" +
                              out + "' --resume --json");
  CHECK(again["loss"] == j["loss"]);
  CHECK(again["validation_loss"] == j["validation_loss"]);
  CHECK(CsvTable::read(out + "/metrics.csv").size() == 13);

  // Another text is another training.
  std::filesystem::remove_all(out + "/checkpoint-000012");
  std::ofstream(text) << std::string(4000, 'c');
  check_contains(run_program(base + "--learning-rate 1e-2 --steps 12 --save-every 6 --output '" +
                             out + "' --resume")
                     .errors,
                 {"was trained with other tokens, from --text or the tokenizer"});

  // A damaged state is told by its file.
  const auto resumed = [&](const std::string& progress) {
    write(out + "/checkpoint-000006/training.json", progress);
    return run_program(base + "--learning-rate 1e-2 --steps 12 --output '" + out + "' --resume")
        .errors;
  };
  check_contains(resumed(R"({"settings": null, "steps": 6})"), {"training.json", "settings"});
  check_contains(resumed(R"({"settings": {}, "steps": 0})"), {"training.json", "steps"});
  check_contains(resumed(R"({"settings": {}, "steps": 7})"), {"checkpoint-000006: got 7 steps"});
}

/// Tokens that tiny models know.
std::string write_text(const TestFolder& folder) {
  std::ofstream text(folder.file("text.txt"));
  for (int i = 0; i < 2000; ++i) text << static_cast<char>(1 + i % 11);
  return folder.file("text.txt");
}

TEST_CASE("train: an MLKV model from random weights is one that kvcast runs, and goes on from") {
  const TestFolder folder;
  const std::string out = folder.file("out");
  const std::string model = folder.file("model.json");
  const std::string source = contents(KVCAST_SOURCE_DIR "/tests/oracle/gpt_neox/config.json");
  write(model, source);
  const std::string base =
      "train --quiet --model '" + model +
      "' --random-weights 1 --method mlkv:layers=1,heads=1 "
      "--tokenizer bytes --seq-len 16 --batch 2 --steps 4 --save-every 2 --text '" +
      write_text(folder) + "' --output '" + out + "' --json ";
  const json whole = run_json(base);
  run_well("run --quiet --model '" + out + "/checkpoint-000004' --tokens 1,2,3 --output-len 2");
  std::filesystem::remove_all(out + "/checkpoint-000004");
  CHECK(run_json(base + "--resume")["loss"] == whole["loss"]);

  // Another model under the same name.
  json other = json::parse(source);
  other["intermediate_size"] = 2 * other["intermediate_size"].get<int>();
  write(model, other.dump());
  const ProgramResult of_other = run_program(base + "--resume");
  CHECK(of_other.status == 2);
  const int width = json::parse(source)["intermediate_size"].get<int>();
  check_contains(of_other.errors,
                 {"was trained with intermediate_size " + std::to_string(width) + ", not " +
                  std::to_string(2 * width) + "; expected the same " + model});
  write(model, source);

  // A checkpoint that computes something else, and one of another shape.
  std::filesystem::remove_all(out + "/checkpoint-000004");
  const std::string file = out + "/checkpoint-000002/config.json";
  json config = json::parse(contents(file));
  config["layer_norm_eps"] = 0.5;
  write(file, config.dump());
  const ProgramResult edited = run_program(base + "--resume");
  CHECK(edited.status == 2);
  check_contains(edited.errors, {"checkpoint-000002: got another config.json than was saved"});
  config["hidden_size"] = 2 * config["hidden_size"].get<int>();
  write(file, config.dump());
  const ProgramResult resumed = run_program(base + "--resume");
  CHECK(resumed.status == 2);
  check_contains(resumed.errors, {"checkpoint-000002", "got shape"});
  CHECK_FALSE(std::filesystem::exists(out + "/checkpoint-000004"));
}

TEST_CASE("train: Ctrl-C saves, and what a full disk cannot take leaves the last checkpoint") {
  const TestFolder folder;
  const std::string out = folder.file("out");
  const std::string plot = folder.file("loss.svg");
  const std::string base = "train --quiet --model " KVCAST_SOURCE_DIR
                           "/tests/oracle/llama_mha --tokenizer bytes --seq-len 16 --batch 2 "
                           "--steps 1000000 --text '" +
                           write_text(folder) + "' --output '" + out + "' ";
  const auto checkpoints = [&] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(out)) {
      if (entry.is_directory()) names.insert(entry.path().filename().string());
    }
    return names;
  };
  // A signal once there is a checkpoint more; the exit status.
  const auto interrupt = [&](const char* signal, const std::string& flags, std::size_t before) {
    return shell_output("env --default-signal=INT '" KVCAST_PROGRAM "' " + base + flags +
                        " --save-every 1000 >/dev/null 2>&1 & job=$!; "
                        "for i in $(seq 500); do [ $(ls '" +
                        out + "' | grep -c checkpoint) -gt " + std::to_string(before) +
                        " ] && break; sleep 0.1; done 2>/dev/null; kill -" + signal +
                        " $job; wait $job; "
                        "echo $?");
  };
  CHECK(interrupt("INT", "--plot '" + plot + "'", 0) == "130\n");
  const std::set<std::string> first = checkpoints();
  REQUIRE(first.size() > 1);  // one of them at no multiple of 1000
  CHECK_FALSE(first.rbegin()->ends_with("000"));
  const std::string states = out + "/" + *first.rbegin() + "/optimizer.safetensors";
  const std::string saved = contents(states);
  check_contains(contents(plot), {"<svg"});

  // In kB: the weights have 63, the states 126.
  const ProgramResult full = run_program(base + "--resume --save-every 1", "ulimit -f 80;");
  CHECK(full.status == 1);
  check_contains(full.errors, {"cannot be written"});
  CHECK(checkpoints() == first);
  CHECK(contents(states) == saved);

  CHECK(interrupt("TERM", "--resume", first.size()) == "130\n");
  CHECK(*checkpoints().rbegin() > *first.rbegin());
  CHECK_FALSE(checkpoints().rbegin()->ends_with("000"));
}

TEST_CASE("train: a checkpoint of random weights has the configuration that was trained") {
  const TestFolder folder;
  const std::string out = folder.file("out");
  const std::string text = folder.file("text.txt");
  std::ofstream(text) << std::string(200, '!');
  const std::string train = "train --quiet --model " KVCAST_SOURCE_DIR
                            "/tests/oracle/mistral3_wrapped --random-weights 1 --tokenizer bytes "
                            "--seq-len 8 --batch 2 --text '" +
                            text + "' ";
  run_well(train + "--set intermediate_size=20 --steps 1 --output '" + out + "'");
  const json config = json::parse(contents(out + "/checkpoint-000001/config.json"));
  CHECK(config.at("intermediate_size") == 20);
  CHECK(config.at("torch_dtype") == "float32");
  run_well("run --quiet --model '" + out + "/checkpoint-000001' --tokens 1,2 --output-len 1");
  const ProgramResult broken =
      run_program(train + "--steps 1 --learning-rate 3e38 --weight-decay 100 --output '" +
                  folder.file("no") + "'");
  CHECK(broken.status == 1);
  check_contains(broken.errors, {"step 1: the weight ", " is not finite"});
}

TEST_CASE("train --count: every FLOP and byte of a step is one that the recorded graphs have") {
  const TestFolder folder;
  const std::string text = write_text(folder);
  const auto train = [&](const std::string& model, const std::string& flags) {
    static int outputs = 0;
    return run_json("train --quiet --model " KVCAST_SOURCE_DIR "/tests/oracle/" + model +
                    " --tokenizer bytes --seq-len 16 --batch 2 --text '" + text + "' --output '" +
                    folder.file("out" + std::to_string(++outputs)) + "' --json " + flags);
  };
  // Plain, with experts whose number a run finds, with a state, with shared keys and values, and
  // an auxiliary model that predicts those of a frozen base.
  const std::string kvp = KVCAST_SOURCE_DIR "/tests/oracle/kvp/";
  const std::string openelm =
      "openelm --method kvp:auxiliary=" + kvp + "auxiliary,predictor=" + kvp + "predictor ";
  for (const std::string& model : {std::string("llama_mha"), std::string("mixtral"),
                                   std::string("falcon_h1"), std::string("mlkv_llama"), openelm}) {
    CAPTURE(model);
    for (const char* flags : {"", "--recompute full --micro-batches 2", "--recompute selective",
                              "--loss-chunks 3 --micro-batches 2"}) {
      const json j = train(model, std::string("--steps 1 --count ") + flags);
      CHECK(j["counted_flops"] > 0);
      CHECK(j["counted_flops"] == j["analytic_flops"]);
      CHECK(j["counted_bytes"] == j["analytic_bytes"]);
    }
  }
  const json one = train("llama_mha", "--steps 1 --count");
  const json three = train("llama_mha", "--steps 3 --count");
  const json fast = train("llama_mha", "--steps 3");
  CHECK(three["counted_flops"] == 3 * one["counted_flops"].get<std::uint64_t>());
  CHECK(three["loss"].get<double>() == near(fast["loss"].get<double>()).epsilon(1e-5));
  CHECK_FALSE(fast.contains("counted_flops"));
}

TEST_CASE("train: KV Prediction from a pruned base, from untrained maps, and goes on") {
  const TestFolder folder;
  const std::string text = folder.file("text.txt");
  std::ofstream file(text);
  for (int i = 0; i < 3000; ++i) file << static_cast<char>(33 + i * i % 27);
  file.close();
  const std::string oracle = folder.file("base");
  std::filesystem::copy(std::string(KVCAST_SOURCE_DIR) + "/tests/oracle/openelm", oracle);
  const std::string out = folder.file("out");
  const std::string train = "train --model '" + oracle +
                            "' --method kvp:auxiliary=lp-0.50 --tokenizer bytes --text '" + text +
                            "' --validation-text '" + text +
                            "' --seq-len 32 --batch 4 --learning-rate 1e-2 --consistency-weight 1 "
                            "--steps 20 --save-every 10 --output '" +
                            out + "' --json";
  const json j = run_json(train);
  const CsvTable metrics = CsvTable::read(out + "/metrics.csv");
  for (const std::string part :
       {"base_loss", "auxiliary_loss", "key_consistency", "value_consistency"}) {
    CAPTURE(part);
    CHECK(j["loss_parts"].contains(part));
    CHECK(j["validation_loss_parts"].contains(part));
    CHECK(metrics[20].number("validation_" + part) < metrics[0].number("validation_" + part));
  }
  // What inference computes from the folder is what training said of it.
  std::ofstream(folder.file("ids.json")) << [&] {
    const std::string bytes = contents(text);
    json ids;
    for (std::size_t i = 0; i < 2977; ++i) ids.push_back(static_cast<int>(bytes[i]));
    return ids.dump();
  }();
  const std::string trained = out + "/checkpoint-000020";
  const json objective = run_json("validate kvp --base '" + oracle + "' --auxiliary '" + trained +
                                  "' --predictor '" + trained + "/predictor' --text '" +
                                  folder.file("ids.json") + "' --window 32 --z-loss 0 --json");
  CHECK(j["validation_loss"].get<double>() ==
        doctest::Approx(objective["total"].get<double>()).epsilon(1e-5));
  std::filesystem::remove_all(trained);
  CHECK(run_json(train + " --resume")["loss"] == j["loss"]);
  // Without the auxiliary's own loss its last layers are of no use, and are saved as they were.
  const std::string base_alone = folder.file("base-alone");
  run_json("train --model '" + oracle +
           "' --method kvp:auxiliary=lp-0.50 --auxiliary-weight 0 --tokenizer bytes --text '" +
           text + "' --seq-len 32 --batch 4 --steps 2 --output '" + base_alone + "' --json");
  const std::string saved = base_alone + "/checkpoint-000002";
  const auto norm = [](const std::string& model) {
    std::vector<float> numbers;
    for (const StoredTensor& t : read_safetensors(MappedFile::open(model + "/model.safetensors"))) {
      if (t.name != "transformer.norm.weight") continue;
      numbers.resize(t.elements());
      read_elements(t, 0, numbers);
    }
    return numbers;
  };
  CHECK(norm(saved).size() > 1);
  CHECK(norm(saved) == norm(oracle));
  CHECK(norm(trained) != norm(oracle));
  // Losses of weight 0 are not computed, and a training learns from any other.
  for (const std::string weights :
       {"--base-weight 0", "--base-weight 0 --auxiliary-weight 0",
        "--base-weight 0 --consistency-weight 0", "--auxiliary-weight 0 --consistency-weight 0"}) {
    CAPTURE(weights);
    const std::string alone = folder.file("alone");
    std::filesystem::remove_all(alone);
    run_well("train --model '" + oracle + "' --method kvp:auxiliary=lp-0.50 --tokenizer bytes " +
             weights + " --text '" + text + "' --seq-len 32 --batch 4 --steps 2 --output '" +
             alone + "'");
    const CsvTable table = CsvTable::read(alone + "/metrics.csv");
    CHECK(table[1].number("gradient_norm") > 0);
    CHECK(table[1].number("loss") > 0);
    CHECK(!table.has_column("base_loss"));
  }
  // Another base model of the same shape.
  std::filesystem::remove_all(trained);
  const std::string file_of_base = oracle + "/model.safetensors";
  std::string bytes = contents(file_of_base);
  bytes.back() ^= 1;
  std::ofstream(file_of_base, std::ios::binary) << bytes;
  const ProgramResult other_base = run_program(train + " --resume");
  CHECK(other_base.status == 2);
  check_contains(other_base.errors, {"was trained with other weights of " + oracle});
}

}  // namespace
}  // namespace kvcast::cli
