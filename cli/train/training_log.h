/// metrics.csv of a training, and its curves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/train/trainer.h"

namespace kvcast::cli {

/// In a training's output folder: a row for each step.
inline constexpr const char* metrics_file = "metrics.csv";
/// Checkpoints are folders checkpoint-000100 in a training's output folder.
inline constexpr std::string_view checkpoint_prefix = "checkpoint-";
/// Of the folder after so many steps: "checkpoint-000100".
std::string checkpoint_name(std::uint64_t steps);
/// Of such a folder.
std::uint64_t trainer_steps(const std::filesystem::path& checkpoint);

class TrainingLog {
 public:
  /// Takes over the rows of the first `steps` steps from a metrics.csv that is there. `parts`: of
  /// the loss.
  TrainingLog(const std::filesystem::path& output, std::uint64_t steps,
              const std::vector<std::string>& parts);

  /// Before the first step: the row of step 0.
  void start(const train::Loss& validation);
  void add(const train::StepReport& report, double tokens_per_s,
           const std::optional<train::Loss>& validation);
  /// Writes metrics.csv, completely or not at all.
  void write() const;
  void draw(const std::string& path, const std::string& model) const;

 private:
  struct Row {
    std::uint64_t step = 0;
    std::optional<double> loss;
    std::optional<double> validation_loss;
    std::string text;
  };
  void add_row(std::uint64_t step, const train::StepReport* report, double tokens_per_s,
               const std::optional<train::Loss>& validation);

  std::filesystem::path path_;
  std::vector<std::string> parts_;
  std::vector<std::string> columns_;
  std::vector<Row> rows_;
};

}  // namespace kvcast::cli
