#include "model/methods/mlkv.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/config/layer_pruning.h"
#include "model/families/config_reader.h"
#include "model/graph/work.h"
#include "model/io/files/csv_table.h"
#include "model/io/weights/weight_map.h"
#include "model/record/recording.h"
#include "tests/model/message_of.h"
#include "tests/model/tiny_models.h"

namespace kvcast {
namespace {

using nlohmann::json;

json neox_config() {
  return json::parse(R"({"model_type": "gpt_neox", "hidden_size": 24, "vocab_size": 51,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_key_value_layers": 3, "intermediate_size": 20, "rotary_pct": 0.34})");
}

json llama_config() {
  return json::parse(R"({"model_type": "llama", "hidden_size": 48, "vocab_size": 51,
    "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 100})");
}

Architecture read(const json& config) { return read_config(config, "tiny", "tiny.json"); }

std::string refusal(const Architecture& a, const std::string& method) {
  return message_of([&] { record(a, parse_methods(method), {}); });
}

TEST_CASE("mlkv: the parameters of Pythia-160M's nine variants are those of the paper's Table 2") {
  const Architecture pythia = load_model(catalog(), "pythia-160m");
  const CsvTable table = CsvTable::read(catalog().root() / "published/mlkv_table2_variants.csv");
  CHECK(table.size() == 9);
  for (const CsvRow& row : table.rows()) {
    CAPTURE(row.line());
    for (const char* widen : {"copy", "preserve"}) {
      const std::string method = "mlkv:layers=" + row.text("n_layers_with_kv_m") +
                                 ",heads=" + row.text("n_kv_groups_g") + ",widen=" + widen;
      const Recording r = record(pythia, parse_methods(method), {});
      CHECK(r.parameters == row.whole("n_params"));
      // Keys and values of 2 bytes in heads of 64.
      CHECK(r.kv_cache_bytes_per_token == Count(2 * 2 * 64 * row.whole("total_kv_heads")));
    }
  }
}

TEST_CASE("mlkv: MLPs widen by the neurons that the authors' script prints") {
  const Architecture pythia = load_model(catalog(), "pythia-160m");
  const auto added = [&](std::uint64_t layers, std::uint64_t heads) {
    return added_neurons(pythia, {layers, heads});
  };
  CHECK(added(12, 12) == 0);
  CHECK(added(12, 4) == 512);
  CHECK(added(4, 3) == 705);
  CHECK(added(6, 1) == 737);
  CHECK(added(4, 1) == 747);
  CHECK(added(2, 1) == 758);
  CHECK(added(1, 1) == 763);
  CHECK(added_neurons(pythia, {1, 1, MlpWidening::None}) == 0);
}

TEST_CASE("mlkv: a gated MLP's neurons have three matrices") {
  // 4 layers of 3 heads of 8 less 2 layers of 1 head: 10 heads of 2 · 48 · 8 = 768 numbers, 7680;
  // 1920 a layer, 40 rows of 48, 13 neurons of three.
  const Architecture a = read(llama_config());
  CHECK(added_neurons(a, {2, 1}) == 13);
  const Architecture m = to_mlkv(a, {2, 1});
  CHECK(m.decoder.layers[3].intermediate_size == 113);
  CHECK(count_parameters(a) - count_parameters(m) == 7680 - 4 * 13 * 3 * 48);
  // With biases of 8 a head, 10 · (768 + 16) = 7840, 1960 a layer, 40.8 rows, 41, 13 neurons.
  json biased = llama_config();
  biased["attention_bias"] = true;
  CHECK(added_neurons(read(biased), {2, 1}) == 13);
  CHECK(count_parameters(read(biased)) - count_parameters(to_mlkv(read(biased), {2, 1})) ==
        7840 - 4 * 13 * 3 * 48);
}

TEST_CASE("mlkv: halves are rounded to even, as Python's round does") {
  // 16 layers of 11 heads of 2 less 2 layers of them: 154 heads of 2 · 22 · 2 numbers, 847 a layer,
  // 38.5 rows of 22: 38, 12 neurons of three. Rounded away from zero it would be 13.
  json config = llama_config();
  config["hidden_size"] = 22;
  config["num_hidden_layers"] = 16;
  config["num_attention_heads"] = config["num_key_value_heads"] = 11;
  CHECK(added_neurons(read(config), {2, 11}) == 12);
}

TEST_CASE("mlkv: the authors' config says which layers have keys and values, and with how many") {
  for (const char* type : {"gpt_neox", "gpt_neox_mlkv"}) {
    json config = neox_config();
    config["model_type"] = type;
    const Architecture a = read(config);
    CHECK(a.model_type == "gpt_neox");
    CHECK(a.decoder.num_key_value_layers == 3);
    CHECK(a.decoder.shared_keys == SharedKeys::Rotated);
    std::vector<int> owners;
    for (const LayerShape& layer : a.decoder.layers) {
      CHECK(layer.heads == Heads{4, 2, 6});
      owners.push_back(layer.kv_layer ? static_cast<int>(*layer.kv_layer) : -1);
    }
    CHECK(owners == std::vector<int>{-1, 0, -1, 2, -1, 4});
  }
}

TEST_CASE("mlkv: a config's semantics are those of the paper unless it says otherwise") {
  json config = neox_config();
  config["mlkv_semantics"] = "released";
  CHECK(read(config).decoder.shared_keys == SharedKeys::Released);
  config["mlkv_semantics"] = "both";
  CHECK(has(message_of([&] { read(config); }), "/mlkv_semantics: got \"both\", expected paper"));
}

TEST_CASE("mlkv: a config that says the impossible is refused") {
  const auto refused = [](const char* key, const json& value, const std::string& part) {
    for (json config : {neox_config(), llama_config()}) {
      config["num_key_value_layers"] = 2;
      config[key] = value;
      CAPTURE(config);
      CHECK(has(message_of([&] { read(config); }), part));
    }
  };
  refused("num_key_value_layers", 5, "num_key_value_layers: got 5, expected a divisor of the");
  refused("num_key_value_layers", 100, "num_key_value_layers: got 100, expected a divisor");
  refused("num_key_value_layers", 0, "num_key_value_layers");
  refused("num_key_value_layers", "two", "num_key_value_layers");
  refused("num_key_value_heads", 5, "num_key_value_heads");
  refused("use_key_value_mlp", true, "use_key_value_mlp");
  json nameless = neox_config();
  nameless["model_type"] = "gpt_neox_mlkv";
  nameless.erase("num_key_value_layers");
  CHECK(has(message_of([&] { read(nameless); }), "num_key_value_layers"));
}

TEST_CASE("mlkv: weights have the authors' names, and Llama's own in Llama") {
  const auto first = [](const json& config, const char* weight) {
    return huggingface_weight(read(config), weight).names.front();
  };
  const json neox = neox_config();
  CHECK(first(neox, "layers.1.query.weight") == "gpt_neox.layers.1.attention.query.weight");
  CHECK(first(neox, "layers.2.key.bias") == "gpt_neox.layers.2.attention.key.bias");
  CHECK(first(neox, "layers.2.value.weight") == "gpt_neox.layers.2.attention.value.weight");
  CHECK(first(neox, "layers.2.attention_output.weight") ==
        "gpt_neox.layers.2.attention.dense.weight");
  CHECK(huggingface_weight(read(neox), "layers.2.key.weight").rows.empty());
  json llama = llama_config();
  llama["num_key_value_layers"] = 2;
  CHECK(first(llama, "layers.2.key.weight") == "model.layers.2.self_attn.k_proj.weight");
}

TEST_CASE("mlkv: only layers that own keys and values have weights and a cache for them") {
  const Recording r = record(read(neox_config()), {}, {});
  std::vector<std::string> caches;
  std::vector<std::string> projections;
  for (const TensorInfo& t : r.decode().tensors()) {
    if (t.storage == Storage::KvCache && !t.producer) {
      caches.push_back(t.name);
      CHECK(t.shape[2] == Count(2 * 6));
    }
    if (has(t.name, ".key.weight")) projections.push_back(t.name);
  }
  CHECK(caches == std::vector<std::string>{"layers.0.keys", "layers.0.values", "layers.2.keys",
                                           "layers.2.values", "layers.4.keys", "layers.4.values"});
  CHECK(projections == std::vector<std::string>{"layers.0.key.weight", "layers.2.key.weight",
                                                "layers.4.key.weight"});
  // 2·b·s·m·g·hd elements of 2 bytes.
  const SymbolValues at = r.symbols.resolve({3, 7, 11});
  CHECK(r.kv_cache_bytes.at(at) == 2 * 3 * 11 * 3 * 2 * 6 * 2);
}

TEST_CASE("mlkv: the released semantics copies keys in decoding, not in a prompt of one piece") {
  const auto joins = [](const Graph& graph) {
    int count = 0;
    for (const Node& node : graph.nodes()) {
      if (std::holds_alternative<JoinRows>(node.op)) ++count;
    }
    return count;
  };
  const Recording paper = record(read(neox_config()), {}, {});
  const Recording released =
      record(read(neox_config()), parse_methods("mlkv:layers=3,heads=2,semantics=released"), {});
  CHECK(joins(paper.prefill()) + joins(paper.decode()) == 0);
  CHECK(joins(released.prefill()) == 0);
  CHECK(joins(released.decode()) == 3);
  // Each join reads and writes the keys of kv_len tokens: batch · kv_len · 12 · 2 bytes.
  const SymbolValues at = paper.symbols.resolve({3, 7, 11});
  CHECK(total_work(released.decode()).bytes().at(at) - total_work(paper.decode()).bytes().at(at) ==
        3 * 2 * (3 * 11 * 12 * 2));
  CHECK(released.kv_cache_bytes == paper.kv_cache_bytes);
}

TEST_CASE("mlkv: a model that is so already, or that loses nothing, stays as it is") {
  const Architecture a = read(neox_config());
  const Recording same = record(a, parse_methods("mlkv:layers=3,heads=2"), {});
  CHECK(same.conversion.empty());
  CHECK(same.parameters == count_parameters(a));
  json plain = neox_config();
  plain.erase("num_key_value_layers");
  const Recording whole = record(read(plain), parse_methods("mlkv:layers=6,heads=2"), {});
  CHECK(whole.conversion.empty());
  CHECK(whole.model.decoder.num_key_value_layers == 0);
  CHECK(record(read(plain), parse_methods("mlkv:layers=2,heads=1"), {}).conversion ==
        "kvcast convert mlkv IN OUT --kv-layers 2 --kv-heads 1");
}

TEST_CASE("mlkv: what does not divide, or has no such form, is refused") {
  const Architecture llama = read(llama_config());
  CHECK(has(refusal(llama, "mlkv:layers=3,heads=1"),
            "got 3 key-value layers, expected a divisor of its 4 layers: 1, 2, 4"));
  CHECK(has(refusal(llama, "mlkv:layers=8,heads=1"), "got 8 key-value layers"));
  CHECK(has(refusal(llama, "mlkv:layers=2,heads=2"),
            "got 2 key-value heads, expected a divisor of its 3 in each layer: 1, 3"));
  CHECK(has(refusal(llama, "mlkv:layers=2,heads=6"), "got 6 key-value heads"));
  CHECK(has(refusal(llama, "mlkv:layers=0,heads=1"), "option layers"));
  CHECK(has(refusal(llama, "mlkv:heads=1"), "option 'layers' is missing"));
  CHECK(has(refusal(llama, "mlkv:layers=2,heads=1,widen=more"), "unknown widening 'more'"));
  CHECK(has(refusal(llama, "mlkv:layers=2,heads=1,semantics=mine"), "unknown semantics"));
  CHECK(has(refusal(read(neox_config()), "mlkv:layers=2,heads=2"), "an MLKV model already"));
  CHECK(has(refusal(load_model(catalog(), "openelm-3b"), "mlkv:layers=1,heads=1"),
            "layer 4 with 4 key-value heads of 128, and layer 0 with 3 of 128"));
  CHECK(has(refusal(load_model(catalog(), "granite-4.0-h-small"), "mlkv:layers=1,heads=1"),
            "a model with layers that keep a state"));
  CHECK(has(refusal(load_model(catalog(), "whisper-large-v3"), "mlkv:layers=1,heads=1"),
            "a model with an encoder"));
  CHECK(has(refusal(load_model(catalog(), "deepseek-v3"), "mlkv:layers=1,heads=1"),
            "caches latents, which all its heads share already"));
  // A group's layers read one cache of rotated keys, all or a window of it.
  CHECK(has(refusal(load_model(catalog(), "smollm3-3b"), "mlkv:layers=9,heads=1"),
            "layers 0 and 3 differ in their rotations"));
  CHECK(has(refusal(load_model(catalog(), "gemma-3-1b"), "mlkv:layers=13,heads=1"),
            "layers 4 and 5 differ in their"));
  CHECK(has(refusal(load_model(catalog(), "gpt-oss-20b"), "mlkv:layers=12,heads=1"),
            "layers 0 and 1 differ in their windows"));
  CHECK(record(load_model(catalog(), "gpt-oss-20b"), parse_methods("mlkv:layers=24,heads=1"), {})
            .conversion == "kvcast convert mlkv IN OUT --kv-layers 24 --kv-heads 1 --widen none");
  CHECK(has(refusal(load_model(catalog(), "qwen3-30b-a3b"), "mlkv:layers=1,heads=1,widen=copy"),
            "experts to widen"));
  json narrow = llama_config();
  narrow["intermediate_size"] = 9;
  CHECK(has(refusal(read(narrow), "mlkv:layers=2,heads=1"), "MLPs of 9 neurons"));
}

TEST_CASE("mlkv: methods that need each layer's own keys refuse an MLKV model") {
  const Architecture a = read(neox_config());
  CHECK(has(refusal(a, "streaming:sinks=2,window=6"), "layers read the keys and values of others"));
  const std::vector<std::size_t> kept{0, 1};
  CHECK(has(message_of([&] { prune_layers(a, kept); }), "whose layers share keys"));
}

}  // namespace
}  // namespace kvcast
