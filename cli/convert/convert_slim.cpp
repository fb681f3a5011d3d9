#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/convert/convert_options.h"
#include "cli/convert/convert_parts.h"
#include "cli/frame/request_options.h"
#include "cli/run/run_inputs.h"
#include "model/base/error.h"
#include "model/convert/slim_check.h"
#include "model/convert/slim_conversion.h"
#include "reports/plot/plot.h"
#include "reports/plot/slim_errors.h"

namespace kvcast::cli {
namespace {

struct SlimOptions {
  ConvertOptions common;
  RunInputs calibration;
  std::vector<Flag> inputs;  ///< the flags of `calibration`
  std::string option = "auto";
  double max_error = 0.01;
  std::string csv;
  std::string plot;
};

/// The error limit of the published study of Whisper: OpenMachine-ai/transformer-tricks, commit
/// 379556c.
constexpr double published_limit = 0.05;

/// The calibration text where the user gives none: any prose will do.
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

/// Noise instead of sound, the same each time.
std::vector<float> noise(std::size_t count) {
  std::vector<float> numbers(count);
  std::uint32_t state = 1;
  for (float& x : numbers) {
    state = state * 1664525 + 1013904223;  // Numerical Recipes' generator
    x = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1;
  }
  return numbers;
}

/// Throws Error when several inputs or an empty one are given.
void check_inputs(const std::vector<Flag>& inputs) {
  std::size_t given = 0;
  std::vector<std::string> names;
  for (Flag input : inputs) {
    names.push_back(input.name());
    if (!input.is_given()) continue;
    ++given;
    if (!input.text().empty()) continue;
    throw Error(input.name(), "an empty text",
                input.type_name().starts_with("FILE")
                    ? "a file"
                    : fmt::format("at least {} tokens", fewest_calibration_tokens));
  }
  if (given > 1) {
    throw Error("calibration", fmt::format("{} inputs", given),
                fmt::format("one of {}", fmt::join(names, ", ")));
  }
}

struct Calibration {
  execute::Request request;
  std::string source;
  std::vector<std::string> warnings;  ///< for a conversion that comes about
};

Calibration read_calibration(const SlimOptions& o, const Checkpoint& checkpoint) {
  const Architecture& a = checkpoint.architecture();
  RunInputs in = o.calibration;
  in.prefix = "--calibration-";
  in.encoder_tokens_flag = in.flag("tokens");
  in.fewest_positions = fewest_calibration_tokens;
  const FoundTokenizer tokenizer = find_tokenizer(checkpoint);
  const bool given =
      !(in.tokens.empty() && !in.prompt && in.prompt_file.empty() && in.audio.empty());
  const bool reads_sound = a.num_mel_bins > 0;
  Calibration c;
  c.source = given ? "given" : tokenizer && !reads_sound ? "built-in text" : "made-up input";
  if (reads_sound && !(in.tokens.empty() && !in.prompt && in.prompt_file.empty())) {
    throw Error("calibration of " + a.name, "text", "--calibration-audio: it reads sound");
  }
  if (a.encoder_decoder && !in.tokens.empty()) in.encoder_tokens = std::exchange(in.tokens, "");
  if (!given && tokenizer && !reads_sound) {
    in.prompt = calibration_text;
  } else if (!given) {
    c.warnings.push_back(
        "errors are measured on made-up input, on which they may be too small; expected " +
        std::string(reads_sound ? "--calibration-audio" : "--calibration-prompt"));
    std::uint64_t length = reads_sound ? a.max_source_positions : made_up_tokens;
    if (!reads_sound && a.decoder.position_rows > 0) {
      length = std::min(length, a.decoder.position_rows);
    }
    in.prompt_len = std::to_string(length);
  }
  c.request = read_request(in, checkpoint, tokenizer,
                           [&](const std::string& line) { c.warnings.push_back(line); });
  execute::Request& request = c.request;
  if (!given && reads_sound) request.features = noise(request.features.size());
  if (a.encoder_decoder) {
    const std::uint64_t start = request.tokens.front().size();
    const std::uint64_t rows = a.decoder.position_rows;
    request.output_len = rows > 0 ? std::min(decoder_tokens, rows - start + 1) : decoder_tokens;
  }
  return c;
}

constexpr std::array forms{CacheForm::Keys, CacheForm::Values, CacheForm::Inputs};
constexpr std::array storages{DType::FP32, DType::FP16, DType::BF16};

ordered_json number_json(const std::optional<double>& number) {
  if (!number) return nullptr;
  return std::isfinite(*number) ? ordered_json(*number) : ordered_json("infinity");
}

/// Layers under the published limit, by attention, form tried and storage.
ordered_json counts_json(const SlimReport& r) {
  ordered_json counts = ordered_json::object();
  for (const SlimSite site : {SlimSite::Self, SlimSite::Cross}) {
    for (const CacheForm kind : forms) {
      const bool tried = std::any_of(r.layers.begin(), r.layers.end(), [&](const auto& l) {
        return l.site == site && l.errors.contains(kind);
      });
      if (!tried) continue;
      for (const DType storage : storages) {
        counts[reports::site_name(site)][std::string(name(kind))][std::string(name(storage))] =
            layers_under(r, site, kind, storage, published_limit);
      }
    }
  }
  return counts;
}

std::string counts_text(const ordered_json& counts, std::size_t layers) {
  std::string text;
  for (const auto& [site, by_form] : counts.items()) {
    std::vector<std::string> parts;
    for (const auto& [form, numbers] : by_form.items()) {
      std::vector<std::string> by_storage;
      for (const ordered_json& number : numbers) by_storage.push_back(number.dump());
      parts.push_back(fmt::format("{} {}", form, fmt::join(by_storage, "/")));
    }
    text += fmt::format("{}-attentions under {:g} % error in fp32/fp16/bf16, of {}: {}\n", site,
                        100 * published_limit, layers, fmt::join(parts, ", "));
  }
  return text;
}

ordered_json slim_json(const SlimOptions& o, const SlimReport& r, const std::string& source,
                       const LogitComparison& logits) {
  ordered_json layers = ordered_json::array();
  for (const SlimLayerReport& l : r.layers) {
    ordered_json errors = ordered_json::object();
    for (const auto& [kind, by_storage] : l.errors) {
      for (const auto& [storage, error] : by_storage) {
        errors[std::string(name(kind))][std::string(name(storage))] = number_json(error);
      }
    }
    layers.push_back({{"layer", l.layer},
                      {"attention", reports::site_name(l.site)},
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
          {"layers_under_5_percent", counts_json(r)},
          {"logit_error", number_json(logits.relative_error)},
          {"compared_positions", logits.positions},
          {"same_next_tokens", logits.same},
          {"parameters_before", r.parameters_before},
          {"parameters_after", r.parameters_after},
          {"kv_cache_ratio", r.kv_cache_ratio},
          {"cross_cache_ratio", number_json(r.cross_cache_ratio)},
          {"dtype", o.common.dtype},
          {"copied_files", r.copied_files}};
}

std::string slim_text(const SlimReport& r, const LogitComparison& logits) {
  const auto number = [](const std::optional<double>& x) {
    return x ? fmt::format("{:.2g}", *x) : std::string("-");
  };
  Table table({"layer", "attention", "cond W_K", "cond W_V", "kcache fp32", "fp16", "bf16",
               "vcache fp32", "fp16", "bf16", "xcache fp32", "fp16", "bf16", "chosen"});
  std::string reasons;
  for (const SlimLayerReport& l : r.layers) {
    std::vector<std::string> row{std::to_string(l.layer), reports::site_name(l.site),
                                 number(l.key_condition), number(l.value_condition)};
    for (const CacheForm kind : forms) {
      for (const DType storage : storages) {
        const auto found = l.errors.find(kind);
        row.push_back(found == l.errors.end() ? "-" : number(found->second.at(storage)));
      }
    }
    row.emplace_back(name(l.chosen));
    table.add(std::move(row));
    if (!l.reason.empty()) {
      const std::string takes = l.chosen == CacheForm::KeysAndValues
                                    ? std::string("stays plain")
                                    : fmt::format("takes {}", name(l.chosen));
      reasons += fmt::format("layer {}, {}-attention {}: {}\n", l.layer, reports::site_name(l.site),
                             takes, l.reason);
    }
  }
  return table.text() + reasons + counts_text(counts_json(r), r.before.num_hidden_layers()) +
         fmt::format("logits at {} positions {:.2g} % off, the next token the same at {}\n",
                     logits.positions, 100 * logits.relative_error, logits.same) +
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
  check_rows_alone(o.csv, {{"--json", o.common.json}});
  const std::string csv = csv_target(o.csv);
  check_inputs(o.inputs);
  const Checkpoint checkpoint(o.common.in);
  const Calibration calibration = read_calibration(o, checkpoint);
  conversion.calibration = calibration.request;
  const SlimReport report = with_progress(globals, [&](auto progress) {
    return convert_to_slim(checkpoint, o.common.out, conversion, progress);
  });
  for (const std::string& line : calibration.warnings) globals.warn(line);
  const FoundTokenizer tokenizer = find_tokenizer(checkpoint);
  // After the end of a text, logits say nothing about the model.
  if (tokenizer) conversion.calibration.stop_tokens = tokenizer->end_of_text();
  const LogitComparison logits =
      compare_logits(checkpoint, Checkpoint(o.common.out), conversion.calibration);
  if (!csv.empty()) {
    reports::write_slim_csv(report, conversion.dtype, logits.relative_error, csv);
  }
  if (!o.plot.empty()) {
    reports::write_plot(reports::slim_error_plot(report, conversion.dtype, o.max_error), o.plot);
  }
  if (o.csv == "-") return;
  print_result(o.common.json, slim_json(o, report, calibration.source, logits),
               slim_text(report, logits));
}

}  // namespace

void add_convert_slim(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "slim",
      "Convert to Slim attention: cache only keys, values or inputs; added weights compute the "
      "rest.\n\n"
      "Every layer's attention is tested on real activations. It takes the first form with an "
      "error "
      "within\n"
      "--max-error, or stays unchanged.\n\nExamples:\n"
      "  kvcast convert slim weights/whisper-base whisper-slim --calibration-audio speech.wav\n"
      "  kvcast run --model whisper-slim --method slim --audio speech.wav");
  c.footer(
      "auto tries keys, then values, then the input; if the input is the narrowest, it comes "
      "first.\n"
      "With rotary positions, caching values halves the cache, but recomputes all keys at every "
      "step.\n"
      "With --option kcache, a layer caches only keys or stays unchanged.");
  const auto o = std::make_shared<SlimOptions>();
  add_convert_options(c, o->common);
  c.add("--option FORM", o->option,
        "auto, or one form for all layers: kcache, vcache, xcache, encdec1, encdec2, hybrid");
  c.add("--max-error F", o->max_error, "largest relative error of recomputed keys and values");
  RunInputs& in = o->calibration;
  o->inputs = {
      c.add("--calibration-prompt TEXT", in.prompt, "calibration text").is_free_text(),
      c.add("--calibration-prompt-file FILE", in.prompt_file, "calibration text from a file"),
      c.add("--calibration-tokens IDS", in.tokens, "calibration text as token ids"),
      c.add("--calibration-audio FILE.wav", in.audio, "calibration audio for Whisper")};
  c.add("--csv", o->csv, "write errors by attention, form and storage as CSV; - is stdout");
  c.add("--plot", o->plot, "draw errors in the written storage, .svg or .png");
  c.callback([o, &globals] { convert_slim(*o, globals); });
}

}  // namespace kvcast::cli
