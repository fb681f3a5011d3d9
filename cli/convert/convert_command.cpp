#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/convert/convert_options.h"
#include "cli/convert/convert_parts.h"
#include "cli/frame/request_options.h"
#include "cli/run/run_inputs.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/convert/mlkv_conversion.h"

namespace kvcast::cli {
namespace {

struct MlkvOptions {
  ConvertOptions common;
  std::string kv_layers;
  std::string kv_heads;
  std::string merge = "mean";
  std::string widen = "preserve";
};

std::string owned_layers(const MlkvReport& report) {
  std::vector<std::string> groups;
  for (const std::vector<std::size_t>& group : report.groups) {
    groups.push_back(group.size() == 1 ? std::to_string(group.front())
                                       : fmt::format("{}-{}", group.front(), group.back()));
  }
  return fmt::format("{}", fmt::join(groups, ", "));
}

ordered_json mlkv_json(const MlkvOptions& o, const MlkvReport& r) {
  const LayerShape& before = r.before.decoder.layers.front();
  const LayerShape& after = r.after.decoder.layers.front();
  ordered_json owners = ordered_json::array();
  for (const std::vector<std::size_t>& group : r.groups) owners.push_back(group.front());
  return report_json(o.common, r,
                     {{"kv_layers", r.groups.size()},
                      {"kv_heads", after.heads.num_key_value_heads},
                      {"kv_heads_before", before.heads.num_key_value_heads},
                      {"owners", owners},
                      {"merged_layers", r.groups},
                      {"merge", o.merge},
                      {"widen", o.widen},
                      {"intermediate_size", after.intermediate_size},
                      {"intermediate_size_before", before.intermediate_size}});
}

std::string mlkv_text(const MlkvReport& r) {
  const LayerShape& before = r.before.decoder.layers.front();
  const LayerShape& after = r.after.decoder.layers.front();
  return changes_text({changed("key-value layers", r.before.decoder.layers.size(), r.groups.size()),
                       changed("key-value heads in each", before.heads.num_key_value_heads,
                               after.heads.num_key_value_heads),
                       changed("MLP width", before.intermediate_size, after.intermediate_size),
                       changed("parameters", r.parameters_before, r.parameters_after)},
                      r.kv_cache_ratio) +
         "layers merged into the first of each: " + owned_layers(r) + "\n";
}

void convert_mlkv(const MlkvOptions& o, const Globals& globals) {
  MlkvConversion conversion;
  conversion.shape = {parse_token_count(o.kv_layers, "--kv-layers"),
                      parse_token_count(o.kv_heads, "--kv-heads"),
                      parse_flag("--widen", o.widen, parse_mlp_widening)};
  conversion.merge = parse_flag("--merge", o.merge, parse_layer_merge);
  conversion.dtype = parse_flag("--dtype", o.common.dtype, parse_dtype);
  const Checkpoint checkpoint(o.common.in);
  const MlkvReport report = with_progress(globals, [&](auto progress) {
    return convert_to_mlkv(checkpoint, o.common.out, conversion, progress);
  });
  say_copied(globals, o.common, report);
  print_result(o.common.json, mlkv_json(o, report), mlkv_text(report));
}

void add_mlkv(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "mlkv",
      "Convert to MLKV: M layers keep keys and values, with G heads.\n\nExamples:\n"
      "  kvcast convert mlkv weights/pythia-160m pythia-mlkv-12 --kv-layers 4 --kv-heads 3\n"
      "  kvcast convert mlkv weights/smollm2-135m-instruct.gguf smollm2-mlkv --kv-layers 15 "
      "--kv-heads 1 --widen none");
  c.footer(
      "Families: GPT-NeoX, Llama, Mistral, Qwen2, OLMo. The authors' script corresponds to\n"
      "--merge sequential --widen copy.");
  const auto o = std::make_shared<MlkvOptions>();
  add_convert_options(c, o->common);
  c.add("--kv-layers M", o->kv_layers,
        "number of layers that keep keys and values; must divide the number of layers")
      .required();
  c.add("--kv-heads G", o->kv_heads, "KV heads of these layers; must divide the number of KV heads")
      .required();
  c.add("--merge HOW", o->merge,
        "how layers are merged: mean, or sequential (the last layer has weight one half)");
  c.add("--widen HOW", o->widen,
        "widen the MLPs to keep the parameter count: none, copy, or preserve (copies with half "
        "weight)");
  c.callback([o, &globals] { convert_mlkv(*o, globals); });
}

}  // namespace

void add_convert(Command app, const Globals& globals) {
  Command command = app.add_subcommand(
      "convert",
      "Rewrite a checkpoint for a method.\n\nExamples:\n"
      "  kvcast convert mlkv tests/oracle/gpt_neox mlkv-model --kv-layers 1 --kv-heads 1\n"
      "  kvcast run --model mlkv-model --tokens 1,2,3");
  command.require_subcommand(1);
  add_mlkv(command, globals);
  add_convert_slim(command, globals);
  add_convert_kvp(command, globals);
  add_convert_prune(command, globals);
  add_convert_quantize(command, globals);
}

}  // namespace kvcast::cli
