#include "model/io/weights/packed_checkpoint.h"

#include <cmath>
#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "model/io/tensors/packed_weight.h"
#include "model/io/tensors/safetensors.h"
#include "model/io/weights/checkpoint.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

namespace kvcast {
namespace {

struct Tensor {
  std::string name;
  std::string type;
  std::vector<std::uint64_t> shape;
  std::string bytes;
};

std::vector<StoredTensor> stored(const std::vector<Tensor>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::string buffer;
  for (const Tensor& t : tensors) {
    const std::size_t begin = buffer.size();
    buffer += t.bytes;
    header[t.name] = {
        {"dtype", t.type}, {"shape", t.shape}, {"data_offsets", {begin, buffer.size()}}};
  }
  return read_safetensors(in_memory(safetensors_file(header.dump(), buffer), "f"));
}

Packing packing_of(const std::string& config) {
  return read_packing(JsonObject(parse_json(config, "c.json"), "c.json"));
}

std::vector<StoredTensor> united(const std::vector<Tensor>& tensors, const std::string& config) {
  return unite_packed(stored(tensors), packing_of(config));
}

std::vector<float> numbers_of(const StoredTensor& t) {
  std::vector<float> numbers(t.elements());
  read_elements(t, 0, std::span(numbers));
  return numbers;
}

std::string zeros(std::size_t bytes) { return std::string(bytes, '\0'); }

const std::string fp8 = R"({"quant_method": "fp8", "weight_block_size": [2, 3]})";
const std::string gptq = R"({"quant_method": "gptq", "bits": 4, "group_size": 4})";
const std::string awq = R"({"quant_method": "awq", "bits": 4, "group_size": 2})";

}  // namespace

TEST_CASE("packed_checkpoint: every fp8 code, scaled by its block") {
  // [4, 64]: all codes but the two NaN, blocks of 2 x 3 with scales 0, 1, 2, ...
  std::string codes;
  for (int i = 0; i < 256; ++i) codes += static_cast<char>(i % 128 == 127 ? 0 : i);
  std::vector<float> scales(2 * 22);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i);
  const std::vector<StoredTensor> all =
      united({{"m.weight", "F8_E4M3", {4, 64}, codes},
              {"m.weight_scale_inv", "F32", {2, 22}, raw_list(scales)},
              {"m.bias", "F32", {1}, raw(1.0F)}},
             fp8);
  REQUIRE(all.size() == 2);
  CHECK(all[0].name == "m.bias");
  const StoredTensor& w = all[1];
  CHECK(w.name == "m.weight");
  CHECK(w.shape == std::vector<std::uint64_t>{4, 64});
  CHECK(w.dtype == DType::FP32);  // scales of 3 inputs are no blocks of 128
  const std::vector<float> numbers = numbers_of(w);
  for (int i = 0; i < 256; ++i) {
    const int code = i % 128 == 127 ? 0 : i;
    const int exponent = code >> 3 & 15;
    const double fraction = (code & 7) / 8.0;
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1 + fraction, exponent - 7);
    const double scale = scales[static_cast<std::size_t>(i / 64 / 2 * 22 + i % 64 / 3)];
    CAPTURE(i);
    CHECK(numbers[static_cast<std::size_t>(i)] == (code >= 128 ? -magnitude : magnitude) * scale);
  }
  // From the middle of a row to that of the next one.
  std::vector<float> part(64);
  read_elements(w, 33, std::span(part));
  CHECK(std::equal(part.begin(), part.end(), numbers.begin() + 33));
}

TEST_CASE("packed_checkpoint: GPTQ's and AWQ's words, zeros and groups") {
  // Eight inputs of eight outputs. Output o has the code (i + o) mod 16 for input i, the zero o in
  // the first group and 15 - o in the second, and scales 1 and 2.
  std::vector<std::uint32_t> by_inputs(8);
  std::vector<std::uint32_t> by_outputs(8);
  std::vector<std::uint32_t> zeros_of_gptq(2);
  std::vector<std::uint32_t> zeros_of_awq(4);
  const auto code = [](unsigned o, unsigned i) { return (i + o) % 16; };
  constexpr unsigned order[] = {0, 2, 4, 6, 1, 3, 5, 7};
  for (unsigned k = 0; k < 8; ++k) {
    for (unsigned o = 0; o < 8; ++o) by_inputs[o] |= code(o, k) << 4 * k;
    for (unsigned i = 0; i < 8; ++i) by_outputs[i] |= code(order[k], i) << 4 * k;
    // Version 1 stores zeros less one, 15 for 0.
    zeros_of_gptq[0] |= (k + 15) % 16 << 4 * k;
    zeros_of_gptq[1] |= (15 - k + 15) % 16 << 4 * k;
    for (unsigned g = 0; g < 4; ++g) {
      zeros_of_awq[g] |= (g < 2 ? order[k] : 15 - order[k]) << 4 * k;
    }
  }
  std::string scales_of_gptq;
  std::string scales_of_awq;
  for (const std::uint16_t scale : std::vector<std::uint16_t>{0x3c00, 0x4000}) {
    for (int o = 0; o < 8; ++o) scales_of_gptq += raw(scale);
    for (int o = 0; o < 16; ++o) scales_of_awq += raw(scale);
  }
  std::vector<Tensor> of_gptq{{"m.qweight", "I32", {1, 8}, raw_list(by_inputs)},
                              {"m.qzeros", "I32", {2, 1}, raw_list(zeros_of_gptq)},
                              {"m.scales", "F16", {2, 8}, scales_of_gptq}};
  const std::vector<Tensor> of_awq{{"m.qweight", "I32", {8, 1}, raw_list(by_outputs)},
                                   {"m.qzeros", "I32", {4, 1}, raw_list(zeros_of_awq)},
                                   {"m.scales", "F16", {4, 8}, scales_of_awq}};
  const auto check = [&](const std::vector<StoredTensor>& all, auto group_of) {
    REQUIRE(all.size() == 1);
    CHECK(all[0].name == "m.weight");
    const std::vector<float> numbers = numbers_of(all[0]);
    for (unsigned o = 0; o < 8; ++o) {
      for (unsigned i = 0; i < 8; ++i) {
        const int zero = static_cast<int>(group_of(i) == 0 ? o : 15 - o);
        const int expected = (static_cast<int>(code(o, i)) - zero) * (group_of(i) == 0 ? 1 : 2);
        CAPTURE(o);
        CAPTURE(i);
        CHECK(numbers[8 * o + i] == static_cast<float>(expected));
      }
    }
  };
  const auto in_order = [](unsigned i) { return i / 4; };
  check(united(of_gptq, gptq), in_order);
  check(united(of_awq, awq), in_order);
  // The order of activations.
  const auto alternating = [](unsigned i) { return i % 2; };
  of_gptq.push_back({"m.g_idx", "I32", {8}, raw_list<std::uint32_t>({0, 1, 0, 1, 0, 1, 0, 1})});
  check(united(of_gptq, gptq), alternating);
  // Version 2 stores zeros as they are.
  zeros_of_gptq = {0x76543210u, 0x89abcdefu};
  of_gptq[1].bytes = raw_list(zeros_of_gptq);
  check(united(of_gptq, R"({"quant_method": "gptq", "bits": 4, "group_size": 4,
                            "checkpoint_format": "gptq_v2"})"),
        alternating);
}

TEST_CASE("packed_checkpoint: a configuration that is not read says what is") {
  const auto message = [](const std::string& config) {
    return message_of([&] { packing_of(config); });
  };
  CHECK(message(R"({"quant_method": "bitsandbytes"})") ==
        "c.json: got bitsandbytes weights, expected fp8, fbgemm_fp8, mxfp4, awq, gptq, "
        "compressed-tensors or none");
  CHECK(message(R"({"quant_method": "fp8", "fmt": "e5m2"})") ==
        "c.json: /fmt: got \"e5m2\", expected e4m3");
  CHECK(message(R"({"quant_method": "fp8", "weight_block_size": [128]})") ==
        "c.json: /weight_block_size: got [128], expected two numbers above 0");
  CHECK(message(R"({"quant_method": "gptq", "bits": 3, "group_size": 128})") ==
        "c.json: /bits: got 3, expected 4");
  CHECK(message(R"({"quant_method": "gptq", "bits": 4})").find("/group_size") != std::string::npos);
  CHECK(message(R"({"quant_method": "gptq", "bits": 4, "group_size": 128,
                    "checkpoint_format": "marlin"})") ==
        "c.json: /checkpoint_format: got \"marlin\", expected gptq or gptq_v2");
  CHECK(message(R"({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"})") ==
        "c.json: /version: got \"gemv\", expected gemm");
  const std::string compressed = R"({"quant_method": "compressed-tensors", "config_groups":
                                     {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
                                     "format": )";
  CHECK(message(compressed + R"("int-quantized"})") ==
        "c.json: /format: got \"int-quantized\", expected float-quantized or pack-quantized");
  CHECK(message(compressed + R"("pack-quantized"})") ==
        "c.json: /config_groups/group_0/weights/num_bits: got 8, expected 4 of integers");
  CHECK(message(compressed + R"("pack-quantized", "kv_cache_scheme": {"num_bits": 8}})")
            .find("/kv_cache_scheme: got ") != std::string::npos);
  CHECK(message(compressed + R"("pack-quantized", "transform_config": {"R1": {}}})") ==
        "c.json: /transform_config: got {\"R1\":{}}, expected none");
  CHECK(message(R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
                    "config_groups": {"group_0": {"weights": {"num_bits": 4,
                                                              "symmetric": false}}}})") ==
        "c.json: /config_groups/group_0/weights/symmetric: got false, expected true");
}

TEST_CASE("packed_checkpoint: tensors that are missing, of another type or shape are named") {
  const auto message = [](const std::vector<Tensor>& tensors, const std::string& config) {
    return message_of([&] { united(tensors, config); });
  };
  const Tensor codes{"m.weight", "F8_E4M3", {4, 6}, zeros(24)};
  const Tensor scales{"m.weight_scale_inv", "F32", {2, 2}, zeros(16)};
  CHECK_NOTHROW(united({codes, scales}, fp8));
  CHECK(message({codes}, fp8) ==
        "f: tensor m.weight: tensor m.weight_scale, which belongs to it, is missing");
  CHECK(message({codes, {"m.weight_scale_inv", "F32", {2, 1}, zeros(8)}}, fp8) ==
        "f: tensor m.weight_scale_inv: got shape [2, 1], expected [2, 2]");
  // Turned round it has as many numbers.
  const Tensor wide{"m.weight", "F8_E4M3", {2, 6}, zeros(12)};
  CHECK_NOTHROW(united({wide, {"m.weight_scale_inv", "F32", {1, 2}, zeros(8)}}, fp8));
  CHECK(message({wide, {"m.weight_scale_inv", "F32", {2, 1}, zeros(8)}}, fp8) ==
        "f: tensor m.weight_scale_inv: got shape [2, 1], expected [1, 2]");
  CHECK(message({codes, {"m.weight_scale_inv", "F8_E8M0", {2, 2}, zeros(4)}}, fp8) ==
        "f: tensor m.weight_scale_inv: got element type F8_E8M0, expected F32, BF16 or F16");
  CHECK(message({{"m.weight", "F8_E4M3", {2, 3, 4}, zeros(24)}, scales}, fp8) ==
        "f: tensor m.weight: got shape [2, 3, 4], expected two dimensions");

  const std::string mxfp4 = R"({"quant_method": "mxfp4"})";
  const Tensor blocks{"e_blocks", "U8", {2, 3, 1, 16}, zeros(96)};
  CHECK(message({blocks}, mxfp4) ==
        "f: tensor e_blocks: tensor e_scales, which belongs to it, is missing");
  CHECK(message({blocks, {"e_scales", "U8", {2, 3}, zeros(6)}}, mxfp4) ==
        "f: tensor e_scales: got shape [2, 3], expected [2, 3, 1]");
  CHECK(message(
            {{"e_blocks", "U8", {2, 3, 1, 8}, zeros(48)}, {"e_scales", "U8", {2, 3, 1}, zeros(6)}},
            mxfp4) == "f: tensor e_blocks: got shape [2, 3, 1, 8], expected [..., 16]");

  const Tensor words{"m.qweight", "I32", {1, 8}, zeros(32)};
  const Tensor zero_words{"m.qzeros", "I32", {2, 1}, zeros(8)};
  const Tensor halves{"m.scales", "F16", {2, 8}, zeros(32)};
  CHECK_NOTHROW(united({words, zero_words, halves}, gptq));
  CHECK(message({words, halves}, gptq) ==
        "f: tensor m.qweight: tensor m.qzeros, which belongs to it, is missing");
  CHECK(message({words, zero_words, {"m.scales", "F16", {1, 8}, zeros(16)}}, gptq) ==
        "f: tensor m.scales: got shape [1, 8], expected [2, 8]");
  CHECK(message({words, {"m.qzeros", "I32", {1, 1}, zeros(4)}, halves}, gptq) ==
        "f: tensor m.qzeros: got shape [1, 1], expected [2, 1]");
  CHECK(message({words,
                 zero_words,
                 halves,
                 {"m.g_idx", "I32", {8}, raw_list<std::uint32_t>({0, 0, 0, 0, 1, 1, 1, 2})}},
                gptq) == "f: tensor m.qweight: got an input of group 2, expected 2 groups");
  CHECK(message({words, zero_words, halves, {"m.g_idx", "I32", {4}, zeros(16)}}, gptq) ==
        "f: tensor m.qweight: got the groups of 4 inputs, expected of 8");
  const std::string compressed =
      R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
          "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 8}}}})";
  const Tensor packed{"m.weight_packed", "I32", {1, 2}, zeros(8)};
  CHECK_NOTHROW(united({packed, {"m.weight_scale", "F32", {1, 2}, zeros(8)}}, compressed));
  CHECK(message({packed, {"m.weight_scale", "F32", {1, 1}, zeros(4)}}, compressed) ==
        "f: tensor m.weight_scale: got shape [1, 1], expected [1, 2]");
  const std::string ordered =
      R"({"quant_method": "gptq", "bits": 4, "group_size": 4, "desc_act": true})";
  const std::string no_order =
      "f: tensor m.qweight: the groups of its inputs, m.g_idx, are missing; expected them with "
      "desc_act";
  CHECK_NOTHROW(united({words, zero_words, halves, {"m.g_idx", "I32", {8}, zeros(32)}}, ordered));
  CHECK(message({words, zero_words, halves}, ordered) == no_order);
  CHECK(message({words, zero_words, halves, {"m.g_idx", "I32", {0}, ""}}, ordered) == no_order);
  CHECK(message({words, zero_words, halves, {"m.weight", "F32", {1}, zeros(4)}}, gptq) ==
        "f: tensor m.weight: got the weight twice, also packed, expected each weight once");
}

TEST_CASE("packed_checkpoint: scales and codes that are no finite numbers are named") {
  const float nan = std::nanf("");
  const std::string of_rows = R"({"quant_method": "fp8"})";
  const auto weight = [&](std::string codes, float scale) {
    return united({{"m.weight", "F8_E4M3", {1, 128}, std::move(codes)},
                   {"m.weight_scale", "F32", {1, 1}, raw(scale)}},
                  of_rows)[0];
  };
  std::string codes = zeros(128);
  std::vector<std::byte> row(132);
  CHECK_NOTHROW(read_blocks(weight(codes, 1), 0, row));
  const auto message = [&](const StoredTensor& t) {
    const std::string of_numbers = message_of([&] { numbers_of(t); });
    CHECK(message_of([&] { read_blocks(t, 0, row); }) == of_numbers);
    return of_numbers;
  };
  CHECK(message(weight(codes, nan)) ==
        "f: tensor m.weight_scale, element 0: got NaN, expected finite weights");
  codes[77] = '\x7f';
  CHECK(message(weight(codes, 1)) ==
        "f: tensor m.weight, element 77: got NaN, expected finite weights");
  codes[77] = '\x7e';  // 448
  CHECK(message(weight(codes, 1e36F)) ==
        "f: tensor m.weight, element 77: got an infinity, expected finite weights");
}

TEST_CASE("packed_checkpoint: a folder with weights of another method is refused by name") {
  const TestFolder folder;
  std::ofstream(folder / "config.json")
      << R"({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 8,
             "quantization_config": {"quant_method": "hqq"}})";
  CHECK(message_of([&] {
          Checkpoint c(folder.path());
        }).find("config.json: /quantization_config: got hqq weights, expected fp8, ") !=
        std::string::npos);
}

}  // namespace kvcast
