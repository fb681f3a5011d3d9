#include "model/config/config_reader.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"

using namespace kvcast;
using nlohmann::json;

namespace {

// Small configs of each reader, every size different.
const json llama = json::parse(R"({"model_type": "llama", "hidden_size": 48, "vocab_size": 51,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3,
  "intermediate_size": 20, "max_position_embeddings": 128})");
const json phi3 = json::parse(R"({"model_type": "phi3", "hidden_size": 42, "vocab_size": 51,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8,
  "intermediate_size": 20, "max_position_embeddings": 131072,
  "original_max_position_embeddings": 4096})");
const json neox = json::parse(R"({"model_type": "gpt_neox", "hidden_size": 48, "vocab_size": 51,
  "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 20})");
const json openelm = json::parse(R"({"model_type": "openelm", "model_dim": 40, "vocab_size": 51,
  "num_transformer_layers": 2, "head_dim": 8, "num_query_heads": [4, 6], "num_kv_heads": [2, 3],
  "ffn_multipliers": [0.5, 1.5], "ffn_dim_divisor": 8})");
const json falcon = json::parse(R"({"model_type": "falcon", "hidden_size": 48, "vocab_size": 51,
  "num_hidden_layers": 3, "num_attention_heads": 6})");
const json gpt2 = json::parse(R"({"model_type": "gpt2", "n_embd": 42, "vocab_size": 51,
  "n_layer": 3, "n_head": 6, "n_positions": 64})");
const json opt = json::parse(R"({"model_type": "opt", "hidden_size": 42, "vocab_size": 51,
  "num_hidden_layers": 3, "num_attention_heads": 6, "ffn_dim": 20,
  "max_position_embeddings": 64})");
const json t5 = json::parse(R"({"model_type": "t5", "d_model": 42, "vocab_size": 51,
  "num_layers": 3, "num_heads": 6, "d_kv": 5, "d_ff": 20})");
const json whisper = json::parse(R"({"model_type": "whisper", "d_model": 42, "vocab_size": 51,
  "encoder_layers": 2, "encoder_attention_heads": 6, "encoder_ffn_dim": 20,
  "decoder_layers": 3, "decoder_attention_heads": 3, "decoder_ffn_dim": 22})");

struct Case {
  std::string_view name;
  const json& base;
  std::string_view patch;  ///< a JSON merge patch; a null removes the key
  std::vector<std::string_view> words;
};

std::string message_of(const json& config, const std::vector<ConfigOverride>& overrides = {}) {
  try {
    read_config(config, "tiny", "tiny.json", overrides);
  } catch (const Error& e) {
    return e.what();
  }
  return "(no Error was thrown)";
}

void check(const Case& c) {
  json config = c.base;
  config.merge_patch(json::parse(c.patch));
  const std::string line = message_of(config);
  CAPTURE(c.name);
  CAPTURE(line);
  CHECK(line.starts_with("tiny.json"));
  CHECK_FALSE(line.find('\n') != std::string::npos);
  for (const std::string_view word : c.words) {
    CAPTURE(word);
    CHECK(line.find(word) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("config_reader: the small configs of this file are valid") {
  for (const json* config : {&llama, &phi3, &neox, &openelm, &falcon, &gpt2, &opt, &t5, &whisper}) {
    CHECK(message_of(*config) == "(no Error was thrown)");
  }
}

TEST_CASE("config_reader: an entry that a family needs is missing, null, or of another kind") {
  for (const Case& c : std::vector<Case>{
           {"no hidden size", llama, R"({"hidden_size": null})", {"/hidden_size", "missing"}},
           {"no vocabulary", llama, R"({"vocab_size": null})", {"/vocab_size", "missing"}},
           {"no layers", llama, R"({"num_hidden_layers": null})", {"/num_hidden_layers"}},
           {"no heads", llama, R"({"num_attention_heads": null})", {"/num_attention_heads"}},
           {"no width", llama, R"({"intermediate_size": null})", {"/intermediate_size"}},
           {"GPT-2 without n_embd", gpt2, R"({"n_embd": null})", {"/n_embd", "missing"}},
           {"GPT-2 without positions", gpt2, R"({"n_positions": null})", {"missing"}},
           {"OPT without ffn_dim", opt, R"({"ffn_dim": null})", {"/ffn_dim", "missing"}},
           {"OPT without positions",
            opt,
            R"({"max_position_embeddings": null})",
            {"/max_position_embeddings", "missing"}},
           {"T5 without d_kv", t5, R"({"d_kv": null})", {"/d_kv", "missing"}},
           {"T5 without layers", t5, R"({"num_layers": null})", {"/num_layers", "missing"}},
           {"Whisper without decoder",
            whisper,
            R"({"decoder_layers": null})",
            {"/decoder_layers", "missing"}},
           {"OpenELM without heads",
            openelm,
            R"({"num_query_heads": null})",
            {"/num_query_heads", "missing"}},
           {"Phi-3 without context",
            phi3,
            R"({"original_max_position_embeddings": null,
                "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1]}})",
            {"/original_max_position_embeddings", "missing"}},
           {"negative", llama, R"({"hidden_size": -48})", {"/hidden_size", "got -48", "whole"}},
           {"zero", llama, R"({"num_hidden_layers": 0})", {"/num_hidden_layers", "got 0"}},
           {"zero heads", llama, R"({"num_attention_heads": 0})", {"/num_attention_heads"}},
           {"zero KV heads", llama, R"({"num_key_value_heads": 0})", {"/num_key_value_heads"}},
           {"zero head_dim", llama, R"({"head_dim": 0})", {"/head_dim", "got 0"}},
           {"zero window", phi3, R"({"sliding_window": 0})", {"/sliding_window", "got 0"}},
           {"float", llama, R"({"vocab_size": 51.5})", {"/vocab_size", "got 51.5", "whole"}},
           {"string",
            llama,
            R"({"intermediate_size": "20"})",
            {"/intermediate_size", "got \"20\"", "whole"}},
           {"bool", llama, R"({"vocab_size": true})", {"/vocab_size", "got true"}},
           {"list", llama, R"({"vocab_size": [51]})", {"/vocab_size", "got [51]"}},
           {"object", neox, R"({"intermediate_size": {"x": 1}})", {"/intermediate_size"}},
           {"string for a flag",
            llama,
            R"({"tie_word_embeddings": "yes"})",
            {"/tie_word_embeddings", "true or false"}},
           {"number for a flag", falcon, R"({"alibi": 1})", {"/alibi", "true or false"}},
           {"number for a word", llama, R"({"hidden_act": 3})", {"/hidden_act", "a string"}},
           {"negative eps", llama, R"({"rms_norm_eps": -1e-6})", {"/rms_norm_eps", "above 0"}},
           {"string eps", neox, R"({"layer_norm_eps": "1e-5"})", {"/layer_norm_eps"}},
           {"zero theta", llama, R"({"rope_theta": 0})", {"/rope_theta", "above 0"}}}) {
    check(c);
  }
}

TEST_CASE("config_reader: a number beyond all models is refused where it stands") {
  for (const Case& c : std::vector<Case>{
           {"2^41", llama, R"({"hidden_size": 2199023255552})", {"/hidden_size", "2^40"}},
           {"2^64", llama, R"({"vocab_size": 18446744073709551616})", {"/vocab_size", "2^40"}},
           {"1e30", llama, R"({"intermediate_size": 1e30})", {"/intermediate_size", "2^40"}},
           {"layers",
            llama,
            R"({"num_hidden_layers": 1000001})",
            {"/num_hidden_layers", "10000 layers"}},
           {"encoder layers",
            whisper,
            R"({"encoder_layers": 20000})",
            {"/encoder_layers", "10000 layers"}},
           {"T5 decoder layers",
            t5,
            R"({"num_decoder_layers": 20000})",
            {"/num_decoder_layers", "10000 layers"}},
           {"rotary dims", llama, R"({"head_dim": 1048576})", {"1048576 dims", "up to 65536"}},
           // 40 · 1e300 does not fit any integer type
           {"multiplier", openelm, R"({"ffn_multipliers": [0.5, 1e300]})", {"ffn_multipliers"}}}) {
    check(c);
  }
}

TEST_CASE("config_reader: entries that contradict each other are refused") {
  for (const Case& c : std::vector<Case>{
           {"KV heads",
            llama,
            R"({"num_key_value_heads": 4})",
            {"/num_key_value_heads", "got 4", "divisor of the 6"}},
           {"more KV heads than heads",
            llama,
            R"({"num_key_value_heads": 12})",
            {"/num_key_value_heads", "got 12", "divisor of the 6"}},
           {"hidden size",
            llama,
            R"({"hidden_size": 49})",
            {"/hidden_size", "got 49", "multiple of the 6"}},
           {"GPT-2 hidden size", gpt2, R"({"n_embd": 43})", {"/n_embd", "multiple of the 6"}},
           {"Whisper hidden size",
            whisper,
            R"({"decoder_attention_heads": 4})",
            {"/d_model", "multiple of the 4"}},
           {"odd head for RoPE", llama, R"({"head_dim": 7})", {"7 dims", "even"}},
           {"rotary share above 1", neox, R"({"rotary_pct": 1.5})", {"/rotary_pct", "got 1.5"}},
           {"rotary share of an odd number of dims",
            neox,
            R"({"rotary_pct": 0.4})",
            {"3 dims", "even"}},
           {"rotary share of nothing", neox, R"({"rotary_pct": 0.01})", {"0 dims", "even"}},
           {"query heads list",
            openelm,
            R"({"num_query_heads": [4]})",
            {"/num_query_heads", "2 entries"}},
           {"KV heads list",
            openelm,
            R"({"num_kv_heads": [2, 3, 3]})",
            {"/num_kv_heads", "2 entries"}},
           {"multipliers list",
            openelm,
            R"({"ffn_multipliers": [0.5, 1, 2]})",
            {"/ffn_multipliers", "2 entries"}},
           {"list that is a number",
            openelm,
            R"({"num_query_heads": 4})",
            {"/num_query_heads", "list"}},
           {"list with a zero", openelm, R"({"num_kv_heads": [2, 0]})", {"/num_kv_heads", "0"}},
           {"list with a string", openelm, R"({"num_kv_heads": [2, "3"]})", {"/num_kv_heads"}},
           {"multiplier of zero",
            openelm,
            R"({"ffn_multipliers": [0, 1]})",
            {"/ffn_multipliers", "above 0"}},
           {"OpenELM groups",
            openelm,
            R"({"num_kv_heads": [2, 4]})",
            {"/num_kv_heads", "divisors"}},
           {"Falcon 40B's groups",
            falcon,
            R"({"new_decoder_architecture": true, "num_kv_heads": 4})",
            {"/num_kv_heads", "divisor of the 6"}}}) {
    check(c);
  }
}

TEST_CASE("config_reader: what kvcast does not model is refused, not ignored") {
  for (const Case& c : std::vector<Case>{
           {"activation", llama, R"({"hidden_act": "mish"})", {"/hidden_act", "mish", "silu"}},
           {"clipped projections",
            llama,
            R"({"model_type": "olmo", "clip_qkv": 8.0})",
            {"/clip_qkv", "not modelled"}},
           {"OPT-350M's norms",
            opt,
            R"({"do_layer_norm_before": false})",
            {"/do_layer_norm_before", "not modelled"}},
           {"OPT-350M's projection",
            opt,
            R"({"word_embed_proj_dim": 21})",
            {"/word_embed_proj_dim", "21"}},
           {"GPT-2's layer scale",
            gpt2,
            R"({"scale_attn_by_inverse_layer_idx": true})",
            {"/scale_attn_by_inverse_layer_idx", "not modelled"}},
           {"T5's projection",
            t5,
            R"({"feed_forward_proj": "gated-silu"})",
            {"/feed_forward_proj", "gated-silu", "gated-gelu"}},
           {"RoPE type",
            llama,
            R"({"rope_scaling": {"rope_type": "yarn", "factor": 4}})",
            {"/rope_scaling/rope_type", "yarn", "llama3"}},
           {"RoPE without type",
            llama,
            R"({"rope_scaling": {"factor": 4}})",
            {"/rope_scaling/type", "missing"}},
           {"RoPE that is a word",
            llama,
            R"({"rope_scaling": "linear"})",
            {"/rope_scaling", "an object"}},
           {"RoPE type that is a number",
            llama,
            R"({"rope_scaling": {"type": 3}})",
            {"/rope_scaling/type", "a string"}},
           {"linear without factor",
            llama,
            R"({"rope_scaling": {"type": "linear"}})",
            {"/rope_scaling/factor", "missing"}},
           {"linear by zero",
            llama,
            R"({"rope_scaling": {"type": "linear", "factor": 0}})",
            {"/rope_scaling/factor", "above 0"}},
           {"llama3 without its bands",
            llama,
            R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})",
            {"/rope_scaling/low_freq_factor", "missing"}},
           {"llama3 upside down",
            llama,
            R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                "high_freq_factor": 1, "original_max_position_embeddings": 8192}})",
            {"/rope_scaling/high_freq_factor", "above low_freq_factor"}},
           {"longrope too short",
            phi3,
            R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1]}})",
            {"/rope_scaling/short_factor", "4 numbers"}},
           {"longrope negative",
            phi3,
            R"({"rope_scaling": {"type": "su", "short_factor": [1, 1, -1, 1]}})",
            {"/rope_scaling/short_factor", "-1"}}}) {
    check(c);
  }
}

TEST_CASE("config_reader: a model type that is unknown, near to one, or none at all") {
  for (const Case& c : std::vector<Case>{
           {"missing", llama, R"({"model_type": null})", {"/model_type", "missing"}},
           {"a number", llama, R"({"model_type": 7})", {"/model_type", "a string"}},
           {"a capital", llama, R"({"model_type": "Llama"})", {"did you mean 'llama'?"}},
           {"a typo", llama, R"({"model_type": "gpt-neox"})", {"did you mean 'gpt_neox'?"}},
           {"another family",
            llama,
            R"({"model_type": "mamba2-hybrid"})",
            {"/model_type", "mamba2-hybrid", "expected one of: llama"}},
           {"a newline", llama, R"({"model_type": "lla\nma"})", {"/model_type"}}}) {
    check(c);
  }
  for (const std::string text : {"[]", "3", "\"llama\"", "null", "[[[[]]]]"}) {
    const std::string line = message_of(json::parse(text));
    CAPTURE(text);
    CHECK(line.starts_with("tiny.json: got "));
    CHECK(line.find("config.json") != std::string::npos);
  }
  CHECK(message_of(json::parse("{}")).find("/model_type: missing") != std::string::npos);
}

TEST_CASE("config_reader: every supported type is read by its family") {
  const std::vector<std::string> types = supported_model_types();
  for (const std::string type : {"llama", "mistral", "qwen2", "olmo", "phi3", "gemma", "gemma2"}) {
    CAPTURE(type);
    CHECK(std::find(types.begin(), types.end(), type) != types.end());
    json config = llama;
    config["model_type"] = type;
    const Architecture a = read_config(config, "tiny", "tiny.json");
    CHECK(a.model_type == type);
    CHECK(a.name == "tiny");
    CHECK(a.num_hidden_layers() == 3);
  }
}

TEST_CASE("config_reader: an override replaces an entry, or adds one that the family reads") {
  const auto read = [](const std::vector<ConfigOverride>& o) {
    return read_config(llama, "tiny", "tiny.json", o);
  };
  CHECK(read({}).decoder.layers[0].heads == Heads{6, 3, 8});
  CHECK(read({{"num_key_value_heads", "2"}}).decoder.layers[0].heads == Heads{6, 2, 8});
  CHECK(
      read({{"num_key_value_heads", "2"}, {"num_key_value_heads", "1"}}).decoder.layers[0].heads ==
      Heads{6, 1, 8});                                                         // the last one holds
  CHECK(read({{"hidden_act", "gelu"}}).decoder.activation == Function::Gelu);  // a bare word
  CHECK(read({{"hidden_act", "\"relu\""}}).decoder.activation == Function::Relu);
  CHECK(read({{"tie_word_embeddings", "true"}}).tied_embeddings);
  CHECK(
      read({{"rope_scaling", R"({"type": "linear", "factor": 4})"}}).decoder.rope->position_scale ==
      4);
  CHECK(read({{"num_key_value_heads", "null"}}).decoder.layers[0].heads == Heads{6, 6, 8});
  CHECK(read({{"model_type", "olmo"}}).decoder.norm == NormKind::LayerPlain);
}

TEST_CASE("config_reader: an override of a key that the family does not read is refused") {
  const std::string line = message_of(llama, {{"num_kv_heads", "2"}});
  CAPTURE(line);
  CHECK(line.starts_with("--set num_kv_heads: unknown config key"));
  CHECK(message_of(llama, {{"num_key_value_head", "2"}})
            .find("did you mean 'num_key_value_heads'?") != std::string::npos);
  CHECK(message_of(llama, {{"sliding_window", "2"}}).starts_with("--set sliding_window"));
  CHECK(message_of(llama, {{"", "2"}}).starts_with("--set"));
}

TEST_CASE("config_reader: an override with a bad value is refused like a bad entry") {
  CHECK(message_of(llama, {{"num_key_value_heads", "4"}}).find("divisor of the 6") !=
        std::string::npos);
  CHECK(message_of(llama, {{"hidden_size", "big"}}).find("got \"big\"") != std::string::npos);
  CHECK(message_of(llama, {{"hidden_size", ""}}).find("hidden_size: ") != std::string::npos);
  CHECK(message_of(llama, {{"hidden_size", "null"}}).find("missing") != std::string::npos);
}

TEST_CASE("config: the forms of a checkpoint converted for slim attention") {
  const std::string file = std::string(KVCAST_SOURCE_DIR) + "/data/models/whisper-tiny.json";
  const auto error = [&](const char* slim) -> std::string {
    nlohmann::json config = read_json_file(file);
    config["kvcast_slim"] = nlohmann::json::parse(slim);
    try {
      read_config(config, "tiny", file);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const auto contains = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  CHECK(error(R"({"self": ["kcache", "vcache", "xcache", "plain"],
                  "cross": ["hybrid", "hybrid", "kcache", "hybrid"]})") == "");
  contains(error(R"({"self": ["plain"], "cross": []})"), "a list of 4 forms, one a layer");
  contains(error(R"({"self": ["plain", "plain", "plain", "plain"]})"), "cross");
  contains(error(R"({"self": [1, 2, 3, 4], "cross": []})"), "forms such as");
  contains(error(R"({"self": ["plain", "plain", "kcahe", "plain"], "cross": []})"), "kcache");
  contains(error(R"({"self": ["hybrid", "plain", "plain", "plain"], "cross": []})"), "layer 0");
  contains(error(R"({"self": ["plain", "plain", "plain", "plain"],
                     "cross": ["kcache", "hybrid", "plain", "plain"]})"),
           "in the first layer");
}
