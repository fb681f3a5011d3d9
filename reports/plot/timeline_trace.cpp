#include "reports/plot/timeline_trace.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "reports/plot/trace_writer.h"

namespace kvcast::reports {
namespace {

using simulate::Interval;
using simulate::IntervalKind;

constexpr std::uint32_t compute_thread = 1;
constexpr std::uint32_t wait_thread = 2;

}  // namespace

void write_trace(const simulate::Simulation& simulation, const simulate::RunResult& result,
                 const std::filesystem::path& path) {
  const simulate::Platform& platform = simulation.platform();
  const std::uint32_t background = platform.num_devices();
  TraceWriter trace(path);
  for (std::uint32_t d = 0; d < platform.num_devices(); ++d) {
    name_process(trace, d, platform.device_name(d));
    name_thread(trace, d, compute_thread, "compute");
    name_thread(trace, d, wait_thread, "waiting");
  }
  name_process(trace, background, "background flows");
  std::size_t id = 0;
  for (const Interval& i : result.intervals) {
    const double begin = i.begin_s * ticks_per_second;
    const double duration = (i.end_s - i.begin_s) * ticks_per_second;
    if (i.kind == IntervalKind::Compute) {
      trace.event(R"({{"ph":"X","cat":"compute","name":{},"pid":{},"tid":{},"ts":{},"dur":{}}})",
                  quoted(simulation.labels()[i.detail]), i.rank, compute_thread, begin, duration);
      continue;
    }
    if (i.kind == IntervalKind::Wait) {
      const std::string what =
          i.peer == i.rank ? "wait for own messages" : "wait for " + platform.device_name(i.peer);
      trace.event(R"({{"ph":"X","cat":"waiting","name":{},"pid":{},"tid":{},"ts":{},"dur":{}}})",
                  quoted(what), i.rank, wait_thread, begin, duration);
      continue;
    }
    const bool own = i.kind == IntervalKind::Transfer;
    const std::string name =
        (own ? "to " : platform.device_name(i.rank) + " to ") + platform.device_name(i.peer);
    const std::string head = fmt::format(R"("cat":"transfer","name":{},"pid":{},"tid":0,"id":{})",
                                         quoted(name), own ? i.rank : background, ++id);
    trace.event(R"({{"ph":"b",{},"ts":{},"args":{{"bytes":{},"message":{}}}}})", head, begin,
                i.bytes, i.detail);
    trace.event(R"({{"ph":"e",{},"ts":{}}})", head, begin + duration);
  }
  trace.commit();
}

}  // namespace kvcast::reports
