#include "measure/measured_rows.h"

#include "model/base/error.h"
#include "model/io/files/sweep_file.h"

namespace kvcast::measure {
namespace {

struct Stopped {};

}  // namespace

void MeasuredRowsOptions::check_stop() const {
  if (stop != nullptr && *stop) throw Stopped();
}

MeasuredRows measure_rows(const MeasuredRowsOptions& options, std::string_view header,
                          const std::string& fingerprint, std::uint64_t num_rows,
                          const std::function<std::string(std::uint64_t)>& row) {
  SweepFile file(options.csv, {std::string(header), fingerprint, 0, num_rows}, options.restart);
  MeasuredRows result;
  result.num_rows = num_rows;
  result.rows_resumed = result.rows_written = file.rows_found();
  result.file = file.can_resume() ? file.partial() : options.csv;
  try {
    for (std::uint64_t i = file.rows_found(); i < num_rows; ++i) {
      if (options.on_progress) options.on_progress(i, result.rows_resumed, num_rows);
      options.check_stop();
      file.append(row(i));
      file.sync();
      result.rows_written = i + 1;
    }
  } catch (const Stopped&) {
    result.stopped = true;
    return result;
  } catch (const Error&) {
    if (result.rows_written == 0) file.discard();
    throw;
  }
  file.finish();
  result.file = options.csv;
  return result;
}

}  // namespace kvcast::measure
