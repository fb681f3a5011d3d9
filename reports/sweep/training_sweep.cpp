#include "reports/sweep/training_sweep.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/io/files/csv_table.h"
#include "reports/sweep/row_sweep.h"

namespace kvcast::reports {
namespace {

using roofline::TrainingForecaster;

constexpr std::string_view training_columns =
    "recompute,zero,virtual_stages,batch,seq_len,step_s,tokens_per_s,forward_s,backward_s,update_s,"
    "communication_s,bubble_s,model_flops,hardware_flops,mfu,hfu,weight_bytes,gradient_bytes,"
    "optimizer_bytes,saved_activation_bytes,activation_bytes,peak_memory_bytes,fits,error";

struct TrainingPlace {
  std::uint64_t configuration = 0;
  Recompute recompute = Recompute::None;
  roofline::ShardedStates zero = roofline::ShardedStates::None;
  std::uint64_t virtual_stages = 1;
  std::uint64_t size = 0;
  std::uint64_t forecaster = 0;  ///< points of one number share a forecaster
};
TrainingPlace place_of(const TrainingSweep& s, std::uint64_t point) {
  TrainingPlace at;
  at.size = point % s.grid.num_sizes();
  std::uint64_t rest = point / s.grid.num_sizes();
  at.forecaster = rest;
  at.virtual_stages = s.virtual_stages[rest % s.virtual_stages.size()];
  rest /= s.virtual_stages.size();
  at.zero = s.zero[rest % s.zero.size()];
  rest /= s.zero.size();
  at.recompute = s.recompute[rest % s.recompute.size()];
  at.configuration = rest / s.recompute.size();
  return at;
}

/// The last forecaster, which neighbouring rows share, or why there is none.
class Forecasters {
 public:
  explicit Forecasters(const TrainingSweep& sweep) : sweep_(sweep) {}

  /// Throws Error.
  std::shared_ptr<const TrainingForecaster> of(const TrainingPlace& at) {
    const std::lock_guard lock(mutex_);
    if (number_ != at.forecaster) {
      number_ = at.forecaster;
      last_.reset();
      reason_.clear();
      try {
        TrainingOptions options = sweep_.options;
        options.recompute = at.recompute;
        roofline::Configuration c = sweep_.grid.configuration(at.configuration);
        c.micro_batches = 0;  // of a replica, not of a pipeline
        last_ = std::make_shared<TrainingForecaster>(c, options, at.zero, at.virtual_stages);
      } catch (const Error& e) {
        reason_ = e.what();
      }
    }
    if (!last_) throw Error(reason_);
    return last_;
  }

 private:
  const TrainingSweep& sweep_;
  std::mutex mutex_;
  std::optional<std::uint64_t> number_;
  std::shared_ptr<const TrainingForecaster> last_;
  std::string reason_;
};

roofline::DesignPoint size_of(const TrainingSweep& s, const TrainingPlace& at) {
  roofline::DesignPoint size;
  s.grid.sizes(at.size, 0, {&size, 1});
  return size;
}

/// Throws Error.
roofline::TrainingForecast forecast_of(const TrainingSweep& s, Forecasters& forecasters,
                                       const TrainingPlace& at) {
  const std::shared_ptr<const TrainingForecaster> forecaster = forecasters.of(at);
  const roofline::DesignPoint size = size_of(s, at);
  const std::uint64_t passes = s.grid.micro_batches(at.configuration)
                                   .value_or(forecaster->default_micro_batches(size.batch));
  return forecaster->at({size.batch, size.prompt_len, passes});
}

std::string row_of(const TrainingSweep& s, Forecasters& forecasters, std::uint64_t point) {
  const TrainingPlace at = place_of(s, point);
  const roofline::DesignPoint size = size_of(s, at);
  std::string row =
      fmt::format("{},{},{},{},{},{}", s.grid.cells(at.configuration), name(at.recompute),
                  static_cast<int>(at.zero), at.virtual_stages, size.batch, size.prompt_len);
  try {
    const roofline::TrainingForecast f = forecast_of(s, forecasters, at);
    row += fmt::format(",{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},", f.step_s,
                       f.tokens_per_s, f.forward_s, f.backward_s, f.update_s, f.communication_s,
                       f.bubble_s, f.model_flops, f.hardware_flops, f.mfu, f.hfu, f.weight_bytes,
                       f.gradient_bytes, f.optimizer_bytes, f.saved_activation_bytes,
                       f.activation_bytes, f.peak_memory_bytes, f.fits);
  } catch (const Error& e) {
    const std::string_view results = training_columns.substr(training_columns.find(",step_s"));
    row += std::string(static_cast<std::size_t>(std::count(results.begin(), results.end(), ',')),
                       ',') +
           csv_cell(e.what());
  }
  return row;
}

}  // namespace

void check_any_possible(const TrainingSweep& s) {
  Forecasters forecasters(s);
  std::string first;
  for (std::uint64_t point = 0; point < s.num_points(); ++point) {
    try {
      forecast_of(s, forecasters, place_of(s, point));
      return;
    } catch (const Error& e) {
      if (first.empty()) first = e.what();
    }
  }
  throw Error(first);
}

SweepResult run_training_sweep(const TrainingSweep& s, const SweepOptions& options) {
  std::string fingerprint = s.grid.fingerprint() + " training";
  for (const Recompute r : s.recompute) fingerprint += fmt::format(" {}", name(r));
  for (const auto z : s.zero) fingerprint += fmt::format(" {}", static_cast<int>(z));
  for (const std::uint64_t v : s.virtual_stages) fingerprint += fmt::format(" v{}", v);
  fingerprint +=
      fmt::format(" {} {} {} {}", s.options.dropout, s.options.loss_chunks, name(s.options.states),
                  s.options.gradients ? name(*s.options.gradients) : "");
  Forecasters forecasters(s);
  return run_row_sweep(
      {fmt::format("{},{}\n", configuration_columns, training_columns), fingerprint, s.num_points(),
       [&](std::uint64_t point) { return row_of(s, forecasters, point); }},
      options);
}

Plot training_sweep_plot(const TrainingSweep& s, const std::filesystem::path& csv) {
  const CsvTable table = CsvTable::read(csv);
  Plot plot;
  plot.title = "training";
  plot.x = {.label = "tokens of a sequence", .column = "seq_len", .scale = Scale::Log2};
  plot.y = {.label = "tokens a second", .column = "tokens_per_s"};
  for (std::uint64_t point = 0; point < table.size(); ++point) {
    const TrainingPlace at = place_of(s, point);
    const CsvRow row = table[point];
    if (row.text("tokens_per_s").empty()) continue;
    std::string label = s.grid.label(at.configuration);
    if (s.grid.spec().batch.size() > 1) label += ", batch " + row.text("batch");
    if (s.recompute.size() > 1) label += ", recompute " + row.text("recompute");
    if (s.virtual_stages.size() > 1) label += ", virtual stages " + row.text("virtual_stages");
    if (s.zero.size() > 1) label += ", ZeRO " + row.text("zero");
    series_of(plot.series, label, Style::Line)
        .points.push_back({row.number("seq_len"), row.number("tokens_per_s")});
  }
  return plot;
}

}  // namespace kvcast::reports
