/// What every conversion takes and shows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "cli/frame/progress_bar.h"
#include "cli/frame/result.h"
#include "model/base/stopwatch.h"
#include "model/convert/conversion_source.h"

namespace kvcast::cli {

struct ConvertOptions {
  std::string in;
  std::string out;
  std::string dtype = "fp32";
  bool json = false;
};

inline void add_convert_output_options(Command c, ConvertOptions& o) {
  c.add("--dtype", o.dtype, "dtype of the written weights (computed in fp64)");
  c.add("--json", o.json);
}

inline void add_convert_options(Command c, ConvertOptions& o) {
  c.add("IN", o.in, "a folder with config.json and safetensors, or a GGUF file").required();
  c.add("OUT", o.out, "the new folder: config.json, model.safetensors, the tokenizer's files")
      .required();
  add_convert_output_options(c, o);
}

/// The command's work, with a progress bar: convert(on_progress).
template <typename Convert>
auto with_progress(const Globals& globals, const Convert& convert) {
  ProgressBar bar(globals.quiet);
  const Stopwatch watch;
  return convert(
      [&](std::uint64_t done, std::uint64_t all) { bar.draw(done, 0, all, watch.seconds()); });
}

/// The keys of every checkpoint that is converted, around the conversion's own.
inline ordered_json report_json(const ConvertOptions& o, const ConversionReport& r,
                                const ordered_json& own) {
  ordered_json j{{"model", r.before.name}, {"output", o.out}};
  j.update(own);
  j.update({{"parameters_before", r.parameters_before},
            {"parameters_after", r.parameters_after},
            {"kv_cache_ratio", r.kv_cache_ratio},
            {"dtype", o.dtype},
            {"copied_files", r.copied_files}});
  return j;
}

/// A row of a table of what a conversion changed.
inline ordered_json changed(const std::string& what, std::uint64_t before, std::uint64_t after) {
  return {{"what", what}, {"before", before}, {"after", after}};
}
/// With the ratio of the KV cache below.
inline std::string changes_text(ordered_json rows, double kv_cache_ratio) {
  rows.push_back(
      {{"what", "KV cache"}, {"before", 1}, {"after", fmt::format("{:.4g}", kv_cache_ratio)}});
  return table_text({{"", "what"}, {"before", "before"}, {"after", "after"}}, rows);
}

/// Tells the user when there was no tokenizer to copy.
inline void say_copied(const Globals& globals, const ConvertOptions& o,
                       const ConversionReport& report) {
  if (!report.copied_files.empty()) return;
  globals.say(o.in + " has no tokenizer files to copy; run the new model with --tokens");
}

}  // namespace kvcast::cli
