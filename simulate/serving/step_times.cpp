#include "simulate/serving/step_times.h"

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/io/files/csv_table.h"

namespace kvcast::simulate {
namespace {

std::string parts_text(std::span<const ScheduledPart> parts) {
  std::string text;
  for (const ScheduledPart& part : parts) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", part.sequence->request.id, part.tokens);
  }
  return text;
}

}  // namespace

StepTimesFile::StepTimesFile(const std::filesystem::path& path) : file_(path) {
  text_ = "start_s,seconds,parts\n";
}

void StepTimesFile::add(const ServedStep& step) {
  text_ += fmt::format("{},{},{}\n", step.start_s, step.seconds, parts_text(step.parts));
}

void StepTimesFile::commit() {
  file_.write(text_);
  file_.commit();
}

ReplayedSteps::ReplayedSteps(const std::filesystem::path& path) : name_(path.string()) {
  const CsvTable table = CsvTable::read(path);
  for (const CsvRow& row : table.rows()) {
    for (const char* const column : {"start_s", "seconds"}) {
      if (!table.has_column(column)) continue;
      if (row.number(column) < 0) throw Error(row.place(column), row.text(column), "0 or more");
    }
    const double seconds = row.number("seconds");
    steps_.push_back({seconds, row.text("parts")});
  }
}

double ReplayedSteps::seconds(std::span<const ScheduledPart> parts) {
  const std::string now = parts_text(parts);
  if (next_ == steps_.size()) {
    throw Error(name_, fmt::format("{} steps", steps_.size()), "one more, of " + now);
  }
  const Step& step = steps_[next_++];
  if (step.parts != now) {
    throw Error(fmt::format("{}:{}", name_, next_ + 1), "a step of " + step.parts,
                now + ", as this scheduler has it");
  }
  return step.seconds;
}

}  // namespace kvcast::simulate
