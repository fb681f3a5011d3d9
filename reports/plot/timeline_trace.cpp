#include "reports/plot/timeline_trace.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "model/io/files/atomic_file.h"

namespace kvcast::reports {
namespace {

using simulate::Interval;
using simulate::IntervalKind;

// Format: "Trace Event Format", Google, 2016; times are in microseconds.
constexpr double ticks_per_second = 1e6;
constexpr std::uint32_t compute_thread = 1;
constexpr std::uint32_t wait_thread = 2;

std::string quoted(const std::string& text) { return json_text(nlohmann::json(text)); }

/// Events are appended to a text that goes to the file when it is long.
class TraceWriter {
 public:
  explicit TraceWriter(const std::filesystem::path& path) : file_(path) {
    text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  }
  template <typename... Arguments>
  void event(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    text_ += separator_;
    separator_ = ",\n";
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
    constexpr std::size_t chunk = 1 << 20;
    if (text_.size() < chunk) return;
    file_.write(text_);
    text_.clear();
  }
  void commit() {
    text_ += "\n]}\n";
    file_.write(text_);
    file_.commit();
  }

 private:
  AtomicFile file_;
  std::string text_;
  const char* separator_ = "";
};

void name_process(TraceWriter& trace, std::uint32_t process, const std::string& name) {
  trace.event(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})", process,
              quoted(name));
  trace.event(R"({{"ph":"M","name":"process_sort_index","pid":{0},"args":{{"sort_index":{0}}}}})",
              process);
}

void name_thread(TraceWriter& trace, std::uint32_t process, std::uint32_t thread,
                 const char* name) {
  trace.event(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
              process, thread, name);
}

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
