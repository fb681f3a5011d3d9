/// The order in which the devices of a pipeline train, and its time, played pass by pass.
///
/// One forward, one backward: a device runs as many forward passes ahead as devices follow it, then
/// forward and backward passes in turn. With several chunks a device, micro-batches go round the
/// devices once for each chunk, in groups of as many as there are devices, which shortens the wait
/// at both ends. Source: Narayanan et al. 2021 (arXiv:2104.04473), section 2.2; Megatron-LM,
/// megatron/core/pipeline_parallel/schedules.py.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace kvcast::roofline {

/// Layers are cut into devices · chunks parts; part k lies on device k mod devices.
struct PipelineShape {
  std::uint64_t devices = 1;
  std::uint64_t chunks = 1;  ///< of each device
  std::uint64_t micro_batches = 1;

  std::uint64_t parts() const { return devices * chunks; }
  bool operator==(const PipelineShape&) const = default;
};

/// One way of a micro-batch through a part.
struct PartPass {
  bool is_forward = true;
  std::uint64_t part = 0;
  std::uint64_t micro_batch = 0;
  bool operator==(const PartPass&) const = default;
};

/// What a device does, in this order. Throws Error where several chunks get micro-batches that are
/// no multiple of the devices.
std::vector<PartPass> passes_of(const PipelineShape& shape, std::uint64_t device);

/// When each device has done its last pass, seconds. A pass begins when its device is free and what
/// it reads has come: `seconds` of a pass on its device, `hop` of what the part before or after it
/// sends. Messages wait for no other.
std::vector<double> play(const PipelineShape& shape,
                         const std::function<double(const PartPass&)>& seconds,
                         const std::function<double(const PartPass&)>& hop);

}  // namespace kvcast::roofline
