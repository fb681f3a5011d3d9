#include <memory>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/families/config_reader.h"
#include "model/graph/work.h"
#include "model/io/files/atomic_file.h"
#include "model/record/recording.h"
#include "model/record/training_recording.h"

namespace kvcast::cli {
namespace {

struct ModelOptions {
  std::string model;
  std::string dtype = "fp16";
  std::string weight_dtype;
  std::string attention = "tiled";
  std::string pass = "prefill";
  std::string graph;
  std::string method = "plain";
  std::vector<std::string> set;
  bool operators = false;
  std::string batch = "1";
  std::string prompt_len = "1024";
  bool json = false;
};

/// One number where all layers agree, else the list over layers.
template <typename Get>
ordered_json over_layers(const Stack& stack, Get get) {
  std::vector<std::uint64_t> values;
  for (const LayerShape& layer : stack.layers) values.push_back(get(layer));
  const bool same = std::equal(values.begin() + 1, values.end(), values.begin());
  return same ? ordered_json(values.front()) : ordered_json(values);
}

ordered_json stack_json(const Stack& s) {
  ordered_json j{{"num_hidden_layers", s.layers.size()},
                 {"num_attention_heads",
                  over_layers(s, [](const LayerShape& l) { return l.heads.num_attention_heads; })},
                 {"num_key_value_heads",
                  over_layers(s, [](const LayerShape& l) { return l.heads.num_key_value_heads; })},
                 {"head_dim", over_layers(s, [](const LayerShape& l) { return l.heads.head_dim; })},
                 {"intermediate_size",
                  over_layers(s, [](const LayerShape& l) { return l.intermediate_size; })}};
  const auto over = [&](const char* key, auto get) {
    const ordered_json values = over_layers(s, get);
    if (values != 0) j[key] = values;
  };
  over("sliding_window", [](const LayerShape& l) { return l.sliding_window; });
  over("attention_chunk", [](const LayerShape& l) { return l.attention_chunk; });
  over("num_experts",
       [](const LayerShape& l) { return l.experts ? l.experts->routing.num_experts : 0; });
  over("num_experts_per_tok",
       [](const LayerShape& l) { return l.experts ? l.experts->routing.num_experts_per_tok : 0; });
  over("expert_intermediate_size",
       [](const LayerShape& l) { return l.experts ? l.experts->intermediate_size : 0; });
  over("shared_intermediate_size",
       [](const LayerShape& l) { return l.experts ? l.experts->shared_intermediate_size : 0; });
  over("kv_lora_rank", [](const LayerShape& l) { return l.latent ? l.latent->rank : 0; });
  over("index_topk", [](const LayerShape& l) {
    return l.latent && l.latent->indexer ? l.latent->indexer->kept : 0;
  });
  over("qk_rope_head_dim", [](const LayerShape& l) { return l.latent ? l.latent->rope_dim : 0; });
  return j;
}

/// Of tables of which a pass reads its tokens' rows alone.
std::uint64_t looked_up_parameters(const Architecture& a) {
  const std::uint64_t embedding = a.tied_embeddings ? 0 : a.vocab_size * a.hidden_size;
  if (!a.decoder.altup) return embedding;
  const AltUp& form = *a.decoder.altup;
  return embedding + form.layer_rows * form.table_layers * form.layer_features;
}

ordered_json model_json(const Architecture& a, const Recording& r, const Lowering& lowering) {
  ordered_json j{
      {"name", a.name},
      {"model_type", a.model_type},
      {"parameters", r.parameters},
      {"active_parameters", r.active_parameters},
      {"active_parameters_without_lookup", r.active_parameters - looked_up_parameters(a)},
      {"hidden_size", a.hidden_size},
      {"vocab_size", a.vocab_size},
      {"max_position_embeddings", a.max_position_embeddings}};
  j.update(stack_json(a.decoder));
  if (a.encoder_decoder) j["encoder"] = stack_json(a.encoder);
  j["tied_embeddings"] = a.tied_embeddings;
  j["dtype"] = name(lowering.cache);
  j["weight_dtype"] = lowering.weights.text;
  j["weight_bytes"] = r.weight_bytes.at({});
  for (const auto& [of, bytes] : r.weight_bytes_by_class) {
    j["weight_bytes_by_class"][of] = bytes.at({});
  }
  j["kv_cache_bytes_per_token"] = r.kv_cache_bytes_per_token.at({});
  j["kv_cache_bytes_per_token_beyond_window"] = r.kv_cache_bytes_per_token_beyond_window.at({});
  if (has_states(a.decoder)) {
    j["state_bytes_per_sequence"] = r.state_bytes.at(r.symbols.resolve({1, 1, 1}));
  }
  if (a.encoder_decoder) {
    j["cross_cache_bytes_per_encoder_token"] = r.cross_cache_bytes_per_token.at({});
  }
  return j;
}

std::string plain_text(const ordered_json& j) {
  Table table({"key", "value"});
  const auto add = [&](const std::string& key, const ordered_json& value) {
    table.add({key, value.is_string() ? value.get<std::string>() : value.dump()});
  };
  for (const auto& [key, value] : j.items()) {
    if (!value.is_object()) {
      add(key, value);
      continue;
    }
    for (const auto& [inner, part] : value.items()) add(key + "." + inner, part);
  }
  return table.text();
}

Lowering lowering_of(const Architecture& a, const ModelOptions& o) {
  RequestOptions kernels;
  kernels.attention = o.attention;
  kernels.dtype = o.dtype;
  kernels.weight_dtype = o.weight_dtype;
  return parse_lowering(kernels, a);
}

/// Intermediate results have no name of their own: "#12".
ordered_json tensor_json(const Graph& graph, TensorId id, const SymbolValues& sizes) {
  const TensorInfo& t = graph.tensor(id);
  const auto dim = [&](const Count& count) { return count.at(sizes); };
  return {{"name", t.name.empty() ? fmt::format("#{}", id.index) : t.name},
          {"shape", rows_of(t.shape, dim)},
          {"dtype", name(t.dtype)},
          {"storage", name(t.storage)}};
}

/// Every operator of a pass with its work at given sizes.
ordered_json operators_json(const Graph& graph, const SymbolValues& sizes) {
  const auto tensor = [&](TensorId id) { return tensor_json(graph, id, sizes); };
  return rows_of(graph.nodes(), [&](const Node& node) {
    const Work w = work(graph, node);
    return ordered_json{
        {"name", name(node.op)},
        {"label", node.label},
        {"layer", node.layer == no_layer ? ordered_json() : ordered_json(node.layer)},
        {"phase", node.phase},
        {"flops", w.flops.at(sizes)},
        {"bytes", w.bytes().at(sizes)},
        {"inputs", rows_of(node.inputs, tensor)},
        {"outputs", rows_of(node.outputs, tensor)}};
  });
}

const std::vector<Column> operator_columns{{"operator", "name"}, {"label", "label"},
                                           {"layer", "layer"},   {"phase", "phase"},
                                           {"FLOPs", "flops"},   {"bytes", "bytes"}};

void list_models(const Globals& globals, bool json) {
  const Catalog catalog = globals.catalog();
  const ordered_json rows = rows_of(catalog.names("models"), [&](const std::string& name) {
    const Architecture a = load_model(catalog, name);
    const Lowering lowering = lowering_of(a, {});
    return model_json(a, record(a, {}, lowering), lowering);
  });
  print_result(json, rows,
               table_text({{"name", "name"},
                           {"model_type", "model_type"},
                           {"parameters", "parameters"},
                           {"layers", "num_hidden_layers"},
                           {"hidden", "hidden_size"},
                           {"KV bytes/token (fp16)", "kv_cache_bytes_per_token"}},
                          rows));
}

void show(const ModelOptions& o, const Globals& globals) {
  const Architecture a = load_model(globals.catalog(), o.model, parse_overrides(o.set));
  for (const std::string& line : config_warnings(a)) globals.warn(line);
  const Lowering lowering = lowering_of(a, o);
  if (o.pass != "prefill" && o.pass != "decode" && o.pass != "training") {
    throw Error("--pass", "'" + o.pass + "'", "prefill, decode or training");
  }
  const FindModel find_model = find_model_in(globals.catalog());
  const Recording r = record(a, parse_methods(o.method), lowering, {.find_model = find_model});
  ordered_json j = model_json(a, r, lowering);
  std::string text = plain_text(j);
  if (!o.graph.empty() || o.operators) {
    std::optional<TrainingRecording> training;
    if (o.pass == "training") {
      training = record_training(a, parse_methods(o.method), lowering, {.find_model = find_model});
    }
    const Symbols& symbols = training ? training->symbols : r.symbols;
    const Graph& graph = training              ? training->first.graph
                         : o.pass == "prefill" ? r.prefill()
                                               : r.decode();
    if (!o.graph.empty()) {
      std::ostringstream dot;
      write_dot(dot, graph, symbols, a.name + " " + o.pass);
      write_file(o.graph, dot.str());
    }
    if (o.operators) {
      const std::uint64_t batch = parse_token_count(o.batch, "--batch");
      const std::uint64_t prompt_len = parse_token_count(o.prompt_len, "--prompt-len");
      // The first decode step has what prefill left in the cache, and its own token.
      const std::uint64_t kv_len =
          o.pass == "decode" ? r.prompt_slots.at(r.symbols.resolve({batch, prompt_len, 1})) + 1
                             : prompt_len;
      j["operators"] = operators_json(graph, symbols.resolve({batch, prompt_len, kv_len}));
      text += "\n" + table_text(operator_columns, j["operators"]);
    }
  }
  print_result(o.json, j, text);
}

}  // namespace

void add_model(Command app, const Globals& globals) {
  Command command =
      app.add_subcommand("model",
                         "List and show models: the catalog or any config.json.\n\nExamples:\n"
                         "  kvcast model show llama-3.1-8b --graph llama.dot\n"
                         "  kvcast model list --json");
  command.require_subcommand(1);
  const auto options = std::make_shared<ModelOptions>();
  Command list_command = command.add_subcommand("list", "List every model of the catalog.");
  list_command.add("--json", options->json);
  list_command.callback([options, &globals] { list_models(globals, options->json); });

  Command c =
      command.add_subcommand("show", "Show one model: sizes, parameters, KV cache per token.");
  c.add("MODEL", options->model, "catalog name, config.json, or a folder with one").required();
  c.add("--json", options->json);
  c.add("--dtype", options->dtype, "dtype of weights and KV cache");
  c.add("--weight-dtype", options->weight_dtype);
  c.add("--set", options->set);
  c.add("--graph FILE.dot", options->graph, "write the operator graph (Graphviz DOT)").writes();
  c.add("--operators", options->operators, "add a row for every operator of the pass");
  c.add("--batch", options->batch, "sequences, for --operators");
  c.add("--prompt-len", options->prompt_len, "prompt tokens, for --operators");
  c.add("--pass PASS", options->pass,
        "pass in the graph or of the operators: prefill, decode (the first step) or training");
  c.add("--attention", options->attention, "attention kernel in the graph: eager or tiled");
  c.add("--method", options->method, "show the sizes and the graph with these methods");
  c.need({"--batch", "--prompt-len"}, {"--operators"});
  c.need({"--pass", "--attention"}, {"--graph", "--operators"});
  c.callback([options, &globals] { show(*options, globals); });
}

}  // namespace kvcast::cli
