#include "model/config/weight_types.h"

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/families/config_reader.h"
#include "model/families/gguf_config.h"
#include "model/io/files/csv_table.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/weights/catalog.h"
#include "model/io/weights/weight_map.h"
#include "model/record/recording.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"
#include "tests/near.h"

using namespace kvcast;

namespace {

const std::string source = KVCAST_SOURCE_DIR;

Architecture model(const std::string& name) {
  static const Catalog catalog(source + "/data");
  return load_model(catalog, name);
}

Recording recorded(const Architecture& a, const WeightTypes& types) {
  Lowering lowering;
  lowering.weights = types;
  return record(a, {}, lowering);
}

double bytes_of_all(const Architecture& a, const WeightTypes& types) {
  return static_cast<double>(recorded(a, types).weight_bytes.at({}));
}

std::string class_text(const std::string& name, std::size_t dimensions = 2) {
  const WeightClass w = weight_class(name, dimensions);
  return std::string(w.group) + (w.part.empty() ? "" : "." + std::string(w.part)) +
         (w.layer ? " " + std::to_string(*w.layer) : "");
}

/// The type of a weight in a Llama of 32 layers with 4 query heads for each cached one.
DType type_of(const std::string& types, const std::string& name, std::uint64_t row = 4096) {
  static const Architecture llama = model("llama-3.1-8b");
  return parse_weight_types(types).of(name, 2, row, &llama);
}

}  // namespace

TEST_CASE("weight_types: every weight has its class by its name") {
  CHECK(class_text("embedding.weight") == "embedding");
  CHECK(class_text("head.weight") == "head");
  CHECK(class_text("head.bias", 1) == "bias");
  CHECK(class_text("final_norm.weight", 1) == "norm");
  CHECK(class_text("final_norm.bias", 1) == "bias");
  CHECK(class_text("positions.weight") == "other");
  CHECK(class_text("encoder.conv1.weight", 3) == "other");
  CHECK(class_text("layers.3.query.weight") == "attention.query 3");
  CHECK(class_text("layers.3.query.bias", 1) == "bias 3");
  CHECK(class_text("layers.12.attention_output.weight") == "attention.output 12");
  CHECK(class_text("layers.3.key_up.weight") == "attention 3");
  CHECK(class_text("layers.3.query_norm.weight", 1) == "norm 3");
  CHECK(class_text("layers.3.sinks.weight", 1) == "bias 3");
  CHECK(class_text("layers.3.router.weight") == "router 3");
  CHECK(class_text("layers.3.router.correction", 1) == "bias 3");
  CHECK(class_text("layers.3.down.weight") == "mlp.down 3");
  CHECK(class_text("layers.3.experts.down.weight") == "experts.down 3");
  CHECK(class_text("layers.3.experts.gate.bias", 1) == "bias 3");
  CHECK(class_text("layers.3.shared_expert.up.weight") == "shared_expert.up 3");
  CHECK(class_text("decoder.layers.7.cross_key.weight") == "attention 7");
  CHECK(class_text("auxiliary.layers.7.key.weight") == "attention.key 7");
  CHECK(class_text("auxiliary.embedding.weight") == "embedding");
}

TEST_CASE("weight_types: a dtype is that of all weights, as before there were classes") {
  const WeightTypes fp8 = parse_weight_types("fp8");
  CHECK(fp8 == WeightTypes(DType::FP8));
  CHECK(fp8.is_uniform());
  CHECK(type_of("q4_k", "layers.3.query.weight", 100) == DType::Q4_K);
}

TEST_CASE("weight_types: the last rule for a weight counts, of its group or of its part") {
  const std::string types = "fp8,embedding=bf16,attention=fp16,value=fp32,down=int8";
  CHECK(type_of(types, "embedding.weight") == DType::BF16);
  CHECK(type_of(types, "head.weight") == DType::FP8);
  CHECK(type_of(types, "layers.0.query.weight") == DType::FP16);
  CHECK(type_of(types, "layers.0.value.weight") == DType::FP32);
  CHECK(type_of(types, "layers.0.down.weight") == DType::INT8);
  CHECK(type_of(types, "layers.0.experts.down.weight") == DType::INT8);
  CHECK(type_of("fp8,value=fp32,attention=fp16", "layers.0.value.weight") == DType::FP16);
  CHECK(type_of("q4_k_m,head=q8_0", "head.weight") == DType::Q8_0);
  CHECK(parse_weight_types(types).text == types);
}

TEST_CASE("weight_types: Q4_K_M has Q6_K for values and down products of half the layers") {
  // 32 / 8 = 4: layers 0-3, 28-31, and of those between 6, 9, ... 27.
  std::vector<int> more;
  for (int i = 0; i < 32; ++i) {
    const std::string layer = "layers." + std::to_string(i);
    const DType value = type_of("q4_k_m", layer + ".value.weight");
    CHECK(value == type_of("q4_k_m", layer + ".down.weight"));
    CHECK(type_of("q4_k_m", layer + ".up.weight") == DType::Q4_K);
    if (value == DType::Q6_K) more.push_back(i);
  }
  CHECK(more == std::vector<int>{0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31});
  CHECK(type_of("q4_k_m", "head.weight") == DType::Q6_K);
  CHECK(type_of("q4_k_m", "embedding.weight") == DType::Q4_K);
  // A tied table is quantised as the head.
  const Architecture tied = model("llama-3.2-3b");
  CHECK(parse_weight_types("q4_k_m").of("embedding.weight", 2, 3072, &tied) == DType::Q6_K);
  // Rows that are no multiple of 256 have blocks of 32, and others 16 bits.
  CHECK(type_of("q4_k_m", "layers.5.up.weight", 896) == DType::Q5_0);
  CHECK(type_of("q4_k_m", "layers.0.down.weight", 896) == DType::Q8_0);
  CHECK(type_of("q4_k_m", "layers.5.up.weight", 100) == DType::FP16);
  CHECK(type_of("iq4_xs", "layers.5.up.weight", 896) == DType::IQ4_NL);
}

TEST_CASE("weight_types: of 8 experts, GGUF mixtures keep attention wide") {
  const Architecture mixtral = model("mixtral-8x7b");
  const WeightTypes types = parse_weight_types("q4_k_m");
  const auto of = [&](const std::string& name) { return types.of(name, 2, 4096, &mixtral); };
  CHECK(of("layers.5.key.weight") == DType::Q8_0);
  CHECK(of("layers.5.value.weight") == DType::Q8_0);
  CHECK(of("layers.5.attention_output.weight") == DType::Q5_K);
  CHECK(of("layers.5.router.weight") == DType::FP32);
  CHECK(of("layers.5.experts.down.weight") == DType::Q4_K);
  CHECK(of("layers.6.experts.down.weight") == DType::Q6_K);
}

TEST_CASE("weight_types: bits of Llama 3.1 8B are those that llama.cpp prints") {
  // ggml-org/llama.cpp, tools/quantize/README.md; its file holds 64 rope factors more, of 32 bits.
  struct Printed {
    const char* types;
    double bits;
  };
  const Architecture a = model("llama-3.1-8b");
  const double parameters = static_cast<double>(recorded(a, {}).parameters);
  for (const auto& [types, bits] :
       {Printed{"q2_k", 3.1593}, Printed{"q3_k_s", 3.6429}, Printed{"q3_k_l", 4.2979},
        Printed{"iq4_xs", 4.4597}, Printed{"iq4_nl", 4.6818}, Printed{"q4_k_s", 4.6672},
        Printed{"q4_k_m", 4.8944}, Printed{"q5_k_s", 5.5704}, Printed{"q5_k_m", 5.7036},
        Printed{"q6_k", 6.5633}, Printed{"q8_0", 8.5008}}) {
    CAPTURE(types);
    const double ours = 8 * bytes_of_all(a, parse_weight_types(types)) / parameters;
    CHECK(std::abs(ours - bits) < 1e-4);
  }
}

TEST_CASE("weight_types: files are as large as published") {
  const CsvTable table = CsvTable::read(source + "/tests/model/published_weight_bytes.csv");
  CHECK(table.size() > 15);
  for (const CsvRow& row : table.rows()) {
    CAPTURE(row.text("model"));
    CAPTURE(row.text("weight_dtype"));
    const double ours =
        bytes_of_all(model(row.text("model")), parse_weight_types(row.text("weight_dtype")));
    CHECK(ours == near(row.number("published_bytes")).epsilon(0.004));
  }
}

TEST_CASE("weight_types: 8-bit checkpoints keep embedding and head in 16 bits") {
  // Llama 3.3 70B: 128,256 x 8,192 x 2 bytes each.
  const Recording r = recorded(model("llama-3.3-70b"), parse_weight_types("fp8-channel"));
  const auto bytes = [&](const char* of) { return r.weight_bytes_by_class.at(of).at({}); };
  CHECK(bytes("embedding") == std::uint64_t{2} * 128256 * 8192);
  CHECK(bytes("head") == bytes("embedding"));
  CHECK(bytes("mlp") == std::uint64_t{80} * 3 * 8192 * 28672);
  std::uint64_t sum = 0;
  for (const auto& [of, count] : r.weight_bytes_by_class) sum += count.at({});
  CHECK(sum == r.weight_bytes.at({}));
}

Architecture llama_with(const char* quantization_config) {
  return read_config({{"model_type", "llama"},
                      {"hidden_size", 64},
                      {"intermediate_size", 128},
                      {"num_hidden_layers", 2},
                      {"num_attention_heads", 4},
                      {"vocab_size", 50},
                      {"quantization_config", nlohmann::json::parse(quantization_config)}},
                     "test", "config.json");
}

TEST_CASE("weight_types: a quantization_config says how weights are stored") {
  CHECK(model("deepseek-v3").stored_weights == parse_weight_types("fp8-block"));
  CHECK(model("gpt-oss-20b").stored_weights == parse_weight_types("mxfp4"));
  for (const std::string& line : config_warnings(model("gpt-oss-20b"))) {
    CHECK_FALSE(has(line, "--weight-dtype"));
  }
  CHECK_FALSE(model("llama-3.1-8b").stored_weights);
  const auto stored = [](const char* config) {
    const Architecture a = llama_with(config);
    CHECK(config_warnings(a).empty() == a.stored_weights.has_value());
    return a.stored_weights ? a.stored_weights->text : "";
  };
  CHECK(stored(R"({"quant_method": "awq", "bits": 4, "group_size": 128})") == "awq");
  CHECK(stored(R"({"quant_method": "gptq", "bits": 4, "group_size": 64})")
            .starts_with("int4_g64,embedding=fp16"));
  CHECK(stored(R"({"quant_method": "gptq", "bits": 4, "group_size": -1})") == "");
  CHECK(stored(R"({"quant_method": "fp8"})") == "fp8-channel");
  CHECK(stored(R"({"quant_method": "fp8", "weight_block_size": [64, 64]})") == "");
  CHECK(stored(R"({"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*"],
                   "config_groups": {"group_0": {"targets": ["Linear"], "weights":
                   {"num_bits": 8, "type": "float", "strategy": "channel"}}}})") ==
        "fp8-channel,attention=bf16");
  CHECK(stored(R"({"quant_method": "compressed-tensors",
                   "config_groups": {"group_0": {"weights":
                   {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": true}}}})")
            .starts_with("q4_0,"));
  CHECK(stored(R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})") == "nvfp4");
  CHECK(stored(R"({"quant_method": "bitsandbytes", "load_in_4bit": true})") == "");
}

TEST_CASE("weight_types: a quantization_config says what products read activations in") {
  CHECK(model("deepseek-v3").stored_operands == DType::FP8);
  CHECK_FALSE(model("gpt-oss-20b").stored_operands);
  CHECK_FALSE(model("llama-3.1-8b").stored_operands);
  CHECK_FALSE(model("kimi-k2.5").stored_operands);  // "input_activations": null
  // vLLM's documentation of INT8 W8A8 and of NVIDIA's FP8 files
  CHECK(llama_with(R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
          "input_activations": {"dynamic": true, "num_bits": 8, "type": "int"},
          "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}})")
            .stored_operands == DType::INT8);
  CHECK(llama_with(R"({"quant_method": "modelopt", "quant_algo": "FP8"})").stored_operands ==
        DType::FP8);
}

TEST_CASE("weight_types: a GGUF file's weights have the types of its tensors") {
  GgufWriter w = decoder_file(
      "llama",
      {.layers = 1, .context = 100, .hidden = 256, .mlp = 256, .heads = 4, .vocabulary = 2});
  w.whole("llama.attention.head_count_kv", 2);
  w.number("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const auto add = [&](const std::string& name, std::uint64_t rows, std::uint32_t type,
                       std::uint64_t row_bytes) {
    w.tensor(name, {256, rows}, type, std::string(rows * row_bytes, '\0'));
  };
  for (const char* name : {"attn_q", "attn_output", "ffn_gate", "ffn_up"}) {
    add("blk.0." + std::string(name) + ".weight", 256, ggml_id::q4_k, 144);
  }
  add("blk.0.attn_k.weight", 128, ggml_id::q4_k, 144);
  add("blk.0.attn_v.weight", 128, ggml_id::q8_0, 272);
  add("blk.0.ffn_down.weight", 256, ggml_id::q5_k, 176);
  for (const char* name : {"blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"}) {
    w.zeros(std::string(name) + ".weight", {256});
  }
  const GgufFile file = read_gguf(in_memory(w.bytes(), "m.gguf"));
  const Architecture a = read_config(gguf_config(file), "test", "m.gguf");
  const WeightTypes types = gguf_weight_types(file, a);
  CHECK(types.main == DType::Q4_K);
  std::uint64_t stored = 0;
  for (const StoredTensor& t : file.tensors) stored += t.bytes.size();
  CHECK(recorded(a, types).weight_bytes.at({}) == stored);
  // Weights that the file does not have, as those of methods, are as most of it.
  CHECK(types.of("layers.7.rest.weight", 2, 256, &a) == DType::Q4_K);
}

TEST_CASE("weight_types: what no class, type or preset is gets the nearest") {
  const auto refusal = [](const char* text) {
    return message_of([&] { parse_weight_types(text); });
  };
  CHECK(refusal("q4_k_mm") == "unknown dtype 'q4_k_mm'; did you mean 'q4_k_m'?");
  CHECK(refusal("fp8,embeding=bf16") ==
        "unknown class of weights 'embeding'; did you mean 'embedding'?");
  CHECK(refusal("fp8,head=bf61") == "unknown dtype 'bf61'; did you mean 'bf16'?");
  CHECK(refusal("fp8,bf16") == "'bf16' after the first type; expected CLASS=DTYPE");
  CHECK(refusal("").starts_with("unknown dtype ''"));
  CHECK(refusal("fp8,") == "'' after the first type; expected CLASS=DTYPE");
  CHECK(refusal("fp8,value@more=bf16").starts_with("unknown condition 'more'"));
}

TEST_CASE("weight_types: every preset can be read, and names its source") {
  for (const WeightPreset& p : weight_presets()) {
    CAPTURE(p.name);
    const WeightTypes types = parse_weight_types(p.name);
    CHECK(types.text == p.name);
    CHECK_FALSE(types.is_uniform());
    CHECK_FALSE(p.source.empty());
  }
}
