/// metrics.csv of a training, and its curves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/train/trainer.h"

namespace kvcast::cli {

/// Checkpoints are folders checkpoint-000100 in a training's output folder.
inline constexpr const char* checkpoint_prefix = "checkpoint-";
/// Of such a folder.
std::uint64_t trainer_steps(const std::filesystem::path& checkpoint);

class TrainingLog {
 public:
  /// Takes over the rows of the first `steps` steps from a metrics.csv that is there.
  TrainingLog(const std::filesystem::path& output, std::uint64_t steps);

  void add(const train::StepReport& report, double tokens_per_s,
           std::optional<double> validation_loss);
  /// Writes metrics.csv, completely or not at all.
  void write() const;
  void draw(const std::string& path, const std::string& model) const;

 private:
  struct Row {
    std::uint64_t step = 0;
    double loss = 0;
    std::optional<double> validation_loss;
    std::string text;
  };
  std::filesystem::path path_;
  std::vector<Row> rows_;
};

}  // namespace kvcast::cli
