#include "model/io/weights/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/io/tensors/safetensors.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

using namespace kvcast;
namespace fs = std::filesystem;

namespace {

using Shape = std::vector<std::uint64_t>;

struct Tensor {
  Shape shape;
  std::vector<float> data;
};

/// Element i is first + i.
Tensor counting(const Shape& shape, float first) {
  Tensor t{shape, {}};
  t.data.resize(
      std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<std::size_t>()));
  std::iota(t.data.begin(), t.data.end(), first);
  return t;
}

/// A checkpoint on the disk for the time of a test.
class Folder {
 public:
  explicit Folder(const std::string& config) { std::ofstream(path() / "config.json") << config; }

  const fs::path& path() const { return folder_.path(); }
  std::string weights() const { return (path() / "model.safetensors").string(); }
  Checkpoint write(const std::map<std::string, Tensor>& tensors) const {
    std::vector<TensorToWrite> list;
    for (const auto& [name, t] : tensors) list.push_back({name, t.shape, t.data});
    return write_bytes(safetensors_bytes(list));
  }
  Checkpoint write_bytes(const std::string& bytes) const {
    std::ofstream(weights(), std::ios::binary) << bytes;
    return Checkpoint(path());
  }

 private:
  TestFolder folder_;
};

// Hidden 12, 6 heads of 2 over 3, MLP 5, vocabulary 7.
const char* const llama_config = R"({"model_type": "llama", "hidden_size": 12,
    "intermediate_size": 5, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 3, "vocab_size": 7, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": true})";

/// Weight of the forward pass -> tensor of the file, with its shape.
struct Weight {
  std::string name;
  std::string stored;
  Shape shape;
};

std::vector<Weight> llama_weights() {
  std::vector<Weight> w{{"embedding.weight", "model.embed_tokens.weight", {7, 12}},
                        {"final_norm.weight", "model.norm.weight", {12}}};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    const std::string stored = "model." + layer;
    w.push_back({layer + "query.weight", stored + "self_attn.q_proj.weight", {12, 12}});
    w.push_back({layer + "key.weight", stored + "self_attn.k_proj.weight", {6, 12}});
    w.push_back({layer + "value.weight", stored + "self_attn.v_proj.weight", {6, 12}});
    w.push_back({layer + "attention_output.weight", stored + "self_attn.o_proj.weight", {12, 12}});
    w.push_back({layer + "gate.weight", stored + "mlp.gate_proj.weight", {5, 12}});
    w.push_back({layer + "up.weight", stored + "mlp.up_proj.weight", {5, 12}});
    w.push_back({layer + "down.weight", stored + "mlp.down_proj.weight", {12, 5}});
    w.push_back({layer + "attention_norm.weight", stored + "input_layernorm.weight", {12}});
    w.push_back({layer + "mlp_norm.weight", stored + "post_attention_layernorm.weight", {12}});
  }
  return w;
}

std::map<std::string, Tensor> llama_tensors() {
  std::map<std::string, Tensor> tensors;
  for (const Weight& w : llama_weights()) tensors[w.stored] = counting(w.shape, 0);
  return tensors;
}

TensorInfo info(const std::string& name, const Shape& shape) {
  TensorInfo i;
  i.name = name;
  i.shape.assign(shape.begin(), shape.end());
  return i;
}

void check_all(const Checkpoint& c) {
  std::vector<std::string> names;
  for (const Weight& w : llama_weights()) {
    c.check(info(w.name, w.shape));
    names.push_back(w.name);
  }
  c.check_nothing_left(names);
}

template <typename N = float>
std::vector<N> rows(const WeightReader& reader, std::size_t first, std::size_t elements) {
  std::vector<N> values(elements);
  reader.read_rows(first, values);
  return values;
}

}  // namespace

TEST_CASE("checkpoint: columns of quantised blocks are read, wherever they begin") {
  // Two blocks of a weight [64, 3]: [in 3, rows 32], element of row i, column j of block b
  // i - 16 + 16·j, halved in the second block.
  constexpr std::uint16_t half_one = 0x3c00;
  constexpr std::uint16_t half_half = 0x3800;
  std::string bytes;
  for (int b = 0; b < 2; ++b) {
    for (int j = 0; j < 3; ++j) {
      bytes += raw(b == 0 ? half_one : half_half);
      for (int i = 0; i < 32; ++i) bytes += static_cast<char>(i - 16 + 16 * j);
    }
  }
  const auto file = in_memory(bytes, "weights.bin");
  const StoredTensor tensor{"w", DType::Q8_0, {2, 3, 32}, file->bytes(), file};
  const WeightReader reader({tensor},
                            {.names = {"w"}, .rows = {}, .transposed = true, .blocks = 2});
  CHECK(reader.shape() == std::vector<std::uint64_t>{64, 3});
  CHECK(rows<float>(reader, 5, 6) == std::vector<float>{-11, 5, 21, -10, 6, 22});
  // The last row of the first block, then the second block's first two.
  CHECK(rows<double>(reader, 31, 9) == std::vector<double>{15, 31, 47, -8, 0, 8, -7.5, 0.5, 8.5});
}

TEST_CASE("checkpoint: a folder is a model with all its weights") {
  const Folder folder(llama_config);
  const Checkpoint c = folder.write(llama_tensors());
  check_all(c);
  CHECK(c.architecture().name == folder.path().filename());
  CHECK(c.gguf() == nullptr);
  // Embedding 84, norm 12; each layer 144 + 72 + 72 + 144 + 60 + 60 + 60 + 12 + 12 = 636.
  const WeightReader down = c.reader("layers.1.down.weight");
  CHECK(down.shape() == Shape{12, 5});
  CHECK(rows(down, 2, 10) == std::vector<float>{10, 11, 12, 13, 14, 15, 16, 17, 18, 19});
}

TEST_CASE("checkpoint: a missing tensor is named with the names looked for") {
  const Folder folder(llama_config);
  auto tensors = llama_tensors();
  tensors.erase("model.layers.1.mlp.up_proj.weight");
  const Checkpoint c = folder.write(tensors);
  CHECK(message_of([&] { check_all(c); }) ==
        folder.path().string() +
            ": tensor model.layers.1.mlp.up_proj.weight or layers.1.mlp.up_proj.weight is missing; "
            "expected it for the weight layers.1.up.weight");
}

TEST_CASE("checkpoint: a tensor that no weight is made of is named") {
  const Folder folder(llama_config);
  auto tensors = llama_tensors();
  tensors["model.layers.2.mlp.up_proj.weight"] = counting({5, 12}, 0);
  const Checkpoint c = folder.write(tensors);
  CHECK(message_of([&] { check_all(c); }) ==
        folder.weights() +
            ": tensor model.layers.2.mlp.up_proj.weight: no weight of a llama model of this "
            "configuration is made of it");

  tensors.erase("model.layers.2.mlp.up_proj.weight");
  tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = counting({3}, 0);
  tensors["lm_head.weight"] = counting({7, 12}, 0);  // a copy of the tied embedding
  check_all(folder.write(tensors));
}

TEST_CASE("checkpoint: a tensor of another shape is named with both shapes") {
  const Folder folder(llama_config);
  auto tensors = llama_tensors();
  const auto refusal = [&](const std::string& name, const Shape& shape) {
    auto changed = tensors;
    changed[name] = counting(shape, 0);
    const Checkpoint c = folder.write(changed);
    return message_of([&] { check_all(c); });
  };
  const std::string key = "model.layers.0.self_attn.k_proj.weight";
  const std::string expected = ", expected [6, 12], as the configuration says";
  const std::string place = folder.weights() + ": tensor " + key;
  CHECK(refusal(key, {12, 6}) == place + ": got shape [12, 6]" + expected);
  CHECK(refusal(key, {72}) == place + ": got shape [72]" + expected);
  CHECK(refusal(key, {6, 12, 1}) == place + ": got shape [6, 12, 1]" + expected);
  CHECK(refusal(key, {0, 12}) == place + ": got shape [0, 12]" + expected);
  // The vocabulary that the configuration says is not the file's.
  CHECK(refusal("model.embed_tokens.weight", {8, 12}) ==
        folder.weights() +
            ": tensor model.embed_tokens.weight: got shape [8, 12], expected [7, 12], as the "
            "configuration says");
}

TEST_CASE("checkpoint: a number that is not finite is named by file, tensor and element") {
  const Folder folder(llama_config);
  auto tensors = llama_tensors();
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  tensors[up].data[31] = std::numeric_limits<float>::quiet_NaN();
  const std::string down = "model.layers.1.mlp.down_proj.weight";
  tensors[down].data[59] = -std::numeric_limits<float>::infinity();
  const Checkpoint c = folder.write(tensors);
  // Rows of 12: element 31 is in row 2.
  CHECK(rows(c.reader("layers.0.up.weight"), 0, 24).size() == 24);
  CHECK(message_of([&] { rows(c.reader("layers.0.up.weight"), 1, 24); }) ==
        folder.weights() + ": tensor " + up + ", element 31: got NaN, expected finite weights");
  CHECK(message_of([&] { rows(c.reader("layers.1.down.weight"), 0, 60); }) ==
        folder.weights() + ": tensor " + down +
            ", element 59: got an infinity, expected finite weights");
}

TEST_CASE("checkpoint: a needed tensor of a type that is not read is named with its type") {
  const Folder folder(llama_config);
  const std::string name = "model.norm.weight";
  const Checkpoint c = folder.write_bytes(
      safetensors_file(R"({")" + name + R"(":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})",
                       std::string(16, 'x')));
  CHECK(message_of([&] { c.reader("final_norm.weight"); }) ==
        folder.weights() + ": tensor " + name +
            ": got element type I64, expected a type that kvcast reads");
  c.check_nothing_left({"final_norm.weight"});
  CHECK(message_of([&] { c.check_nothing_left({}); }) ==
        folder.weights() + ": tensor " + name +
            ": no weight of a llama model of this configuration is made of it");
}

TEST_CASE("checkpoint: fused tensors are read by rows, and every row must be used") {
  // 3 heads of 2: each head's 6 rows are its query, key and value.
  const Folder folder(R"({"model_type": "gpt_neox", "hidden_size": 6, "intermediate_size": 5,
      "num_hidden_layers": 2, "num_attention_heads": 3, "vocab_size": 7,
      "max_position_embeddings": 64, "rotary_pct": 1.0})");
  const std::string fused = "gpt_neox.layers.0.attention.query_key_value.weight";
  const std::vector<std::string> names{"layers.0.query.weight", "layers.0.key.weight",
                                       "layers.0.value.weight"};
  const Checkpoint c = folder.write({{fused, counting({18, 6}, 0)}});
  for (const std::string& name : names) c.check(info(name, {6, 6}));
  c.check_nothing_left(names);
  // The key's rows 1 and 2 are stored rows 3 and 8, which begin at 18 and 48.
  CHECK(rows(c.reader("layers.0.key.weight"), 1, 12) ==
        std::vector<float>{18, 19, 20, 21, 22, 23, 48, 49, 50, 51, 52, 53});

  const Checkpoint larger = folder.write({{fused, counting({24, 6}, 0)}});
  for (const std::string& name : names) larger.check(info(name, {6, 6}));
  CHECK(message_of([&] { larger.check_nothing_left(names); }) ==
        folder.weights() + ": tensor " + fused +
            ": got shape [24, 6], expected 18 rows, as the configuration says");
  const Checkpoint smaller = folder.write({{fused, counting({17, 6}, 0)}});
  CHECK(message_of([&] {
          smaller.check(info(names[2], {6, 6}));
        }) ==
        folder.weights() + ": tensor " + fused +
            ": got shape [17, 6], expected [6, 6] in its part for layers.0.value.weight, as the "
            "configuration says");
}

TEST_CASE("checkpoint: GPT-2's columns become rows") {
  const Folder folder(R"({"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 2,
      "n_positions": 16, "vocab_size": 7})");
  // Stored [in, 3 · out]: element (i, c) is 12i + c; the key's columns are 4 to 7.
  const Checkpoint c = folder.write({{"h.0.attn.c_attn.weight", counting({4, 12}, 0)},
                                     {"h.0.attn.c_attn.bias", counting({12}, 100)},
                                     {"h.0.mlp.c_fc.weight", counting({4, 16}, 0)}});
  c.check(info("layers.0.key.weight", {4, 4}));
  c.check(info("layers.0.up.weight", {16, 4}));
  const WeightReader key = c.reader("layers.0.key.weight");
  CHECK(key.shape() == Shape{4, 4});
  CHECK(rows(key, 1, 8) == std::vector<float>{5, 17, 29, 41, 6, 18, 30, 42});
  CHECK(rows(c.reader("layers.0.value.bias"), 1, 2) == std::vector<float>{109, 110});
  CHECK(rows(c.reader("layers.0.up.weight"), 15, 4) == std::vector<float>{15, 31, 47, 63});
}

TEST_CASE("checkpoint: rows as fp64 are the same rows, of an F64 file exactly") {
  const Folder folder(R"({"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 2,
      "n_positions": 16, "vocab_size": 7})");
  std::vector<double> fused(48);
  for (std::size_t i = 0; i < 48; ++i) fused[i] = static_cast<double>(i) + 0x1p-40;
  const std::vector<double> bias{1e39, 0.1, 2, 3};
  const Checkpoint c = folder.write_bytes(
      safetensors_bytes({{"h.0.attn.c_attn.weight", {4, 12}, fused, DType::FP64},
                         {"h.0.mlp.c_proj.bias", {4}, bias, DType::FP64},
                         {"h.0.mlp.c_fc.weight", {4, 16}, counting({4, 16}, 0.5f).data}}));
  const WeightReader key = c.reader("layers.0.key.weight");
  CHECK(rows<double>(key, 1, 4) ==
        std::vector<double>{5 + 0x1p-40, 17 + 0x1p-40, 29 + 0x1p-40, 41 + 0x1p-40});
  CHECK(rows(key, 1, 4) == std::vector<float>{5, 17, 29, 41});
  const WeightReader up = c.reader("layers.0.up.weight");
  CHECK(rows<double>(up, 15, 4) == std::vector<double>{15.5, 31.5, 47.5, 63.5});
  const WeightReader down = c.reader("layers.0.down.bias");
  CHECK(rows<double>(down, 0, 4) == bias);
  CHECK(message_of([&] { rows(down, 0, 4); }) ==
        folder.weights() +
            ": tensor h.0.mlp.c_proj.bias, element 0: got an infinity, expected finite weights");
}

TEST_CASE("checkpoint: random rows are the same numbers in fp32 and fp64") {
  const Folder folder(llama_config);
  const Checkpoint random(folder.write({}).architecture(), 11);
  for (const TensorInfo& weight : {info("layers.0.up.weight", {5, 12}), info("norm", {12})}) {
    const WeightReader reader = random.reader(weight);
    const std::size_t row = weight.shape.size() > 1 ? 12 : 1;
    const std::vector<float> narrow = rows(reader, 2, 3 * row);
    const std::vector<double> wide = rows<double>(reader, 2, 3 * row);
    CHECK(std::equal(wide.begin(), wide.end(), narrow.begin(), narrow.end()));
    CHECK(wide[0] != wide[1]);
  }
}

TEST_CASE("checkpoint: a GGUF file is a model, its rows in Hugging Face's order") {
  GgufWriter w =
      decoder_file("llama", {.layers = 2, .hidden = 8, .mlp = 5, .heads = 2, .vocabulary = 7});
  w.number("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  w.tensor("rope_freqs.weight", {2}, ggml_id::f32, raw_list(std::vector<float>{1, 2}));
  w.tensor("blk.0.attn_q.weight", {8, 8}, ggml_id::f32, raw_list(counting({8, 8}, 0).data));
  Tensor bad = counting({8, 5}, 0);
  bad.data[7] = std::numeric_limits<float>::infinity();
  w.tensor("blk.0.ffn_down.weight", {5, 8}, ggml_id::f32, raw_list(bad.data));

  const TestFolder folder;
  const fs::path file = folder / "tiny.gguf";
  std::ofstream(file, std::ios::binary) << w.bytes();
  const Checkpoint c(file);
  CHECK(c.architecture().name == "tiny");
  CHECK(c.architecture().tied_embeddings);
  REQUIRE(c.gguf() != nullptr);

  // Heads of 4: llama.cpp stores rows 0, 2, 1, 3 of each, so rows 1 and 2 begin at 16 and 8.
  c.check(info("layers.0.query.weight", {8, 8}));
  CHECK(rows(c.reader("layers.0.query.weight"), 1, 16) ==
        std::vector<float>{16, 17, 18, 19, 20, 21, 22, 23, 8, 9, 10, 11, 12, 13, 14, 15});
  CHECK(message_of([&] { rows(c.reader("layers.0.down.weight"), 0, 40); }) ==
        file.string() +
            ": tensor blk.0.ffn_down.weight, element 7: got an infinity, expected finite weights");
  CHECK(message_of([&] { c.reader("layers.1.up.weight"); }) ==
        file.string() +
            ": tensor blk.1.ffn_up.weight is missing; expected it for the weight "
            "layers.1.up.weight");
  // rope_freqs belongs to the configuration, but nothing reads the tensor that is named.
  CHECK(message_of([&] {
          c.check_nothing_left({"embedding.weight", "layers.0.query.weight"});
        }) == file.string() +
                  ": tensor blk.0.ffn_down.weight: no weight of a llama model of this "
                  "configuration is made of it");
}

TEST_CASE("checkpoint: what is no checkpoint is refused by name") {
  CHECK(message_of([] { Checkpoint("/nowhere/model"); }) ==
        "/nowhere/model: no such folder; expected a checkpoint: a folder with config.json and "
        "safetensors, or a .gguf file");
  CHECK(message_of([] {
          Checkpoint("/nowhere/model.gguf");
        }).starts_with("/nowhere/model.gguf: cannot be opened"));
  CHECK(message_of([] {
          Checkpoint(KVCAST_SOURCE_DIR);
        }).starts_with(std::string(KVCAST_SOURCE_DIR) + "/config.json: cannot be opened"));
  const Folder folder(llama_config);
  CHECK(message_of([&] { Checkpoint{folder.path()}; }) ==
        folder.path().string() +
            ": got 0 *.safetensors files, expected model.safetensors, "
            "model.safetensors.index.json or a single file");
}
