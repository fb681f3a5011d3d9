#include "cli/train/training_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/frame/command.h"
#include "model/io/files/atomic_file.h"
#include "model/io/files/csv_table.h"
#include "reports/plot/plot.h"

namespace kvcast::cli {
std::string checkpoint_name(std::uint64_t steps) {
  return fmt::format("{}{:06}", checkpoint_prefix, steps);
}

std::uint64_t trainer_steps(const std::filesystem::path& checkpoint) {
  return train::read_progress(checkpoint).at("steps").get<std::uint64_t>();
}

TrainingLog::TrainingLog(const std::filesystem::path& output, std::uint64_t steps,
                         const std::vector<std::string>& parts)
    : path_(output / metrics_file), parts_(parts), columns_{"step", "loss"} {
  columns_.insert(columns_.end(), parts.begin(), parts.end());
  for (const char* column : {"gradient_norm", "learning_rate", "tokens_per_s", "validation_loss"}) {
    columns_.emplace_back(column);
  }
  for (const std::string& part : parts) columns_.push_back("validation_" + part);
  if (steps == 0 || !std::filesystem::exists(path_)) return;
  const CsvTable table = CsvTable::read(path_);
  for (const CsvRow& row : table.rows()) {
    Row r{row.whole("step"), {}, {}, {}};
    if (r.step > steps) break;
    if (!row.text("loss").empty()) r.loss = row.number("loss");
    if (!row.text("validation_loss").empty()) r.validation_loss = row.number("validation_loss");
    std::vector<std::string> cells;
    for (const std::string& column : columns_) cells.push_back(row.text(column));
    r.text = fmt::format("{}\n", fmt::join(cells, ","));
    rows_.push_back(std::move(r));
  }
}

void TrainingLog::start(const train::Loss& validation) { add_row(0, nullptr, 0, validation); }

void TrainingLog::add(const train::StepReport& r, double tokens_per_s,
                      const std::optional<train::Loss>& validation) {
  add_row(r.step, &r, tokens_per_s, validation);
}

void TrainingLog::add_row(std::uint64_t step, const train::StepReport* report, double tokens_per_s,
                          const std::optional<train::Loss>& validation) {
  Row row{step, {}, {}, {}};
  std::vector<std::string> cells{std::to_string(step)};
  if (report != nullptr) {
    row.loss = report->loss.sum;
    cells.push_back(shortest(report->loss.sum));
    for (const double part : report->loss.parts) cells.push_back(shortest(part));
    for (const double x : {report->gradient_norm, report->learning_rate}) {
      cells.push_back(shortest(x));
    }
    cells.push_back(fmt::format("{:.1f}", tokens_per_s));
  }
  cells.resize(columns_.size() - parts_.size() - 1);
  if (validation) {
    row.validation_loss = validation->sum;
    cells.push_back(shortest(validation->sum));
    for (const double part : validation->parts) cells.push_back(shortest(part));
  }
  cells.resize(columns_.size());
  row.text = fmt::format("{}\n", fmt::join(cells, ","));
  rows_.push_back(std::move(row));
}

void TrainingLog::write() const {
  std::string text = fmt::format("{}\n", fmt::join(columns_, ","));
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
    if (row.loss) training.points.push_back({.x = static_cast<double>(row.step), .y = *row.loss});
    if (row.validation_loss) {
      validation.points.push_back({.x = static_cast<double>(row.step), .y = *row.validation_loss});
    }
  }
  plot.series.push_back(std::move(training));
  if (!validation.points.empty()) plot.series.push_back(std::move(validation));
  reports::write_plot(plot, path);
}

}  // namespace kvcast::cli
