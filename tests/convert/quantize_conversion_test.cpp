#include "model/convert/quantize_conversion.h"

#include <cmath>
#include <fstream>
#include <map>
#include <random>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "model/io/tensors/block_writer.h"
#include "model/io/tensors/gguf.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

namespace kvcast {
namespace {

struct FileShape {
  std::uint64_t hidden = 64;
  std::uint64_t mlp = 256;
  std::uint32_t layers = 8;
  bool tied = true;
  std::uint32_t experts = 0;
  std::string architecture = "llama";
};

std::string random_floats(std::uint64_t count) {
  static std::mt19937 random(3);
  std::vector<float> numbers(count);
  for (float& x : numbers) x = std::ldexp(static_cast<float>(random() % 2001) - 1000, -14);
  return raw_list(numbers);
}

GgufWriter file_of(const FileShape& s) {
  GgufWriter w = decoder_file(s.architecture, {.layers = s.layers,
                                               .hidden = static_cast<std::uint32_t>(s.hidden),
                                               .mlp = static_cast<std::uint32_t>(s.mlp)});
  w.whole("general.file_type", 0);
  w.texts("tokenizer.ggml.tokens", {"a", "b"});
  if (s.experts > 0) w.whole(s.architecture + ".expert_count", s.experts);
  const auto tensor = [&](const std::string& name, std::vector<std::uint64_t> dims) {
    std::uint64_t count = 1;
    for (const std::uint64_t n : dims) count *= n;
    w.tensor(name, dims, ggml_id::f32, random_floats(count));
  };
  if (!s.tied) tensor("output.weight", {s.hidden, 50});
  tensor("output_norm.weight", {s.hidden});
  for (std::uint32_t i = 0; i < s.layers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    for (const char* const part : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
      tensor(layer + part + ".weight", {s.hidden, 32});
    }
    tensor(layer + "attn_norm.weight", {s.hidden});
    tensor(layer + "ffn_gate_inp.weight", {s.hidden, 4});
    tensor(layer + "ffn_up.weight", {s.hidden, s.mlp});
    tensor(layer + "ffn_down.weight", {s.mlp, s.hidden});
  }
  return w;
}

void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

struct Converted {
  GgufFile before;
  GgufFile after;
  QuantizeReport report;
};
Converted convert(const TestFolder& folder, const GgufWriter& w, QuantizeConversion conversion) {
  write_bytes(folder / "in.gguf", w.bytes());
  const QuantizeReport report =
      quantize_checkpoint(folder / "in.gguf", folder / "out.gguf", conversion);
  return {read_gguf(MappedFile::open(folder / "in.gguf")),
          read_gguf(MappedFile::open(folder / "out.gguf")), report};
}

std::string type_of(const GgufFile& file, const std::string& name) {
  REQUIRE(file.has(name));
  return file.find(name)->type;
}

}  // namespace

TEST_CASE("quantize: the numbers are blocks of the source's, all else stays") {
  for (const auto& [type, dtype, number] : {std::tuple{QuantizedType::Q8_0, DType::Q8_0, 7u},
                                            {QuantizedType::Q4_0, DType::Q4_0, 2u},
                                            {QuantizedType::BF16, DType::BF16, 32u},
                                            {QuantizedType::FP16, DType::FP16, 1u}}) {
    const TestFolder folder;
    CAPTURE(name(dtype));
    GgufWriter w = file_of({});
    w.tensor("blk.0.ids", {3}, 26, raw_list<std::int32_t>({1, 2, 3}));  // I32
    const Converted c = convert(folder, w, {type});
    const GgufMetadata& m = c.after.metadata;
    CHECK(m.whole("general.file_type") == number);
    CHECK(m.whole("general.quantization_version") == 2);
    CHECK(m.keys().size() == c.before.metadata.keys().size() + 1);
    CHECK(m.texts("tokenizer.ggml.tokens") == std::vector<std::string_view>{"a", "b"});
    CHECK(m.text("general.name") == "Test model");
    REQUIRE(c.after.tensors.size() == c.before.tensors.size());
    const std::string kind(ggml_type_name(dtype));
    double squared = 0;
    std::uint64_t parameters = 0;
    for (std::size_t i = 0; i < c.before.tensors.size(); ++i) {
      const StoredTensor& from = c.before.tensors[i];
      const StoredTensor& to = c.after.tensors[i];
      CAPTURE(from.name);
      CHECK(to.name == from.name);
      CHECK(to.shape == from.shape);
      const bool stays = from.shape.size() < 2 || from.name.find("ffn_gate_inp") < 100;
      // A tied embedding is the head too.
      const bool wide = from.name == "token_embd.weight" && type == QuantizedType::Q4_0;
      if (stays) {
        CHECK(to.type == from.type);
        CHECK(std::ranges::equal(to.bytes, from.bytes));
        continue;
      }
      CHECK(to.type == (wide ? "Q8_0" : kind));  // 64 numbers are no row of Q6_K
      std::vector<float> numbers(from.elements());
      read_elements(from, 0, std::span(numbers));
      std::vector<std::byte> blocks(to.bytes.size());
      write_blocks(*to.dtype, numbers, blocks);
      CHECK(std::ranges::equal(to.bytes, blocks));
      std::vector<float> read(from.elements());
      read_elements(to, 0, std::span(read));
      if (wide) continue;
      parameters += from.elements();
      for (std::size_t k = 0; k < read.size(); ++k) {
        squared += std::pow(static_cast<double>(read[k]) - numbers[k], 2);
      }
    }
    bool found = false;
    for (const RetypedTensors& t : c.report.types) {
      if (t.to != kind) continue;
      found = true;
      CHECK(t.from == "F32");
      CHECK(t.parameters == parameters);
      CHECK(t.mean_squared_error() == doctest::Approx(squared / static_cast<double>(parameters)));
      CHECK(t.bytes_before == 4 * parameters);
      CHECK(t.bytes_after == parameters / static_cast<unsigned>(width(dtype).block_elements) *
                                 static_cast<unsigned>(width(dtype).block_bits) / 8);
    }
    CHECK(found);
  }
}

TEST_CASE("quantize: Q4_K_M's mixture is llama.cpp's") {
  const TestFolder folder;
  // 8 layers: the first eighth, the last eighth and every third between them have more bits.
  const auto more = [](unsigned i) { return i == 0 || i == 3 || i == 6 || i == 7; };
  SUBCASE("rows of whole blocks, an own head") {
    const GgufFile f =
        convert(folder, file_of({.hidden = 256, .tied = false}), {QuantizedType::Q4_K_M}).after;
    CHECK(f.metadata.whole("general.file_type") == 15);
    CHECK(type_of(f, "output.weight") == "Q6_K");
    CHECK(type_of(f, "token_embd.weight") == "Q4_K");
    for (unsigned i = 0; i < 8; ++i) {
      CAPTURE(i);
      const std::string layer = "blk." + std::to_string(i) + ".";
      for (const char* const part : {"attn_q", "attn_k", "attn_output", "ffn_up"}) {
        CHECK(type_of(f, layer + part + ".weight") == "Q4_K");
      }
      CHECK(type_of(f, layer + "attn_v.weight") == (more(i) ? "Q6_K" : "Q4_K"));
      CHECK(type_of(f, layer + "ffn_down.weight") == (more(i) ? "Q6_K" : "Q4_K"));
      CHECK(type_of(f, layer + "ffn_gate_inp.weight") == "F32");
    }
  }
  SUBCASE("rows of 64 have blocks of 32, rows of 40 none") {
    const GgufFile f = convert(folder, file_of({.mlp = 40}), {QuantizedType::Q4_K_M}).after;
    CHECK(type_of(f, "token_embd.weight") == "Q8_0");
    for (unsigned i = 0; i < 8; ++i) {
      CAPTURE(i);
      const std::string layer = "blk." + std::to_string(i) + ".";
      CHECK(type_of(f, layer + "attn_q.weight") == "Q5_0");
      CHECK(type_of(f, layer + "attn_v.weight") == (more(i) ? "Q8_0" : "Q5_0"));
      CHECK(type_of(f, layer + "ffn_down.weight") == "F16");
    }
  }
  SUBCASE("of eight experts, attention is wider") {
    const GgufFile f =
        convert(folder, file_of({.hidden = 256, .experts = 8}), {QuantizedType::Q4_K_M}).after;
    CHECK(type_of(f, "blk.1.attn_q.weight") == "Q4_K");
    CHECK(type_of(f, "blk.1.attn_k.weight") == "Q8_0");
    CHECK(type_of(f, "blk.1.attn_v.weight") == "Q8_0");
    CHECK(type_of(f, "blk.1.attn_output.weight") == "Q5_K");
  }
  SUBCASE("Falcon") {
    const GgufFile f =
        convert(folder, file_of({.hidden = 256, .layers = 16, .architecture = "falcon"}),
                {QuantizedType::Q4_K_M})
            .after;
    CHECK(type_of(f, "token_embd.weight") == "Q8_0");
    CHECK(type_of(f, "blk.0.ffn_down.weight") == "Q6_K");
    CHECK(type_of(f, "blk.1.ffn_down.weight") == "Q5_K");
    CHECK(type_of(f, "blk.2.ffn_down.weight") == "Q4_K");
  }
}

TEST_CASE("quantize: what cannot be converted is refused, and nothing is written") {
  const TestFolder folder;
  const auto message = [&](const GgufWriter& w, QuantizedType type, const char* out) {
    write_bytes(folder / "in.gguf", w.bytes());
    const std::string text =
        message_of([&] { quantize_checkpoint(folder / "in.gguf", folder.path() / out, {type}); });
    CHECK(folder.num_files() == 1);
    return text;
  };
  CHECK(message(file_of({}), QuantizedType::Q8_0, "out")
            .find("out: got the name of an output without .gguf, expected a .gguf file") !=
        std::string::npos);
  GgufWriter split = file_of({});
  split.value("split.count", gguf_id::uint16, raw(std::uint16_t{2}));
  CHECK(message(split, QuantizedType::Q8_0, "out.gguf").find("metadata split.count: got 2") !=
        std::string::npos);
  GgufWriter quantised = file_of({});
  quantised.tensor("blk.0.attn_gate.weight", {32, 2}, ggml_id::q4_0, std::string(36, '\0'));
  CHECK(message(quantised, QuantizedType::Q8_0, "out.gguf")
            .find("tensor blk.0.attn_gate.weight: got element type Q4_0, expected F32, F16 or "
                  "BF16") != std::string::npos);
  GgufWriter large = file_of({});
  large.tensor("blk.0.attn_gate.weight", {2, 2}, ggml_id::f32, raw_list<float>({1, 2, 1e6F, 3}));
  CHECK(message(large, QuantizedType::FP16, "out.gguf")
            .find("tensor blk.0.attn_gate.weight: a number to write: got 1000000, expected at "
                  "most 65504") != std::string::npos);
  GgufWriter infinite = file_of({});
  infinite.tensor("blk.0.attn_gate.weight", {32, 2}, ggml_id::f32,
                  raw_list(std::vector<float>(64, INFINITY)));
  CHECK(message(infinite, QuantizedType::Q8_0, "out.gguf").find("element 0: got an infinity") !=
        std::string::npos);
  GgufWriter unknown = file_of({});
  unknown.tensor("blk.0.attn_gate.weight", {32, 2}, 77, std::string(64, '\0'));
  CHECK(message(unknown, QuantizedType::Q8_0, "out.gguf").find("ggml type 77") !=
        std::string::npos);
  const std::filesystem::path oracle = std::filesystem::path(KVCAST_SOURCE_DIR) / "tests/oracle";
  const std::string of_folder = message_of(
      [&] { quantize_checkpoint(oracle / "llama_mha", folder / "new", {QuantizedType::Q4_0}); });
  CHECK(of_folder ==
        "--type: got q4_0 for a folder, expected bf16 or fp16; llama.cpp's convert_hf_to_gguf.py "
        "makes a GGUF file of a folder, which can be of this type");
  CHECK(message_of([] { parse_quantized_type("q4_k"); }).find("did you mean 'q4_k_m'?") !=
        std::string::npos);
}

TEST_CASE("quantize: with leave, also what is quantised already") {
  const TestFolder folder;
  GgufWriter w = file_of({});
  w.tensor("blk.0.attn_gate.weight", {32, 2}, ggml_id::q4_0, std::string(36, '\0'));
  const Converted c = convert(folder, w, {QuantizedType::Q8_0, true});
  CHECK(type_of(c.after, "blk.0.attn_gate.weight") == "Q8_0");
}

TEST_CASE("quantize: a folder becomes one of bf16 or fp16") {
  const std::filesystem::path oracle = std::filesystem::path(KVCAST_SOURCE_DIR) / "tests/oracle";
  for (const char* const name :
       {"llama_sharded", "llama_extra_tensors", "gpt_neox", "packed/gptq", "packed/mxfp4"}) {
    for (const QuantizedType type : {QuantizedType::BF16, QuantizedType::FP16}) {
      const TestFolder folder;
      CAPTURE(name);
      quantize_checkpoint(oracle / name, folder / "new", {type});
      const nlohmann::json config = read_json_file(folder.path() / "new" / "config.json");
      const char* const dtype = type == QuantizedType::BF16 ? "bfloat16" : "float16";
      CHECK(config.at(config.contains("dtype") ? "dtype" : "torch_dtype") == dtype);
      CHECK(!config.contains("quantization_config"));
      const Checkpoint before(oracle / name);
      const Checkpoint after(folder / "new");
      const Recording recording = record(before.architecture(), {}, {});
      check_source(after, recording);
      for (const auto& [weight, info] : weights_of(recording)) {
        CAPTURE(weight);
        std::vector<float> expected(info.elements().constant());
        std::vector<float> found(expected.size());
        before.reader(weight).read_rows(0, std::span(expected));
        after.reader(weight).read_rows(0, std::span(found));
        bool same = true;
        for (std::size_t i = 0; i < found.size(); ++i) {
          // The nearest of 8 or 11 bits; numbers this small are subnormal halves.
          const int bits = type == QuantizedType::BF16 ? 8 : 11;
          const double x = expected[i];
          int exponent = 0;
          std::frexp(x, &exponent);
          if (type == QuantizedType::FP16) exponent = std::max(exponent, -13);
          const double unit = std::ldexp(1.0, exponent - bits);
          same = same && found[i] == std::nearbyint(x / unit) * unit;
        }
        CHECK(same);
      }
    }
  }
}

}  // namespace kvcast
