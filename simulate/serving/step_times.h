/// Steps as they were run: what each took and who was in it, as CSV.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/io/files/atomic_file.h"
#include "simulate/serving/serving.h"

namespace kvcast::simulate {

/// Writes "start_s,seconds,parts", a part being "REQUEST:TOKENS".
class StepTimesFile {
 public:
  explicit StepTimesFile(const std::filesystem::path& path);
  void add(const ServedStep& step);
  void commit();

 private:
  AtomicFile file_;
  std::string text_;
};

/// Gives each step the time that it took then. Throws Error naming the line when a step has other
/// parts than the one of the file, or when the file has no more.
class ReplayedSteps : public StepClock {
 public:
  explicit ReplayedSteps(const std::filesystem::path& path);
  double seconds(std::span<const ScheduledPart> parts) override;

 private:
  struct Step {
    double seconds = 0;
    std::string parts;
  };
  std::string name_;
  std::vector<Step> steps_;
  std::size_t next_ = 0;
};

}  // namespace kvcast::simulate
