#include "cli/choose/choose_slim.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/frame/csv_output.h"
#include "cli/frame/request_options.h"
#include "model/base/quantity.h"
#include "model/io/files/csv_writer.h"
#include "search/slim_choice.h"

namespace kvcast::cli {
namespace {

using nlohmann::ordered_json;
using search::PaysOff;
using search::SlimCandidate;

struct Options {
  RequestOptions request;
  std::string csv;
  bool json = false;
};

ordered_json range_json(const PaysOff& range) {
  ordered_json to = nullptr;
  if (range.to) to = *range.to;
  return {{"from", range.from}, {"to", to}};
}

ordered_json all_json(const std::vector<PaysOff>& ranges) {
  ordered_json all = ordered_json::array();
  for (const PaysOff& range : ranges) all.push_back(range_json(range));
  return all;
}

ordered_json first_json(const std::vector<PaysOff>& ranges) {
  return ranges.empty() ? ordered_json() : range_json(ranges.front());
}

ordered_json candidate_json(const SlimCandidate& c) {
  if (!c.rejected.empty()) return {{"method", c.method}, {"reason", c.rejected}};
  ordered_json j{{"method", c.method},
                 {"tpot_s", c.tpot_s},
                 {"tpot_speedup", c.tpot_speedup},
                 {"ttft_s", c.ttft_s},
                 {"cross_phase_s", c.cross_phase_s},
                 {"kv_cache_bytes", c.kv_cache_bytes},
                 {"kv_cache_ratio", c.kv_cache_ratio},
                 {"peak_memory_bytes", c.peak_memory_bytes},
                 {"fits", c.fits}};
  if (c.shared_cache_on_chip) j["shared_cache_on_chip"] = *c.shared_cache_on_chip;
  if (c.method != "plain") {
    // Where it pays off first, and all stretches: near the break-even there may be several.
    j["break_even_batch"] = first_json(c.batches);
    j["break_even_context"] = first_json(c.contexts);
    j["faster_batches"] = all_json(c.batches);
    j["faster_contexts"] = all_json(c.contexts);
  }
  return j;
}

std::string ranges_text(const SlimCandidate& c, const std::vector<PaysOff>& ranges) {
  constexpr std::size_t most_shown = 3;
  if (c.method == "plain") return "";
  if (ranges.empty()) return "never";
  std::string text;
  for (std::size_t i = 0; i < std::min(ranges.size(), most_shown); ++i) {
    if (i > 0) text += ", ";
    text += ranges[i].to ? fmt::format("{} to {}", ranges[i].from, *ranges[i].to)
                         : fmt::format("from {}", ranges[i].from);
  }
  if (ranges.size() > most_shown) text += fmt::format(", {} more", ranges.size() - most_shown);
  return text;
}

/// "1-15;40-" of two stretches, the second without an end.
std::string ranges_cell(const std::vector<PaysOff>& ranges) {
  std::string text;
  for (const PaysOff& r : ranges) {
    if (!text.empty()) text += ';';
    text += fmt::format("{}-{}", r.from, r.to ? std::to_string(*r.to) : "");
  }
  return text;
}

std::string table_text(const std::vector<SlimCandidate>& candidates) {
  Table table({"rank", "method", "a token", "speed-up", "TTFT", "cross phase", "KV cache", "of all",
               "memory", "faster at batch", "faster at context", ""});
  std::string rejected;
  std::uint64_t rank = 0;
  for (const SlimCandidate& c : candidates) {
    if (!c.rejected.empty()) {
      rejected += "rejected: " + c.method + ": " + c.rejected + "\n";
      continue;
    }
    std::string note = c.fits ? "" : "does not fit";
    if (c.shared_cache_on_chip) {
      note += std::string(note.empty() ? "" : ", ") +
              (*c.shared_cache_on_chip ? "shared cache on chip" : "shared cache off chip");
    }
    table.add({std::to_string(++rank), c.method, format_quantity(c.tpot_s, Dimension::Seconds),
               fmt::format("{:.3f}", c.tpot_speedup), format_quantity(c.ttft_s, Dimension::Seconds),
               c.cross_phase_s > 0 ? format_quantity(c.cross_phase_s, Dimension::Seconds) : "",
               format_quantity(c.kv_cache_bytes, Dimension::Bytes),
               fmt::format("{:.3g}", c.kv_cache_ratio),
               format_quantity(c.peak_memory_bytes, Dimension::Bytes), ranges_text(c, c.batches),
               ranges_text(c, c.contexts), note});
  }
  const auto is_open = [](const SlimCandidate& c) {
    const auto open = [](const PaysOff& r) { return !r.to; };
    return std::any_of(c.batches.begin(), c.batches.end(), open) ||
           std::any_of(c.contexts.begin(), c.contexts.end(), open);
  };
  std::string end;
  if (std::any_of(candidates.begin(), candidates.end(), is_open)) {
    end = fmt::format("\"from\": to the end of the search, batch {} and context {}\n",
                      search::most_batches, search::most_context);
  }
  return table.text() + rejected + end;
}

void write_csv(const std::string& path, const std::vector<SlimCandidate>& candidates) {
  CsvWriter csv(
      csv_target(path),
      {"rank", "method", "tpot_s", "tpot_speedup", "ttft_s", "cross_phase_s", "kv_cache_bytes",
       "kv_cache_ratio", "peak_memory_bytes", "fits", "break_even_batch", "last_batch",
       "break_even_context", "last_context", "faster_batches", "faster_contexts", "rejected"});
  std::uint64_t rank = 0;
  for (const SlimCandidate& c : candidates) {
    if (c.rejected.empty()) {
      csv.cell(++rank);
    } else {
      csv.missing_cell();
    }
    csv.cell(c.method);
    if (c.rejected.empty()) {
      csv.cell(c.tpot_s).cell(c.tpot_speedup).cell(c.ttft_s).cell(c.cross_phase_s);
      csv.cell(c.kv_cache_bytes).cell(c.kv_cache_ratio).cell(c.peak_memory_bytes);
      csv.cell(c.fits ? "true" : "false");
    } else {
      for (int i = 0; i < 8; ++i) csv.missing_cell();
    }
    for (const auto* ranges : {&c.batches, &c.contexts}) {
      if (!ranges->empty()) {
        csv.cell(ranges->front().from);
      } else {
        csv.missing_cell();
      }
      if (!ranges->empty() && ranges->front().to) {
        csv.cell(*ranges->front().to);
      } else {
        csv.missing_cell();
      }
    }
    csv.cell(ranges_cell(c.batches)).cell(ranges_cell(c.contexts));
    csv.cell(c.rejected);
    csv.end_row();
  }
  csv.commit();
}

void choose(const Options& o, const Globals& globals) {
  check_rows_alone(o.csv, {{"--json", o.json}});
  const Catalog catalog = globals.catalog();
  const roofline::Configuration configuration = parse_configuration(o.request, catalog);
  const roofline::DesignPoint point = parse_sizes(o.request, configuration.architecture);
  const std::vector<SlimCandidate> candidates = search::choose_slim(configuration, point);
  for (const std::string& line : roofline::context_warnings(configuration.architecture, point)) {
    globals.warn(line);
  }
  if (!o.csv.empty()) write_csv(o.csv, candidates);
  if (o.csv == "-") return;
  if (!o.json) {
    print_text(table_text(candidates));
    return;
  }
  ordered_json rows = ordered_json::array();
  ordered_json rejected = ordered_json::array();
  for (const SlimCandidate& c : candidates) {
    (c.rejected.empty() ? rows : rejected).push_back(candidate_json(c));
  }
  print_json({{"model", configuration.architecture.name},
              {"hardware", configuration.hardware.name},
              {"batch", point.batch},
              {"prompt_len", point.prompt_len},
              {"output_len", point.output_len},
              {"rows", rows},
              {"rejected", rejected}});
}

}  // namespace

void add_choose_slim(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "slim",
      "Which form of Slim attention decodes fastest, and from which batch and context on it pays "
      "off.\n\nExamples:\n"
      "  kvcast choose slim --model whisper-large-v3 --hardware h100-sxm --prompt-len 1500 "
      "--output-len 448\n"
      "  kvcast choose slim --model codellama-7b --hardware a100-80gb --batch 4 --prompt-len 16k");
  c.footer(
      "An encoder's states that all layers share count as read once a step where they fit the "
      "device's on-chip memory.");
  const auto o = std::make_shared<Options>();
  o->request.add_choice_flags_to(c);
  c.add("--prompt-len", o->request.prompt_len, "prompt tokens; encoder-decoder: encoder length");
  c.add("--output-len", o->request.output_len);
  c.add("--csv", o->csv);
  c.add("--json", o->json);
  c.callback([o, &globals] { choose(*o, globals); });
}

}  // namespace kvcast::cli
