/// `kvcast simulate prefill --tp N --pp N --ep N --dp N`, with `--method kvr:p=P` too: a model
/// spread over devices.
#pragma once

#include <optional>
#include <string>

#include "cli/frame/command.h"
#include "cli/frame/request_options.h"
#include "simulate/noise.h"

namespace kvcast::cli {

struct DeviceRunOutput {
  std::optional<simulate::NoiseSpec> noise;
  std::string trace;
  std::string plot;
  bool json = false;
};

/// Plays the prefill, and the steps after the first token, on the platform's links and prints them
/// beside the closed form.
void simulate_devices(const RequestOptions& request, const DeviceRunOutput& output,
                      const Globals& globals);

}  // namespace kvcast::cli
