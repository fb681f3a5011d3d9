#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/convert/convert_options.h"
#include "cli/convert/convert_parts.h"
#include "cli/frame/request_options.h"
#include "model/convert/prune_conversion.h"

namespace kvcast::cli {
namespace {

struct PruneOptions {
  ConvertOptions common;
  std::string keep;
};

ordered_json prune_json(const PruneOptions& o, const ConversionReport& r) {
  return report_json(o.common, r,
                     {{"kept_layers", r.after.pruning.kept},
                      {"num_hidden_layers", r.after.num_hidden_layers()},
                      {"num_hidden_layers_before", r.before.num_hidden_layers()}});
}

std::string prune_text(const ConversionReport& r) {
  return changes_text({changed("layers", r.before.num_hidden_layers(), r.after.num_hidden_layers()),
                       changed("parameters", r.parameters_before, r.parameters_after)},
                      r.kv_cache_ratio) +
         fmt::format("kept layers: {}\n", fmt::join(r.after.pruning.kept, ", "));
}

void convert_prune(const PruneOptions& o, const Globals& globals) {
  const Checkpoint checkpoint(o.common.in);
  PruneConversion conversion;
  conversion.kept = parse_flag("--keep", o.keep, [&](const std::string& text) {
    return parse_kept_layers(text, checkpoint.architecture().num_hidden_layers());
  });
  conversion.dtype = parse_flag("--dtype", o.common.dtype, parse_dtype);
  const ConversionReport report = with_progress(globals, [&](auto progress) {
    return convert_to_pruned(checkpoint, o.common.out, conversion, progress);
  });
  say_copied(globals, o.common, report);
  print_result(o.common.json, prune_json(o, report), prune_text(report));
}

}  // namespace

void add_convert_prune(Command convert, const Globals& globals) {
  Command c = convert.add_subcommand(
      "prune",
      "Prune layers of a decoder-only model (KV Prediction's \"LP\" auxiliaries).\n\n"
      "Examples:\n"
      "  kvcast convert prune tests/oracle/openelm openelm-lp --keep 0.5\n"
      "  kvcast convert prune weights/smollm2-135m-instruct.gguf smollm2-short --keep 0,1,2,28,29");
  c.footer("The pruned model needs further training, as in the paper: kvcast train.");
  const auto o = std::make_shared<PruneOptions>();
  add_convert_options(c, o->common);
  c.add("--keep F|LIST", o->keep,
        "share of the layers: 0.75, 0.5 or 0.25 (the paper's Table 4); or layer indices, such as "
        "0,1,5 (0 and 1 are indices, 1.0 is a share)")
      .required();
  c.callback([o, &globals] { convert_prune(*o, globals); });
}

}  // namespace kvcast::cli
