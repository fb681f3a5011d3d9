#include "measure/training_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "measure/measurements.h"
#include "measure/model_match.h"
#include "measure/validation.h"
#include "model/io/files/csv_table.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/source_catalog.h"

namespace kvcast::measure {
namespace {

const std::string head =
    "id,model,hardware,engine,dtype,batch,seq_len,micro_batches,dp,zero,recompute,step_s,"
    "tokens_per_s_per_device\n";

Validation validated(const std::string& rows) {
  return validate(parse_measurements(head + rows, "f.csv"), catalog(), {});
}

TEST_CASE("training rows: a step's time, or tokens a second of a device") {
  const Validation v = validated(
      "time,tinyllama-1.1b,a100-80gb,pytorch,bf16,16,1024,2,8,1,full,0.5,\n"
      "rate,tinyllama-1.1b,a100-80gb,pytorch,bf16,16,1024,2,8,1,full,,4096\n");
  REQUIRE(v.cases.size() == 2);
  CHECK(name(v.cases[0].metric) == "step_s");
  CHECK(v.cases[1].measured == 16 * 1024 / 8 / 4096.0);
  CHECK(v.cases[1].predicted == v.cases[0].predicted);

  roofline::Configuration c;
  c.architecture = load_model(catalog(), "tinyllama-1.1b");
  c.hardware = roofline::load_hardware(catalog(), "a100-80gb");
  c.engine = roofline::load_engine(catalog(), "pytorch");
  c.lowering.weights = c.lowering.activations = c.lowering.cache = DType::BF16;
  roofline::apply(c.engine, true, true, c.lowering);
  c.parallelism.dp = 8;
  c.interconnect = roofline::find_interconnect(catalog(), "", c.hardware, 8);
  const roofline::TrainingForecaster forecaster(c, {.recompute = Recompute::Full},
                                                roofline::ShardedStates::Optimizer);
  CHECK(v.cases[0].predicted == forecaster.at({16, 1024, 2}).step_s);
  const Validation split =
      validate(parse_measurements("id,model,hardware,batch,seq_len,tp,dp,tokens_per_s_per_device\n"
                                  "tp,tinyllama-1.1b,a100-80gb,16,1024,2,4,1024\n",
                                  "f.csv"),
               catalog(), {});
  REQUIRE(split.cases.size() == 1);
  CHECK(split.cases[0].measured == 16 * 1024 / 8 / 1024.0);
  CHECK(split.cases[0].row.parallelism.tp == 2);
}

TEST_CASE("training rows: what a file does not say, or says wrongly") {
  const auto refusal = [](const std::string& row) { return message_of([&] { validated(row); }); };
  const std::string run = "a,gpt2,a100-80gb,,bf16,8,1024,1,";
  CHECK(refusal(run + "1,0,none,,\n") ==
        "f.csv:2: got no figure, expected step_s or tokens_per_s_per_device");
  CHECK(refusal(run + "1,0,none,1,2\n") ==
        "f.csv:2: got two figures, expected step_s or tokens_per_s_per_device");
  CHECK(refusal(run + "1,4,none,1,\n").starts_with("f.csv:2: 'zero': "));
  CHECK(refusal(run + "1,0,some,1,\n").starts_with("f.csv:2: 'recompute': "));
  CHECK(refusal("a,gpt2,a100-80gb,,bf16,0,1024,1,1,0,none,1,\n").starts_with("f.csv:2: 'batch'"));
  CHECK(message_of([] {
          parse_measurements("model,batch,seq_len,zer,step_s\ngpt2,8,1024,3,1\n", "f.csv");
        }).starts_with("f.csv:1: unknown column 'zer'"));
  const std::string several = "model,hardware,batch,seq_len,tp,dp,zero,platform,step_s\n";
  const auto reason = [&](const std::string& row) {
    const Validation v = validate(parse_measurements(several + row, "f.csv"), catalog(), {});
    REQUIRE(v.unmatched.size() == 1);
    return v.unmatched[0].reason;
  };
  CHECK(reason("gpt2,a100-80gb,8,1024,1,1,3,,1\n") ==
        "--zero: got one replica, expected --dp above 1");
  CHECK(reason("gpt2,a100-80gb,8,1024,1,1,0,dgx-a100,1\n") == "it names a platform for one device");
  CHECK(reason("gpt2,a100-80gb,4,1024,1,8,0,,1\n") ==
        "--batch: got 4, expected at least a sequence for each of the 8 replicas");
  // How many a pipeline had decides how long its stages wait.
  const Validation staged =
      validate(parse_measurements(
                   "model,hardware,batch,seq_len,pp,step_s\ngpt2,a100-80gb,8,1024,2,1\n", "f.csv"),
               catalog(), {});
  REQUIRE(staged.unmatched.size() == 1);
  CHECK(staged.unmatched[0].reason == "it has stages, and does not say micro_batches");
  const Validation many = validated(run + "64,0,none,1,\n");
  REQUIRE(many.unmatched.size() == 1);
  CHECK(many.unmatched[0].reason ==
        "dp 64: got dgx-a100 of 8 devices, expected a platform of at least 64");
}

/// Means of |error| over the cases of each group.
template <typename Group>
std::map<std::string, double> means(const Validation& v, Group group) {
  std::map<std::string, std::vector<double>> errors;
  for (const ValidationCase& c : v.cases) errors[group(c)].push_back(c.relative_error());
  std::map<std::string, double> result;
  for (const auto& [key, list] : errors) {
    result[key] = summarize(list).mape;
    MESSAGE(key, ": ", list.size(), " rows, ", result[key]);
  }
  return result;
}

Validation of_file(const std::string& name) {
  return validate(read_measurements(KVCAST_SOURCE_DIR "/data/measurements/" + name), catalog(), {});
}

TEST_CASE("training forecast: published steps") {
  const Validation v = of_file("published_training.csv");
  CHECK(v.cases.size() == 229);
  CHECK(v.unmatched.size() == 9);
  auto mean = means(v, [](const ValidationCase& c) { return c.row.hardware; });
  CHECK(mean.at("a100-80gb") < 0.07);
  CHECK(mean.at("a100-40gb") < 0.09);
  CHECK(mean.at("h100-sxm") < 0.15);
  // Stages, virtual ones too, and tensor parallelism as Megatron-LM's authors measured them.
  mean = means(v, [](const ValidationCase& c) { return c.row.id.substr(0, c.row.id.find('-')); });
  CHECK(mean.at("korthikanti") < 0.03);
  CHECK(mean.at("megatron") < 0.1);
  CHECK(mean.at("vtrain") < 0.2);
}

TEST_CASE("training forecast: measured steps of PyTorch, time and memory") {
  const std::string file = KVCAST_SOURCE_DIR "/data/measurements/training_steps.csv";
  const auto is_known = [](const std::string& model) {
    return !model.starts_with("gpt2") && !model.starts_with("olmoe");
  };
  auto time = means(of_file("training_steps.csv"), [&](const ValidationCase& c) {
    return is_known(c.row.model) ? std::string(attention_name(c.row.lowering.attention)) : "others";
  });
  CHECK(time.at("tiled") < 0.1);
  CHECK(time.at("eager") < 0.25);

  struct Memory {
    double sum = 0;
    double worst = 0;
    std::size_t rows = 0;
  };
  std::map<std::string, Memory> errors;
  const CsvTable table = CsvTable::read(file);
  const Measurements measured = read_measurements(file);
  for (std::size_t i = 0; i < measured.rows.size(); ++i) {
    const MeasuredRow& row = measured.rows[i];
    if (!row.unusable.empty()) continue;
    const auto [model, overrides] = split_overrides(row.model);
    roofline::Configuration c;
    c.architecture = load_model(catalog(), model, overrides);
    c.hardware = roofline::load_hardware(catalog(), row.hardware);
    c.engine = roofline::load_engine(catalog(), "pytorch");
    c.lowering = row.lowering;
    roofline::apply(c.engine, false, true, c.lowering);
    const roofline::TrainingForecaster forecaster(
        c, {.recompute = row.training->recompute, .states = row.training->states});
    const double memory =
        forecaster.at({row.size.batch, row.size.prompt_len, row.training->micro_batches})
            .peak_memory_bytes;
    const double error = std::abs(memory / table.rows()[i].number("peak_memory_bytes") - 1);
    const bool known = is_known(model);
    Memory& e = errors[known ? std::string(attention_name(row.lowering.attention)) : "others"];
    e.sum += error;
    e.worst = std::max(e.worst, error);
    ++e.rows;
    // Measured in a process without leftovers.
    const bool in_layers = row.training->recompute == Recompute::Full;
    if (known && !in_layers && !table.rows()[i].text("step_spread").empty()) CHECK(error < 0.025);
  }
  CHECK(errors["tiled"].rows == 25);
  CHECK(errors["tiled"].sum / 25 < 0.025);
  CHECK(errors["tiled"].worst < 0.06);
  CHECK(errors["eager"].rows == 7);
  CHECK(errors["eager"].sum / 7 < 0.05);
}

}  // namespace
}  // namespace kvcast::measure
