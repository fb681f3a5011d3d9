#include "cli/train/training_log.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/frame/command.h"
#include "model/io/files/atomic_file.h"
#include "model/io/files/csv_table.h"
#include "reports/plot/plot.h"

namespace kvcast::cli {
namespace {

constexpr const char* header =
    "step,loss,gradient_norm,learning_rate,tokens_per_s,validation_loss\n";

}  // namespace

std::uint64_t trainer_steps(const std::filesystem::path& checkpoint) {
  return train::read_progress(checkpoint).at("steps").get<std::uint64_t>();
}

TrainingLog::TrainingLog(const std::filesystem::path& output, std::uint64_t steps)
    : path_(output / "metrics.csv") {
  if (steps == 0 || !std::filesystem::exists(path_)) return;
  const CsvTable table = CsvTable::read(path_);
  for (const CsvRow& row : table.rows()) {
    Row r{row.whole("step"), row.number("loss"), {}, {}};
    if (r.step > steps) break;
    if (!row.text("validation_loss").empty()) r.validation_loss = row.number("validation_loss");
    r.text = fmt::format("{},{},{},{},{},{}\n", row.text("step"), row.text("loss"),
                         row.text("gradient_norm"), row.text("learning_rate"),
                         row.text("tokens_per_s"), row.text("validation_loss"));
    rows_.push_back(std::move(r));
  }
}

void TrainingLog::add(const train::StepReport& r, double tokens_per_s,
                      std::optional<double> validation_loss) {
  rows_.push_back({r.step, r.loss, validation_loss,
                   fmt::format("{},{},{},{},{:.1f},{}\n", r.step, shortest(r.loss),
                               shortest(r.gradient_norm), shortest(r.learning_rate), tokens_per_s,
                               validation_loss ? shortest(*validation_loss) : std::string())});
}

void TrainingLog::write() const {
  std::string text = header;
  for (const Row& row : rows_) text += row.text;
  write_file(path_, text);
}

void TrainingLog::draw(const std::string& path, const std::string& model) const {
  reports::Plot plot;
  plot.title = "training " + model;
  plot.x = {.label = "step", .column = "step"};
  plot.y = {.label = "loss (nats a token)", .column = "loss"};
  reports::Series training{.label = "training"};
  reports::Series validation{.label = "validation", .style = reports::Style::Marks};
  for (const Row& row : rows_) {
    training.points.push_back({.x = static_cast<double>(row.step), .y = row.loss});
    if (row.validation_loss) {
      validation.points.push_back({.x = static_cast<double>(row.step), .y = *row.validation_loss});
    }
  }
  plot.series.push_back(std::move(training));
  if (!validation.points.empty()) plot.series.push_back(std::move(validation));
  reports::write_plot(plot, path);
}

}  // namespace kvcast::cli
