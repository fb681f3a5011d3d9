/// What every conversion takes and shows.
#pragma once

#include <cstdint>
#include <string>

#include "cli/frame/command.h"
#include "cli/frame/progress_bar.h"
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
  c.add("--dtype", o.dtype, "of the weights written; computed in fp64");
  c.add("--json", o.json);
}

inline void add_convert_options(Command c, ConvertOptions& o) {
  c.add("IN", o.in, "a folder with config.json and safetensors, or a GGUF file").required();
  c.add("OUT", o.out, "the new folder: config.json, model.safetensors, the tokenizer's files")
      .required();
  add_convert_output_options(c, o);
}

/// Draws how far a conversion is.
class ConvertProgress {
 public:
  explicit ConvertProgress(bool quiet) : bar_(quiet) {}
  void operator()(std::uint64_t done, std::uint64_t all) {
    bar_.draw(done, 0, all, watch_.seconds());
  }

 private:
  ProgressBar bar_;
  Stopwatch watch_;
};

/// Says so when there was no tokenizer to take along.
inline void say_copied(const Globals& globals, const ConvertOptions& o,
                       const ConversionReport& report) {
  if (!report.copied_files.empty()) return;
  globals.say(o.in + " holds no tokenizer files to copy; run takes --tokens");
}

}  // namespace kvcast::cli
