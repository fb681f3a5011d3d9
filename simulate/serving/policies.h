/// The schedulers behind make_scheduler(), each in a file of its own.
#pragma once

#include <memory>

#include "simulate/serving/scheduler.h"

namespace kvcast::simulate {

std::unique_ptr<Scheduler> make_vllm_v1(const SchedulerSettings& settings);
std::unique_ptr<Scheduler> make_vllm_v0(const SchedulerSettings& settings);
std::unique_ptr<Scheduler> make_sarathi(const SchedulerSettings& settings);
/// Orca and static batches.
std::unique_ptr<Scheduler> make_reserving(const SchedulerSettings& settings);
std::unique_ptr<Scheduler> make_tensorrt_llm(const SchedulerSettings& settings);
std::unique_ptr<Scheduler> make_sglang(const SchedulerSettings& settings);

}  // namespace kvcast::simulate
