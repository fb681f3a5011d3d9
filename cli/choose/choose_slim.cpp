#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/choose/choose_parts.h"
#include "cli/choose/ranking.h"
#include "cli/frame/request_options.h"
#include "search/slim_choice.h"

namespace kvcast::cli {
namespace {

using search::PaysOff;
using search::SlimCandidate;

struct ChooseSlimOptions {
  RequestOptions request;
  RowsOutput output;
};

ordered_json range_json(const PaysOff& range) {
  return {{"from", range.from}, {"to", or_null(range.to)}};
}

ordered_json first_json(const std::vector<PaysOff>& ranges) {
  return ranges.empty() ? ordered_json() : range_json(ranges.front());
}

ordered_json slim_candidate_json(const SlimCandidate& c) {
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
    // The first range where the form is faster, then all: there may be several near break-even.
    j["break_even_batch"] = first_json(c.batches);
    j["break_even_context"] = first_json(c.contexts);
    j["faster_batches"] = rows_of(c.batches, range_json);
    j["faster_contexts"] = rows_of(c.contexts, range_json);
  }
  return j;
}

/// The first three ranges in words.
std::string in_ranges(const ordered_json& ranges) {
  constexpr std::size_t most_shown = 3;
  if (ranges.empty()) return "never";
  std::string text;
  for (std::size_t i = 0; i < std::min(ranges.size(), most_shown); ++i) {
    if (i > 0) text += ", ";
    text += ranges[i]["to"].is_null()
                ? fmt::format("from {}", ranges[i]["from"].dump())
                : fmt::format("{} to {}", ranges[i]["from"].dump(), ranges[i]["to"].dump());
  }
  if (ranges.size() > most_shown) text += fmt::format(", {} more", ranges.size() - most_shown);
  return text;
}

/// Two ranges, the second open: "1-15;40-".
std::string in_csv_ranges(const ordered_json& ranges) {
  std::string text;
  for (const ordered_json& r : ranges) {
    if (!text.empty()) text += ';';
    text += r["from"].dump() + "-" + (r["to"].is_null() ? "" : r["to"].dump());
  }
  return text;
}

std::string in_notes(const ordered_json& row) {
  std::string note = row["fits"].get<bool>() ? "" : "does not fit";
  if (!row.contains("shared_cache_on_chip")) return note;
  return note + (note.empty() ? "" : ", ") +
         (row["shared_cache_on_chip"].get<bool>() ? "shared cache on chip"
                                                  : "shared cache off chip");
}

/// A line for each note and the methods that it is of: the table has no room for them.
std::string notes_text(const ordered_json& rows) {
  std::map<std::string, std::vector<std::string>> methods;
  for (const ordered_json& row : rows) {
    if (row.contains("reason")) continue;
    const std::string note = in_notes(row);
    if (!note.empty()) methods[note].push_back(row["method"]);
  }
  std::string text;
  for (const auto& [note, of] : methods) text += fmt::format("{}: {}\n", note, fmt::join(of, ", "));
  return text;
}

/// Whether a candidate is still faster where the search ends.
bool has_open_end(const std::vector<SlimCandidate>& candidates) {
  const auto open = [](const PaysOff& r) { return !r.to; };
  return std::any_of(candidates.begin(), candidates.end(), [&](const SlimCandidate& c) {
    return std::any_of(c.batches.begin(), c.batches.end(), open) ||
           std::any_of(c.contexts.begin(), c.contexts.end(), open);
  });
}

void choose(const ChooseSlimOptions& o, const Globals& globals) {
  o.output.check();
  const Catalog catalog = globals.catalog();
  const roofline::Configuration configuration = parse_configuration(o.request, catalog);
  const roofline::DesignPoint point = parse_sizes(o.request, configuration.architecture);
  const std::vector<SlimCandidate> candidates = search::choose_slim(configuration, point);
  for (const std::string& line : roofline::context_warnings(configuration.architecture, point)) {
    globals.warn(line);
  }
  Ranking ranking;
  ranking.head = {{"model", configuration.architecture.name},
                  {"hardware", configuration.hardware.name},
                  {"batch", point.batch},
                  {"prompt_len", point.prompt_len},
                  {"output_len", point.output_len}};
  ranking.rows = rows_of(candidates, slim_candidate_json);
  ranking.table = {{"method", "method"},
                   {"TPOT", "tpot_s", in_seconds},
                   {"speed-up", "tpot_speedup", in("{:.3f}")},
                   {"faster at batch", "faster_batches", in_ranges},
                   {"faster at context", "faster_contexts", in_ranges},
                   {"TTFT", "ttft_s", in_seconds},
                   {"KV cache", "kv_cache_bytes", in_bytes},
                   {"memory", "peak_memory_bytes", in_bytes},
                   {"of plain", "kv_cache_ratio", in("{:.3g}")},
                   {"cross phase", "cross_phase_s",
                    [](const ordered_json& s) { return s > 0 ? in_seconds(s) : ""; }}};
  ranking.csv = columns_of({"method", "tpot_s", "tpot_speedup", "ttft_s", "cross_phase_s",
                            "kv_cache_bytes", "kv_cache_ratio", "peak_memory_bytes", "fits"});
  ranking.csv.insert(ranking.csv.end(), {{"break_even_batch", "/break_even_batch/from"},
                                         {"last_batch", "/break_even_batch/to"},
                                         {"break_even_context", "/break_even_context/from"},
                                         {"last_context", "/break_even_context/to"},
                                         {"faster_batches", "faster_batches", in_csv_ranges},
                                         {"faster_contexts", "faster_contexts", in_csv_ranges}});
  ranking.rejected = [](const ordered_json& row) { return row["method"].get<std::string>(); };
  if (has_open_end(candidates)) {
    ranking.note =
        fmt::format("\"from\": still faster where the search ends, batch {} and context {}\n",
                    search::most_batches, search::most_context);
  }
  ranking.note += notes_text(ranking.rows);
  print_ranking(ranking, o.output);
}

}  // namespace

void add_choose_slim(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "slim",
      "Choose the form of Slim attention that decodes fastest, and find the batch and context from "
      "which it pays off.\n\nExamples:\n"
      "  kvcast choose slim --model whisper-large-v3 --hardware h100-sxm --prompt-len 1500 "
      "--output-len 448\n"
      "  kvcast choose slim --model codellama-7b --hardware a100-80gb --batch 4 --prompt-len 16k");
  c.footer(
      "Encoder states shared by all layers are read once per decode step if they fit the device's "
      "on-chip memory.");
  const auto o = std::make_shared<ChooseSlimOptions>();
  o->request.add_choice_flags_to(c);
  c.add("--prompt-len", o->request.prompt_len, "prompt tokens; encoder-decoder: encoder length");
  c.add("--output-len", o->request.output_len);
  o->output.add_to(c);
  c.callback([o, &globals] {
    o->request.use_this_machine(globals);
    choose(*o, globals);
  });
}

}  // namespace kvcast::cli
