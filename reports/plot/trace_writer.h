/// Chrome trace JSON, for Perfetto (ui.perfetto.dev) and chrome://tracing.
///
/// Format: "Trace Event Format", Google, 2016; times are in microseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "model/io/files/atomic_file.h"

namespace kvcast::reports {

inline constexpr double ticks_per_second = 1e6;

/// As a JSON string.
inline std::string quoted(const std::string& text) { return json_text(nlohmann::json(text)); }

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

inline void name_process(TraceWriter& trace, std::uint32_t process, const std::string& name) {
  trace.event(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})", process,
              quoted(name));
  trace.event(R"({{"ph":"M","name":"process_sort_index","pid":{0},"args":{{"sort_index":{0}}}}})",
              process);
}

inline void name_thread(TraceWriter& trace, std::uint32_t process, std::uint32_t thread,
                        const char* name) {
  trace.event(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
              process, thread, name);
}

}  // namespace kvcast::reports
