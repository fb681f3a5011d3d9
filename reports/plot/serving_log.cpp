#include "reports/plot/serving_log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "model/base/error.h"
#include "model/base/interrupt.h"
#include "model/io/files/atomic_file.h"
#include "reports/plot/trace_writer.h"

namespace kvcast::reports {
namespace {

/// Of points that a plot can show apart: the first, the last, and those that change most between.
constexpr std::size_t most_points = 2000;

double per_token(double seconds, std::uint64_t tokens) {
  return tokens > 1 ? seconds / static_cast<double>(tokens - 1) : 0;
}

/// Shares of the values that are not above each.
Series cumulative(const std::string& label, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Series series{label};
  const std::size_t n = values.size();
  const std::size_t stride = std::max<std::size_t>(1, n / most_points);
  for (std::size_t i = 0; i < n; i += stride) {
    series.points.push_back({values[i], static_cast<double>(i + 1) / static_cast<double>(n)});
  }
  if (n > 0) series.points.push_back({values[n - 1], 1});
  return series;
}

}  // namespace

RequestRows::RequestRows(const std::filesystem::path& path) : path_(path.string()) {
  check_writable(path);
  add("request,arrival_s,prompt_tokens,output_tokens,scheduled_s,first_token_s,finish_s,ttft_s,"
      "tpot_s,e2e_s,hit_tokens,preemptions,rejected");
}

RequestRows::~RequestRows() {
  // After an error the file is as it was, unless rows are in it.
  if (descriptor_ < 0 && !interrupt_wanted) return;
  try {
    flush();
  } catch (const Error&) {  // said by who asked for it
  }
  if (descriptor_ >= 0) ::close(descriptor_);
}

void RequestRows::finished(const simulate::Sequence& s) {
  const simulate::ServingRequest& r = s.request;
  add(fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},", r.id, r.arrival_s, r.prompt_tokens,
                  r.output_tokens, s.scheduled_s.value_or(s.first_token_s), s.first_token_s,
                  s.last_token_s, s.first_token_s - r.arrival_s,
                  per_token(s.last_token_s - s.first_token_s, r.output_tokens),
                  s.last_token_s - r.arrival_s, s.hit_tokens, s.preemptions));
}

void RequestRows::rejected(const simulate::ServingRequest& r, const std::string& reason) {
  std::string quoted = reason;
  std::replace(quoted.begin(), quoted.end(), '"', '\'');
  add(fmt::format("{},{},{},{},,,,,,,,,\"{}\"", r.id, r.arrival_s, r.prompt_tokens, r.output_tokens,
                  quoted));
}

void RequestRows::add(const std::string& row) {
  constexpr std::size_t block = 1 << 16;
  text_ += row;
  text_ += '\n';
  if (text_.size() >= block) flush();
}

void RequestRows::flush() {
  if (descriptor_ < 0) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor_ < 0) throw Error(path_ + ": " + std::strerror(errno), Fault::Run);
  }
  const std::string text = std::exchange(text_, {});
  if (!write_all(descriptor_, text)) throw Error(path_ + ": " + std::strerror(errno), Fault::Run);
}

void ServingLog::step(const simulate::ServedStep& step) {
  ServingSample s;
  s.time_s = step.start_s;
  s.seconds = step.seconds;
  s.server = static_cast<std::uint32_t>(step.server);
  s.row = static_cast<std::uint32_t>(step.row);
  s.waiting = static_cast<std::uint32_t>(step.scheduler->num_waiting());
  s.running = static_cast<std::uint32_t>(step.scheduler->num_running());
  for (const simulate::ScheduledPart& part : step.parts) {
    ++(part.decodes ? s.decodes : s.prompts);
    if (!part.decodes) s.prompt_tokens += part.tokens;
  }
  const simulate::BlockPool& pool = step.scheduler->pool();
  s.blocks = 1 - static_cast<double>(pool.num_free()) / static_cast<double>(pool.size());
  samples_.push_back(s);
}

void ServingLog::finished(const simulate::Sequence& s) {
  requests_.push_back({s.request.id, s.request.arrival_s, s.first_token_s, s.last_token_s,
                       s.request.prompt_tokens, s.request.output_tokens});
}

void ServingLog::write_trace(const std::filesystem::path& path) const {
  TraceWriter trace(path);
  std::uint32_t servers = 0;
  std::uint32_t rows = 0;
  for (const ServingSample& s : samples_) {
    servers = std::max(servers, s.server + 1);
    rows = std::max(rows, s.row + 1);
  }
  for (std::uint32_t server = 0; server < servers; ++server) {
    name_process(trace, server, fmt::format("server {}", server));
    for (std::uint32_t row = 0; row < rows; ++row) {
      name_thread(trace, server, row + 1, fmt::format("steps {}", row).c_str());
    }
  }
  const std::uint32_t requests = servers;
  name_process(trace, requests, "requests");
  const auto ticks = [](double seconds) { return seconds * ticks_per_second; };
  for (const ServingSample& s : samples_) {
    const char* name = s.prompts == 0 ? "decode" : s.decodes == 0 ? "prompt" : "prompt and decode";
    trace.event(R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{)"
                R"("prompts":{},"prompt_tokens":{},"decode_steps":{},"waiting":{}}}}})",
                name, s.server, s.row + 1, ticks(s.time_s), ticks(s.seconds), s.prompts,
                s.prompt_tokens, s.decodes, s.waiting);
    trace.event(R"({{"ph":"C","name":"requests","pid":{},"ts":{:.3f},"args":{{"running":{},)"
                R"("waiting":{}}}}})",
                s.server, ticks(s.time_s), s.running, s.waiting);
    trace.event(R"({{"ph":"C","name":"cache","pid":{},"ts":{:.3f},"args":{{"percent":{:.2f}}}}})",
                s.server, ticks(s.time_s), 100 * s.blocks);
  }
  for (const Request& r : requests_) {
    const auto slice = [&](const char* name, double begin_s, double end_s) {
      trace.event(R"({{"ph":"b","cat":"request","id":{0},"name":"{1}","pid":{2},"ts":{3:.3f},)"
                  R"("args":{{"request":{0},"prompt_tokens":{4},"output_tokens":{5}}}}})",
                  r.id, name, requests, ticks(begin_s), r.prompt_tokens, r.output_tokens);
      trace.event(R"({{"ph":"e","cat":"request","id":{},"name":"{}","pid":{},"ts":{:.3f}}})", r.id,
                  name, requests, ticks(end_s));
    };
    slice("to the first token", r.arrival_s, r.first_token_s);
    if (r.finish_s > r.first_token_s) slice("later tokens", r.first_token_s, r.finish_s);
  }
  trace.commit();
}

Plot ServingLog::occupancy_plot(const std::string& title) const {
  Plot plot;
  plot.title = title;
  plot.x = {.label = "time (s)", .column = "time_s"};
  plot.y = {.label = "requests; % of the cache's blocks", .column = "value"};
  Series running{"running"};
  Series waiting{"waiting"};
  Series blocks{"blocks held (%)", {}, Style::Dashed};
  // Of steps between two points the one with most is drawn, so that no peak is lost.
  const std::size_t stride = std::max<std::size_t>(1, samples_.size() / most_points);
  for (std::size_t i = 0; i < samples_.size(); i += stride) {
    const std::size_t end = std::min(samples_.size(), i + stride);
    ServingSample most = samples_[i];
    for (std::size_t j = i; j < end; ++j) {
      most.running = std::max(most.running, samples_[j].running);
      most.waiting = std::max(most.waiting, samples_[j].waiting);
      most.blocks = std::max(most.blocks, samples_[j].blocks);
    }
    running.points.push_back({most.time_s, static_cast<double>(most.running)});
    waiting.points.push_back({most.time_s, static_cast<double>(most.waiting)});
    blocks.points.push_back({most.time_s, 100 * most.blocks});
  }
  plot.series = {std::move(running), std::move(waiting), std::move(blocks)};
  return plot;
}

Plot ServingLog::latency_plot(const std::string& title) const {
  Plot plot;
  plot.title = title;
  plot.x = {.label = "seconds", .column = "seconds", .scale = Scale::Log10};
  plot.y = {.label = "share of requests that take no longer", .column = "share"};
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::vector<double> e2e;
  for (const Request& r : requests_) {
    ttft.push_back(r.first_token_s - r.arrival_s);
    if (r.output_tokens > 1) {
      tpot.push_back(per_token(r.finish_s - r.first_token_s, r.output_tokens));
    }
    e2e.push_back(r.finish_s - r.arrival_s);
  }
  plot.series = {cumulative("TTFT", std::move(ttft)), cumulative("TPOT", std::move(tpot)),
                 cumulative("end to end", std::move(e2e))};
  std::erase_if(plot.series, [](const Series& s) { return s.points.empty(); });
  return plot;
}

}  // namespace kvcast::reports
