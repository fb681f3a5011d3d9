#include "cli/frame/serving_output.h"

#include <charconv>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "cli/frame/command.h"
#include "model/base/error.h"
#include "model/base/quantity.h"

namespace kvcast::cli {
namespace {

using simulate::Latency;

/// Null where no request was finished; of outputs without a second token 0, as vllm bench says.
ordered_json latency_json(const Latency& l, const simulate::ServingTimes& t) {
  if (t.finished == 0) {
    const ordered_json none;
    return {{"mean", none}, {"p50", none}, {"p90", none}, {"p95", none}, {"p99", none}};
  }
  return {{"mean", l.mean}, {"p50", l.p50}, {"p90", l.p90}, {"p95", l.p95}, {"p99", l.p99}};
}

std::string in_s(double seconds) {
  return seconds == 0 ? "0 s" : format_quantity(seconds, Dimension::Seconds);
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return {};
  return value;
}

double limit(std::string_view text, const std::string& key) {
  const std::optional<double> plain = number(text);
  const double value = plain ? *plain : parse_quantity(text, Dimension::Seconds, "--slo: " + key);
  if (!(value > 0 && std::isfinite(value))) {
    throw Error("--slo: " + key, std::string(text), "a time above 0");
  }
  return value;
}

}  // namespace

ordered_json serving_json(const simulate::ServingTimes& t) {
  return {
      {"requests", t.requests},
      {"finished", t.finished},
      {"rejected", t.rejected},
      {"duration_s", t.duration_s},
      {"busy_s", t.busy_s},
      {"servers", t.servers},
      {"request_throughput", t.request_throughput},
      {"output_token_throughput", t.output_token_throughput},
      {"total_token_throughput",
       t.duration_s > 0 ? static_cast<double>(t.input_tokens + t.output_tokens) / t.duration_s : 0},
      {"ttft_s", latency_json(t.ttft_s, t)},
      {"tpot_s", latency_json(t.tpot_s, t)},
      {"itl_s", latency_json(t.itl_s, t)},
      {"e2e_s", latency_json(t.e2e_s, t)},
      {"queue_s", latency_json(t.queue_s, t)},
      {"goodput_requests_per_s", t.goodput_requests_per_s},
      {"slo_attainment", t.slo_attainment},
      {"mean_requests_in_system", t.mean_requests_in_system},
      {"preemptions", t.counts.preemptions},
      {"prefix_hit_rate", t.prefix_hit_rate()},
      {"prefill_tokens", t.counts.prefill_tokens},
      {"decode_tokens", t.counts.decode_tokens},
      {"hit_tokens", t.counts.hit_tokens},
      {"peak_kv_blocks", t.peak_kv_blocks},
      {"peak_running", t.counts.peak_running},
      {"steps", t.steps}};
}

std::string serving_text(const simulate::ServingTimes& t, const simulate::Slo& slo) {
  std::string text = fmt::format(
      "{} requests, {} finished, {} rejected in {}\n"
      "{:.4g} requests a second, {:.4g} output tokens a second\n"
      "{:.1f} requests in the system on average, at most {} running; {} preemptions\n"
      "{} steps, servers busy for {:.1f} % of the time; {:.1f} % of prompt tokens from the "
      "cache\n\n",
      t.requests, t.finished, t.rejected, in_s(t.duration_s), t.request_throughput,
      t.output_token_throughput, t.mean_requests_in_system, t.counts.peak_running,
      t.counts.preemptions, t.steps,
      t.duration_s > 0 ? 100 * t.busy_s / (t.duration_s * static_cast<double>(t.servers)) : 0,
      100 * t.prefix_hit_rate());
  Table table({"", "mean", "p50", "p90", "p95", "p99"});
  const auto row = [&](const char* name, const Latency& l) {
    if (l.values == 0) return table.add({name, "-", "-", "-", "-", "-"});
    table.add({name, in_s(l.mean), in_s(l.p50), in_s(l.p90), in_s(l.p95), in_s(l.p99)});
  };
  row("time to first token", t.ttft_s);
  row("time per output token", t.tpot_s);
  row("between tokens", t.itl_s);
  row("end to end", t.e2e_s);
  row("in the queue", t.queue_s);
  text += table.text();
  if (!slo.is_empty()) {
    text += fmt::format("\n{:.1f} % of the requests keep the objective: {:.4g} a second\n",
                        100 * t.slo_attainment, t.goodput_requests_per_s);
  }
  return text;
}

Objective parse_objective(const std::string& text, bool searches) {
  Objective o;
  std::set<std::string> given;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    const std::size_t equals = std::min(entry.find('='), entry.size());
    const std::string key(entry.substr(0, equals));
    const std::string_view value = entry.substr(std::min(entry.size(), equals + 1));
    if (!given.insert(key).second) throw Error("--slo", key + " given twice", "it once");
    if (key == "ttft") {
      o.slo.ttft_s = limit(value, key);
    } else if (key == "tpot") {
      o.slo.tpot_s = limit(value, key);
    } else if (key == "e2e") {
      o.slo.e2e_s = limit(value, key);
    } else if (key == "attainment") {
      const std::optional<double> share = number(value);
      if (!share || !(*share > 0 && *share <= 1)) {
        throw Error("--slo: attainment", std::string(value), "a share above 0 and up to 1");
      }
      o.attainment = *share;
    } else {
      throw Error(std::string("--slo: ") +
                  unknown_name("limit", key, {"ttft", "tpot", "e2e", "attainment"}).what());
    }
  }
  if (!text.empty() && o.slo.is_empty()) {
    throw Error("--slo", text, "ttft=S, tpot=S or e2e=S, what a request must keep");
  }
  if (!searches && given.contains("attainment")) {
    throw Error("--slo", fmt::format("attainment={:g}", o.attainment),
                "it with --find-max-rate or kvcast choose serving");
  }
  return o;
}

}  // namespace kvcast::cli
