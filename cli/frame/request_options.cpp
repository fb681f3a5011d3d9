#include "cli/frame/request_options.h"

#include "cli/frame/this_machine.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/methods/mlkv.h"

namespace kvcast::cli {
namespace {

constexpr std::uint64_t default_prompt_len = 1024;
constexpr const char* attention_of_engine =
    "attention kernel: eager (stores the scores, as plain PyTorch) or tiled (FlashAttention); "
    "default: the engine's, or tiled";

DType dtype_or(const std::string& text, DType fallback, const char* flag) {
  return text.empty() ? fallback : parse_flag(flag, text, parse_dtype);
}

}  // namespace

void RequestOptions::use_this_machine(const Globals& globals) {
  hardware = or_this_machine(hardware, globals);
}

void RequestOptions::add_device_flags_to(Command c, bool required) {
  c.add("--model", model).required(required);
  c.add("--hardware", hardware,
        needs_hardware ? "" : "catalog name (kvcast hardware list) or a JSON file");
  const bool of_engine = attention.empty();
  c.add("--attention", attention, of_engine ? attention_of_engine : "");
  c.add("--dtype", dtype);
  c.add("--mode", mode);
}

void RequestOptions::add_choice_flags_to(Command c) {
  add_device_flags_to(c);
  c.add("--batch", batch);
  c.add("--set", set);
}

void RequestOptions::add_type_flags_to(Command c) {
  c.add("--elementwise", elementwise,
        "norms, rotary embedding and activations: eager or fused; default: the engine's, or as "
        "--attention");
  c.add("--engine", engine);
  c.add("--weight-dtype", weight_dtype);
  c.add("--activation-dtype", activation_dtype);
  c.add("--cache-dtype", cache_dtype);
  c.add("--arithmetic", arithmetic);
  c.add("--semantics", semantics);
}

void RequestOptions::add_to(Command c) {
  attention.clear();
  add_choice_flags_to(c);
  c.add("--method", method);
  add_type_flags_to(c);
  c.add("--logits WHICH", logits, "last: head on the last position; all: on every position")
      .group("Kernels and element types");
  c.add("--skip-unread-rows", skip_unread_rows);
  c.add("--prompt-len", prompt_len,
        "prompt tokens; encoder length of encoder-decoder models [1024]");
  c.add("--encoder-tokens TOKENS", encoder_tokens,
        "encoder length of encoder-decoder models, the same as --prompt-len")
      .group("Request");
  c.add("--output-len", output_len);
  devices.add_to(c);
  c.add("--stages", stages);
  c.add("--platform", platform);
  add_spread_flags_to(c);
}

void RequestOptions::add_spread_flags_to(Command c, bool overlaps) {
  const char* several = "Several devices";
  c.add("--sequence-parallel", sequence_parallel,
        "with --tp: norms and residuals of prompts work on a part of the tokens of each device")
      .group(several);
  c.add("--micro-batches N", micro_batches,
        std::string("parts that a batch is cut into, at most one for each sequence; with --pp: ") +
            "default one for each stage, with --train for each sequence of a replica" +
            (overlaps ? "; else the messages of one overlap the work of the others (two-batch "
                        "overlap) [1]"
                      : ""))
      .group(several);
}

namespace {

/// Throws Error for flags of several devices where there is one.
void set_devices(const RequestOptions& o, const Catalog& catalog, roofline::Configuration& c) {
  c.parallelism = o.devices.parallelism();
  c.parallelism.sequence_parallel = o.sequence_parallel;
  if (!o.micro_batches.empty()) {
    c.micro_batches = parse_token_count(o.micro_batches, "--micro-batches");
  }
  for (std::size_t begin = 0; !o.stages.empty() && begin <= o.stages.size();) {
    const std::size_t end = std::min(o.stages.find('/', begin), o.stages.size());
    c.stage_layers.push_back(parse_token_count(o.stages.substr(begin, end - begin), "--stages"));
    begin = end + 1;
  }
  if (!o.stages.empty() && c.parallelism.pp == 1) {
    throw Error("--stages", "one stage", "--pp above 1");
  }
  c.interconnect = roofline::interconnect_of(c, catalog, o.platform);
  if (c.interconnect == nullptr && !o.platform.empty()) {
    throw Error("--platform", "one device",
                "--tp, --pp, --ep or --dp above 1, or --method kvr:p=P");
  }
}

}  // namespace

std::vector<ConfigOverride> parse_overrides(const std::vector<std::string>& set) {
  std::vector<ConfigOverride> overrides;
  for (const std::string& text : set) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
      throw Error("--set", "'" + text + "'", "KEY=VALUE");
    }
    const std::string key = text.substr(0, equals);
    for (const ConfigOverride& other : overrides) {
      if (other.key == key) throw Error("--set", "'" + key + "' twice", "each key once");
    }
    overrides.push_back({key, text.substr(equals + 1)});
  }
  return overrides;
}

void apply_semantics(const std::string& semantics, const Architecture& a,
                     std::vector<MethodSpec>& methods) {
  if (semantics.empty()) return;
  parse_flag("--semantics", semantics, parse_shared_keys);
  for (MethodSpec& method : methods) {
    if (method.name != "mlkv") continue;
    for (const auto& [key, value] : method.options) {
      if (key == "semantics")
        throw Error(
            "--semantics and the option semantics of the method mlkv mean the same; expected one "
            "of them");
    }
    method.options.emplace_back("semantics", semantics);
    return;
  }
  const Stack& s = a.decoder;
  if (s.num_key_value_layers == 0) {
    throw Error("--semantics", a.name + ", whose layers all read their own keys and values",
                "an MLKV model, or --method mlkv:layers=M,heads=G");
  }
  methods.push_back({"mlkv",
                     {{"layers", std::to_string(s.num_key_value_layers)},
                      {"heads", std::to_string(s.layers.front().heads.num_key_value_heads)},
                      {"semantics", semantics}}});
}

DType parse_dtype_of(const RequestOptions& o, const Architecture& a) {
  return dtype_or(o.dtype, a.default_dtype(), "--dtype");
}

Lowering parse_lowering(const RequestOptions& o, const Architecture& a) {
  Lowering l;
  if (!o.attention.empty()) l.attention = parse_flag("--attention", o.attention, parse_kernels);
  l.elementwise = o.elementwise.empty() ? l.attention
                                        : parse_flag("--elementwise", o.elementwise, parse_kernels);
  l.skip_unread_rows = o.skip_unread_rows;
  const DType dtype = parse_dtype_of(o, a);
  l.weights = o.weight_dtype.empty()
                  ? a.stored_weights.value_or(dtype)
                  : parse_flag("--weight-dtype", o.weight_dtype, parse_weight_types);
  l.activations = dtype_or(o.activation_dtype, dtype, "--activation-dtype");
  l.cache = dtype_or(o.cache_dtype, dtype, "--cache-dtype");
  if (!o.arithmetic.empty()) {
    l.products = parse_flag("--arithmetic", o.arithmetic, parse_dtype);
    if (width(*l.products).block_elements > 1) {
      throw Error("--arithmetic", o.arithmetic, "a type that is multiplied, such as bf16 or int8");
    }
  }
  return l;
}

roofline::Configuration parse_configuration(const RequestOptions& o, const Catalog& catalog) {
  roofline::Configuration c;
  c.architecture = load_model(catalog, o.model, parse_overrides(o.set));
  c.find_model = find_model_in(catalog);
  if (o.needs_hardware || !o.hardware.empty()) {
    c.hardware = roofline::load_hardware(catalog, o.hardware);
  }
  c.methods = parse_methods(o.method);
  apply_semantics(o.semantics, c.architecture, c.methods);
  c.lowering = parse_lowering(o, c.architecture);
  // A request that names a type of weights or products says all that is to be said about them.
  if (o.dtype.empty() && o.weight_dtype.empty() && o.activation_dtype.empty() &&
      o.arithmetic.empty()) {
    c.lowering.activations =
        c.hardware.activations_of(c.architecture.stored_operands, c.lowering.activations);
  }
  c.engine = parse_flag("--engine", o.engine, [&](const std::string& text) {
    return roofline::load_engine(catalog, text);
  });
  roofline::apply(c.engine, o.attention.empty(), o.elementwise.empty(), c.lowering);
  c.mode = parse_flag("--mode", o.mode, roofline::parse_mode);
  c.logits = parse_flag("--logits", o.logits, parse_logits);
  set_devices(o, catalog, c);
  return c;
}

roofline::DesignPoint parse_sizes(const RequestOptions& o, const Architecture& a) {
  if (o.encoder_tokens && !a.encoder_decoder) {
    throw Error("--encoder-tokens: " + a.name + " has no encoder; expected --prompt-len");
  }
  if (o.encoder_tokens && o.prompt_len) {
    throw Error("--encoder-tokens and --prompt-len mean the same; expected one of them");
  }
  roofline::DesignPoint p;
  p.batch = parse_token_count(o.batch, "--batch");
  p.output_len = parse_token_count(o.output_len, "--output-len");
  p.prompt_len = a.max_source_positions > 0 ? a.max_source_positions : default_prompt_len;
  if (o.encoder_tokens) p.prompt_len = parse_token_count(*o.encoder_tokens, "--encoder-tokens");
  if (o.prompt_len) p.prompt_len = parse_token_count(*o.prompt_len, "--prompt-len");
  return p;
}

}  // namespace kvcast::cli
