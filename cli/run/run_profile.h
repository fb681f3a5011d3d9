/// Where a run's time went, operator class by operator class, beside the roofline's prediction, and
/// how much it computed.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "model/execute/generate.h"
#include "roofline/hardware.h"

namespace kvcast::cli {

/// This machine as a device without factors: what it reads and multiplies at most, measured now.
roofline::Hardware measured_machine();

/// Rows of a run's operators by pass and time, helper passes first, then prefill. `prompt_len` and
/// `batch` are as the run had them. Of a rank: its share of the prefill, with messages, which are
/// waited for and not predicted.
nlohmann::ordered_json profile_json(const execute::Session& session,
                                    const execute::SessionOptions& options,
                                    const execute::Generation& run, std::uint64_t batch,
                                    std::uint64_t prompt_len, const roofline::Hardware& hardware);
/// The matrices that loading packed for products, by the type that they are kept in.
nlohmann::ordered_json packed_json(const execute::WeightStore& weights);
/// "packed for products: 180 matrices in q4_1 (60.3 MB), 1 in q8_0 (30.1 MB)"
std::string packed_text(const nlohmann::ordered_json& packed);
/// FLOPs and bytes as the graphs say and as plain loops counted them.
std::string count_text(std::uint64_t analytic_flops, std::uint64_t analytic_bytes,
                       const execute::CountedWork& counted);
/// Of the prefill and the decode steps.
std::string profile_text(const nlohmann::ordered_json& rows);

}  // namespace kvcast::cli
