#include "measure/training_matrix.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "measure/calibration.h"
#include "measure/training_run.h"
#include "measure/validation_store.h"
#include "model/base/error.h"
#include "model/base/stopwatch.h"
#include "model/execute/machine_probe.h"
#include "model/io/files/csv_table.h"
#include "model/io/files/csv_writer.h"
#include "model/io/files/fnv_hash.h"
#include "model/methods/method.h"
#include "model/train/trainer.h"
#include "roofline/training_forecast.h"

namespace kvcast::measure {
namespace {

constexpr std::string_view training_header =
    "model,hardware,method,attention,elementwise,dtype,state_dtype,batch,seq_len,micro_batches,"
    "recompute,step_s,step_spread,rounds,peak_memory_bytes,predicted_step_s,"
    "predicted_peak_memory_bytes,step_relative_error,error\n";

/// Ids drawn evenly.
std::vector<text::TokenId> random_tokens(std::uint64_t count, std::uint64_t vocab_size,
                                         std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<text::TokenId> tokens(count);
  for (text::TokenId& token : tokens) {
    token = static_cast<text::TokenId>(random() % vocab_size);
  }
  return tokens;
}

struct MeasuredStep {
  Rounds seconds;
  double peak_memory_bytes = no_value;
};

MeasuredStep run_steps(const Checkpoint& checkpoint, const TrainingStep& step,
                       const MeasureOptions& o) {
  train::TrainSettings settings;
  settings.batch = step.batch;
  settings.recompute = step.recompute;
  settings.rate.steps = o.rounds + 1;
  const std::uint64_t tokens = step.batch * step.seq_len + 1;
  train::TokenWindows text(random_tokens(tokens, checkpoint.architecture().vocab_size, o.seed),
                           step.seq_len, o.seed);
  const std::optional<double> before = execute::restart_peak_memory();
  train::Trainer trainer(checkpoint, parse_methods(step.method), settings);
  trainer.step(text);
  MeasuredStep m;
  for (unsigned round = 0; round < o.rounds; ++round) {
    o.check_stop();
    const Stopwatch watch;
    trainer.step(text);
    m.seconds.seconds.push_back(watch.seconds());
  }
  if (before) m.peak_memory_bytes = execute::peak_resident_bytes() - *before;
  return m;
}

roofline::TrainingForecast predicted(const Architecture& a, const TrainingStep& step,
                                     const MeasureOptions& o) {
  roofline::Configuration c;
  c.architecture = a;
  c.methods = parse_methods(step.method);
  c.lowering = train::TrainSettings{}.lowering;
  c.hardware = o.hardware;
  TrainingOptions options;
  options.recompute = step.recompute;
  return roofline::TrainingForecaster(c, options).at({step.batch, step.seq_len, 1});
}

std::string row_text(const TrainingStep& step, const std::string& device, const MeasuredStep& m,
                     double predicted_s, double predicted_bytes, std::string error) {
  CsvText csv;
  const double median = m.seconds.median();
  csv.cell(step.model).cell(device).cell(step.method).cell("tiled").cell("fused");
  csv.cell("fp32").cell("fp32").cell(step.batch).cell(step.seq_len).cell(1);
  csv.cell(name(step.recompute)).cell(median).cell(m.seconds.spread());
  csv.cell(m.seconds.seconds.size()).cell(m.peak_memory_bytes);
  csv.cell(predicted_s).cell(predicted_bytes).cell(predicted_s / median - 1);
  std::replace(error.begin(), error.end(), '\n', ' ');
  csv.cell(error);
  csv.end_row();
  return csv.text();
}

std::string fingerprint_of(const std::vector<TrainingStep>& steps, const MeasureOptions& o) {
  FnvHash hash;
  for (const TrainingStep& s : steps) {
    hash.add(
        fmt::format("{}|{}|{}|{}|{};", s.model, s.method, s.batch, s.seq_len, name(s.recompute)));
  }
  hash.add(fmt::format("{}|{}|{}|{}|{}", o.hardware.name, fingerprint(o.hardware), o.seed, o.rounds,
                       o.threads));
  return hash.text();
}

}  // namespace

std::vector<TrainingStep> training_matrix(const TrainingAxes& axes, const Catalog& catalog) {
  using Numbers = std::vector<std::uint64_t>;
  const bool quick = axes.quick;
  std::vector<TrainingStep> steps;
  std::optional<Error> reason;  // of the first that does not train
  for (const std::string& model :
       or_default(axes.models, quick ? std::vector<std::string>{"smollm2-135m"}
                                     : std::vector<std::string>{"smollm2-135m", "pythia-160m"})) {
    const Architecture a = load_model(catalog, model);
    for (const std::string& method : or_default(axes.methods, {"plain"})) {
      try {
        record_training(a, parse_methods(method), train::TrainSettings{}.lowering, {});
      } catch (const Error& e) {
        if (!reason) reason = e;
        continue;
      }
      for (const std::uint64_t batch : or_default(axes.batch, quick ? Numbers{1} : Numbers{2, 8})) {
        for (const std::uint64_t seq_len :
             or_default(axes.seq_len, quick ? Numbers{128} : Numbers{128, 512})) {
          const std::uint64_t positions = a.decoder.position_rows;
          if (positions > 0 && seq_len > positions) {
            throw Error("--seq-len", std::to_string(seq_len),
                        fmt::format("at most the {} positions of {}", positions, model));
          }
          for (const Recompute recompute : or_default(
                   axes.recompute, {Recompute::None, Recompute::Selective, Recompute::Full})) {
            steps.push_back({model, to_string(parse_methods(method)), batch, seq_len, recompute});
          }
        }
      }
    }
  }
  if (steps.empty()) throw Error(*reason);
  return steps;
}

MeasuredRows measure_training(const std::vector<TrainingStep>& steps, const Catalog& catalog,
                              const MeasureOptions& options) {
  std::unique_ptr<Checkpoint> checkpoint;
  return measure_rows(
      options, training_header, fingerprint_of(steps, options), steps.size(), [&](std::uint64_t i) {
        const TrainingStep& step = steps[i];
        MeasuredStep measured;
        roofline::TrainingForecast forecast{.step_s = no_value, .peak_memory_bytes = no_value};
        std::string error;
        try {
          if (checkpoint == nullptr || i == 0 || steps[i - 1].model != step.model) {
            checkpoint.reset();
            checkpoint = std::make_unique<Checkpoint>(
                has_weights(step.model)
                    ? Checkpoint(step.model)
                    : Checkpoint(load_model(catalog, step.model), options.seed));
          }
          forecast = predicted(checkpoint->architecture(), step, options);
          if (forecast.peak_memory_bytes > execute::machine_memory_bytes()) {
            throw Error("it needs more than this machine's memory");
          }
          measured = run_steps(*checkpoint, step, options);
        } catch (const Error& e) {
          error = e.what();
        }
        if (!measured.seconds.seconds.empty() && measured.seconds.spread() > settled) {
          tell_unsettled(
              fmt::format("training {} {}, recompute {}, batch {}, sequences of {}", step.model,
                          step.method, name(step.recompute), step.batch, step.seq_len),
              "step", measured.seconds, options);
        }
        return row_text(step, options.hardware.name, measured, forecast.step_s,
                        forecast.peak_memory_bytes, std::move(error));
      });
}

std::vector<double> peak_memory_errors(const std::filesystem::path& csv) {
  std::vector<double> errors;
  const CsvTable table = CsvTable::read(csv);
  for (const CsvRow& row : table.rows()) {
    if (row.text("peak_memory_bytes").empty()) continue;
    const double measured = row.number("peak_memory_bytes");
    if (measured > 0) errors.push_back(row.number("predicted_peak_memory_bytes") / measured - 1);
  }
  return errors;
}

}  // namespace kvcast::measure
