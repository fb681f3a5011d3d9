#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/convert_options.h"
#include "cli/convert_parts.h"
#include "cli/request_options.h"
#include "cli/run_inputs.h"
#include "model/convert/mlkv_conversion.h"
#include "model/convert/slim_conversion.h"
#include "model/error.h"
#include "model/quantity.h"

namespace kvcast::cli {
namespace {

using nlohmann::ordered_json;

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
  return {{"model", r.before.name},
          {"output", o.common.out},
          {"kv_layers", r.groups.size()},
          {"kv_heads", after.heads.num_key_value_heads},
          {"kv_heads_before", before.heads.num_key_value_heads},
          {"owners", owners},
          {"merged_layers", r.groups},
          {"merge", o.merge},
          {"widen", o.widen},
          {"intermediate_size", after.intermediate_size},
          {"intermediate_size_before", before.intermediate_size},
          {"parameters_before", r.parameters_before},
          {"parameters_after", r.parameters_after},
          {"kv_cache_ratio", r.kv_cache_ratio},
          {"dtype", o.common.dtype},
          {"copied_files", r.copied_files}};
}

std::string mlkv_text(const MlkvReport& r) {
  const auto row = [](const char* what, std::uint64_t before, std::uint64_t after) {
    return std::vector<std::string>{what, std::to_string(before), std::to_string(after)};
  };
  const LayerShape& before = r.before.decoder.layers.front();
  const LayerShape& after = r.after.decoder.layers.front();
  Table table({"", "before", "after"});
  table.add(row("key-value layers", r.before.decoder.layers.size(), r.groups.size()));
  table.add(row("key-value heads in each", before.heads.num_key_value_heads,
                after.heads.num_key_value_heads));
  table.add(row("MLP width", before.intermediate_size, after.intermediate_size));
  table.add(row("parameters", r.parameters_before, r.parameters_after));
  table.add({"KV cache", "1", fmt::format("{:.4g}", r.kv_cache_ratio)});
  return table.text() + "layers merged into the first of each: " + owned_layers(r) + "\n";
}

void convert_mlkv(const MlkvOptions& o, const Globals& globals) {
  MlkvConversion conversion;
  conversion.shape = {parse_token_count(o.kv_layers, "--kv-layers"),
                      parse_token_count(o.kv_heads, "--kv-heads"),
                      parse_flag("--widen", o.widen, parse_mlp_widening)};
  conversion.merge = parse_flag("--merge", o.merge, parse_layer_merge);
  conversion.dtype = parse_flag("--dtype", o.common.dtype, parse_dtype);
  const Checkpoint checkpoint(o.common.in);
  MlkvReport report;
  {
    ConvertProgress progress(globals.quiet);
    report = convert_to_mlkv(checkpoint, o.common.out, conversion, std::ref(progress));
  }
  say_copied(globals, o.common, report);
  if (o.common.json) {
    print_json(mlkv_json(o, report));
  } else {
    print_text(mlkv_text(report));
  }
}

void add_mlkv(CLI::App& command, const Globals& globals) {
  CLI::App* c = command.add_subcommand(
      "mlkv",
      "Multi-layer key-value heads: M layers keep keys and values, of G heads.\n\nExamples:\n"
      "  kvcast convert mlkv weights/pythia-160m pythia-mlkv-12 --kv-layers 4 --kv-heads 3\n"
      "  kvcast convert mlkv weights/smollm2-135m-instruct.gguf smollm2-mlkv --kv-layers 15 "
      "--kv-heads 1 --widen none");
  c->footer(
      "Families: GPT-NeoX, Llama, Mistral, Qwen2, OLMo. As the authors' script does it:\n"
      "--merge sequential --widen copy.");
  const auto o = std::make_shared<MlkvOptions>();
  add_convert_options(*c, o->common);
  c->add_option("--kv-layers", o->kv_layers, "layers that keep keys and values: divides the layers")
      ->required()
      ->type_name("M");
  c->add_option("--kv-heads", o->kv_heads, "heads that they keep: divides the key-value heads")
      ->required()
      ->type_name("G");
  c->add_option("--merge", o->merge, "across layers: mean, or sequential (the last weighs half)")
      ->type_name("HOW")
      ->capture_default_str();
  c->add_option("--widen", o->widen,
                "of the MLPs, to keep the parameter count: none, copy, or preserve (copies at half "
                "weight)")
      ->type_name("HOW")
      ->capture_default_str();
  c->callback([o, &globals] { convert_mlkv(*o, globals); });
}

struct SlimOptions {
  ConvertOptions common;
  RunInputs calibration;
  std::string option = "auto";
  double max_error = 0.01;
};

/// What a model is tried on when the user gives nothing: any prose will do.
constexpr const char* calibration_text =
    "The river had been low all summer, and the boats lay on the mud with their names turned to "
    "the "
    "sky. On the second of October it began to rain in the hills. By evening the children could "
    "hear the water under the bridge; by morning it had taken the lower garden, two hen houses and "
    "the fence that their grandfather had built in 1931. Nobody was surprised. 'It comes back for "
    "what it lent us,' said the old man, counting the posts that were left, 'and it never asks for "
    "a receipt.' Then he went to look for his spade.";

constexpr std::uint64_t made_up_tokens = 256;
constexpr std::uint64_t decoder_tokens = 32;  ///< generated, for the decoder's own inputs

/// Noise in the place of a sound, the same each time.
std::vector<float> noise(std::size_t count) {
  std::vector<float> numbers(count);
  std::uint32_t state = 1;
  for (float& x : numbers) {
    state = state * 1664525 + 1013904223;  // Numerical Recipes' generator
    x = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1;
  }
  return numbers;
}

execute::Request calibration_request(const SlimOptions& o, const Checkpoint& checkpoint,
                                     const Globals& globals, std::string& source) {
  const Architecture& a = checkpoint.architecture();
  RunInputs in = o.calibration;
  in.audio_name = "--calibration-audio";
  in.fewest_positions = fewest_calibration_tokens;
  std::string no_tokenizer;
  const std::optional<text::Tokenizer> tokenizer = find_tokenizer(checkpoint, no_tokenizer);
  const bool given = !(in.tokens.empty() && in.prompt.empty() && in.prompt_file.empty() &&
                       in.audio.empty() && in.encoder_tokens.empty());
  const bool reads_sound = a.num_mel_bins > 0;
  source = given ? "given" : tokenizer && !reads_sound ? "built-in text" : "made-up input";
  if (reads_sound && !(in.tokens.empty() && in.prompt.empty() && in.prompt_file.empty())) {
    throw Error("calibration of " + a.name, "text", "--calibration-audio: it reads sound");
  }
  if (a.encoder_decoder && !in.tokens.empty()) in.encoder_tokens = std::exchange(in.tokens, "");
  if (!tokenizer && !(in.prompt.empty() && in.prompt_file.empty())) {
    throw Error("--calibration-prompt: " + no_tokenizer + "; expected --calibration-tokens");
  }
  if (!given && tokenizer && !reads_sound) {
    in.prompt = calibration_text;
  } else if (!given) {
    globals.warn("errors are measured on made-up input, on which they may be too small; expected " +
                 std::string(reads_sound ? "--calibration-audio" : "--calibration-prompt"));
    std::uint64_t length = made_up_tokens;
    if (a.decoder.position_rows > 0) length = std::min(length, a.decoder.position_rows);
    in.prompt_len = std::to_string(length);
  }
  execute::Request request = read_request(in, checkpoint, tokenizer, no_tokenizer,
                                          [&](const std::string& line) { globals.warn(line); });
  if (!given && reads_sound) request.features = noise(request.features.size());
  if (a.encoder_decoder) {
    const std::uint64_t start = request.tokens.front().size();
    const std::uint64_t rows = a.decoder.position_rows;
    request.output_len = rows > 0 ? std::min(decoder_tokens, rows - start + 1) : decoder_tokens;
  }
  return request;
}

const char* site_name(SlimSite site) { return site == SlimSite::Self ? "self" : "cross"; }

ordered_json number_json(const std::optional<double>& number) {
  if (!number) return nullptr;
  return std::isfinite(*number) ? ordered_json(*number) : ordered_json("infinity");
}

ordered_json slim_json(const SlimOptions& o, const SlimReport& r, const std::string& source) {
  ordered_json layers = ordered_json::array();
  for (const SlimLayerReport& l : r.layers) {
    ordered_json errors = ordered_json::object();
    for (const auto& [kind, by_storage] : l.errors) {
      for (const auto& [storage, error] : by_storage) {
        errors[std::string(name(kind))][std::string(name(storage))] = number_json(error);
      }
    }
    layers.push_back({{"layer", l.layer},
                      {"attention", site_name(l.site)},
                      {"key_condition", number_json(l.key_condition)},
                      {"value_condition", number_json(l.value_condition)},
                      {"relative_error", errors},
                      {"chosen", name(l.chosen)},
                      {"reason", l.reason}});
  }
  return {{"model", r.before.name},
          {"output", o.common.out},
          {"option", o.option},
          {"max_error", o.max_error},
          {"calibration", source},
          {"calibration_rows", r.calibration_rows},
          {"layers", layers},
          {"parameters_before", r.parameters_before},
          {"parameters_after", r.parameters_after},
          {"kv_cache_ratio", r.kv_cache_ratio},
          {"cross_cache_ratio", number_json(r.cross_cache_ratio)},
          {"dtype", o.common.dtype},
          {"copied_files", r.copied_files}};
}

std::string slim_text(const SlimReport& r) {
  const auto number = [](const std::optional<double>& x) {
    return x ? fmt::format("{:.2g}", *x) : std::string("-");
  };
  Table table({"layer", "attention", "cond W_K", "cond W_V", "kcache fp32", "fp16", "bf16",
               "vcache fp32", "fp16", "bf16", "xcache fp32", "fp16", "bf16", "chosen"});
  std::string reasons;
  for (const SlimLayerReport& l : r.layers) {
    std::vector<std::string> row{std::to_string(l.layer), site_name(l.site),
                                 number(l.key_condition), number(l.value_condition)};
    for (const SlimKind kind : {SlimKind::KeyCache, SlimKind::ValueCache, SlimKind::InputCache}) {
      for (const DType storage : {DType::FP32, DType::FP16, DType::BF16}) {
        const auto found = l.errors.find(kind);
        row.push_back(found == l.errors.end() ? "-" : number(found->second.at(storage)));
      }
    }
    row.emplace_back(name(l.chosen));
    table.add(std::move(row));
    if (!l.reason.empty()) {
      const std::string takes = l.chosen == SlimKind::Plain
                                    ? std::string("stays plain")
                                    : fmt::format("takes {}", name(l.chosen));
      reasons += fmt::format("layer {}, {}-attention {}: {}\n", l.layer, site_name(l.site), takes,
                             l.reason);
    }
  }
  return table.text() + reasons +
         fmt::format("parameters {} -> {}, KV cache {:.4g} of what it was", r.parameters_before,
                     r.parameters_after, r.kv_cache_ratio) +
         (r.cross_cache_ratio ? fmt::format(", cross-attention's {:.4g}\n", *r.cross_cache_ratio)
                              : std::string("\n"));
}

void convert_slim(const SlimOptions& o, const Globals& globals) {
  SlimConversion conversion;
  conversion.option = o.option;
  conversion.max_error = o.max_error;
  conversion.dtype = parse_flag("--dtype", o.common.dtype, parse_dtype);
  const Checkpoint checkpoint(o.common.in);
  std::string source;
  conversion.calibration = calibration_request(o, checkpoint, globals, source);
  SlimReport report;
  {
    ConvertProgress progress(globals.quiet);
    report = convert_to_slim(checkpoint, o.common.out, conversion, std::ref(progress));
  }
  if (o.common.json) {
    print_json(slim_json(o, report, source));
  } else {
    print_text(slim_text(report));
  }
}

void add_slim(CLI::App& command, const Globals& globals) {
  CLI::App* c = command.add_subcommand(
      "slim",
      "Slim attention: keys, values or inputs are kept, and weights that compute the rest.\n\n"
      "Every layer's attention is tried on real activations; it takes the first form whose keys "
      "or\n"
      "values come out within --max-error, and stays plain when none does.\n\nExamples:\n"
      "  kvcast convert slim weights/whisper-base whisper-slim --calibration-audio speech.wav\n"
      "  kvcast run --model whisper-slim --method slim --audio speech.wav");
  c->footer(
      "auto tries keys, values, then the input, the input first where it is the narrowest; with "
      "rotary positions\nvalues halve the cache at the price of computing all keys at every step. "
      "--option kcache takes keys or nothing.");
  const auto o = std::make_shared<SlimOptions>();
  add_convert_options(*c, o->common);
  c->add_option(
       "--option", o->option,
       "auto, or one form for all layers: kcache, vcache, xcache, encdec1, encdec2, hybrid")
      ->type_name("FORM")
      ->capture_default_str();
  c->add_option("--max-error", o->max_error, "of computed keys and values, relative")
      ->type_name("F")
      ->capture_default_str();
  RunInputs& in = o->calibration;
  c->add_option("--calibration-prompt", in.prompt, "text to try the layers on")->type_name("TEXT");
  c->add_option("--calibration-prompt-file", in.prompt_file, "the same from a file")
      ->type_name("FILE");
  c->add_option("--calibration-tokens", in.tokens, "the same as token ids")->type_name("IDS");
  c->add_option("--calibration-audio", in.audio, "a sound to try Whisper's layers on")
      ->type_name("FILE.wav");
  c->callback([o, &globals] { convert_slim(*o, globals); });
}

}  // namespace

void add_convert(CLI::App& app, const Globals& globals) {
  CLI::App* command = app.add_subcommand(
      "convert",
      "Rewrite a checkpoint for a method.\n\nExamples:\n"
      "  kvcast convert mlkv tests/oracle/gpt_neox mlkv-model --kv-layers 1 --kv-heads 1\n"
      "  kvcast run --model mlkv-model --tokens 1,2,3");
  command->require_subcommand(1);
  add_mlkv(*command, globals);
  add_slim(*command, globals);
  add_convert_kvp(*command, globals);
  add_convert_prune(*command, globals);
}

}  // namespace kvcast::cli
