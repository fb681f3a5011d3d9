/// Where a run's time went, operator class by operator class, beside the roofline's prediction.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/execute/generate.h"
#include "roofline/hardware.h"

namespace kvcast::cli {

struct ProfileRow {
  std::string pass;  ///< "prefill", "decode", or the name of a helper pass
  std::string op;
  std::uint64_t count = 0;  ///< operators run
  double flops = 0;
  double bytes = 0;
  double measured_s = 0;
  double predicted_s = 0;
  bool message = false;  ///< waited for, not predicted
};

/// This machine as a device without factors: what it reads and multiplies at most, measured now.
roofline::Hardware measured_machine();

/// Rows by time, helper passes first, then prefill. `prompt_len` and `batch` as the run had them;
/// of a rank, its share of the prefill, with messages, which are waited for and not predicted.
std::vector<ProfileRow> profile_rows(const execute::Session& session,
                                     const execute::SessionOptions& options,
                                     const execute::Generation& run, std::uint64_t batch,
                                     std::uint64_t prompt_len, std::uint64_t first_kv_len,
                                     const roofline::Hardware& hardware);

nlohmann::ordered_json profile_json(const std::vector<ProfileRow>& rows);
std::string profile_text(const std::vector<ProfileRow>& rows);

}  // namespace kvcast::cli
