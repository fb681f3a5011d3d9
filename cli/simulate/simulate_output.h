/// What `kvcast simulate` prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "roofline/estimator.h"
#include "search/partition_search.h"
#include "search/runahead.h"
#include "simulate/layer_times.h"
#include "simulate/noise.h"
#include "simulate/scenario.h"

namespace kvcast::cli {

/// What the product form knows beside its scenario.
struct SimulatedModel {
  roofline::Configuration configuration;
  std::uint64_t prompt_len = 0;
  search::PrefillBounds bounds;
  std::optional<search::PartitionFound> found = {};  ///< when the partition was searched
};

struct SimulatedRun {
  simulate::Scenario scenario;
  simulate::Programs programs;  ///< what is played of it
  std::string platform;         ///< in words
  std::optional<SimulatedModel> model;
};

/// "kvr of llama-7b on 4 x a100-80gb, ..."
std::string title_of(const SimulatedRun& run);

nlohmann::ordered_json run_json(const SimulatedRun& run, const simulate::RunResult& result,
                                std::optional<double> sensitivity);
std::string run_text(const SimulatedRun& run, const simulate::RunResult& result);

nlohmann::ordered_json noise_json(const simulate::NoiseSpec& spec,
                                  const simulate::NoiseResult& noise);
std::string noise_text(const simulate::NoiseSpec& spec, const simulate::NoiseResult& noise);

}  // namespace kvcast::cli
