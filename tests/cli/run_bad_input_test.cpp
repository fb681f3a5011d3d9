// What `kvcast run` says to wrong requests and to broken checkpoints. Files are untrusted: whatever
// they claim, the program answers with one line, and within little memory.
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/base/json_file.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"
#include "tests/cli/program.h"
#include "tests/model/checkpoint_files.h"

namespace kvcast::cli {
namespace {

using nlohmann::ordered_json;

void check_run_refused(const std::string& arguments, const std::string& part) {
  check_refused("run " + arguments, part, 2, little_memory);
}

struct Tensor {
  std::vector<std::uint64_t> shape;
  std::vector<float> data;
};
using Tensors = std::map<std::string, Tensor>;

/// A Llama checkpoint in a folder, to be spoilt.
struct Model {
  Model() {
    config = read_json_file(oracle + "llama_mha/config.json");
    const auto file = MappedFile::open(oracle + "llama_mha/model.safetensors");
    for (const StoredTensor& t : read_safetensors(file)) {
      tensors[t.name] = {t.shape, std::vector<float>(t.elements())};
      read_elements(t, 0, tensors[t.name].data);
    }
  }
  std::string bytes() const {
    std::vector<TensorToWrite> list;
    for (const auto& [name, t] : tensors) list.push_back({name, t.shape, t.data});
    return safetensors_bytes(list);
  }
  void write(const std::string& safetensors) const {
    std::ofstream(folder / "config.json") << config;
    std::ofstream(weights(), std::ios::binary) << safetensors;
  }
  std::string weights() const { return folder.file("model.safetensors"); }
  std::string run() const { return "--model " + folder.path().string() + " --tokens 1,2"; }

  TestFolder folder;
  json config;
  Tensors tensors;
};

const std::string key = "model.layers.1.self_attn.k_proj.weight";

/// The file with another header before the same buffer.
std::string with_header(const std::string& bytes,
                        const std::function<void(ordered_json&)>& change) {
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  ordered_json header = ordered_json::parse(bytes.substr(8, length));
  change(header);
  return safetensors_file(header.dump(), bytes.substr(8 + length));
}

GgufWriter gguf_model() {
  GgufWriter w;
  w.text("general.architecture", "llama");
  w.whole("llama.block_count", 1);
  w.whole("llama.context_length", 100);
  w.whole("llama.embedding_length", 8);
  w.whole("llama.feed_forward_length", 6);
  w.whole("llama.attention.head_count", 2);
  w.number("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  w.zeros("token_embd.weight", {8, 7});
  return w;
}

void add_layer(GgufWriter& w) {
  const std::string layer = "blk.0.";
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
    w.zeros(layer + name + ".weight", {8, 8});
  }
  w.zeros(layer + "ffn_gate.weight", {8, 6});
  w.zeros(layer + "ffn_up.weight", {8, 6});
  w.zeros(layer + "attn_norm.weight", {8});
  w.zeros(layer + "ffn_norm.weight", {8});
  w.zeros("output_norm.weight", {8});
}

}  // namespace

TEST_CASE("bad input: logits of any position that are not finite are no file") {
  // Token 1 is a unit vector, which the norm makes larger than 1, and its weight infinite; token 2
  // has nothing there, so that greedy decoding goes on. Layers add nothing.
  Model m;
  for (auto& [name, tensor] : m.tensors) {
    const auto is_of = [&of = name](const char* part) {
      return of.find(part) != std::string::npos;
    };
    if (is_of("o_proj") || is_of("down_proj") || is_of("embed_tokens"))
      std::fill(tensor.data.begin(), tensor.data.end(), 0.0F);
  }
  Tensor& embedding = m.tensors.at("model.embed_tokens.weight");
  embedding.data[embedding.shape[1]] = 1;
  embedding.data[2 * embedding.shape[1] + 1] = 1;
  m.tensors.at("model.norm.weight").data[0] = std::numeric_limits<float>::max();
  m.write(m.bytes());
  const std::string logits = m.folder.file("logits.safetensors");
  CHECK(run_program("run --quiet " + m.run() + " --output-len 1").status == 0);
  check_refused("run " + m.run() + " --output-len 1 --logits " + logits,
                "sequence 0, position 0: the logits are not finite numbers", 1);
  CHECK_FALSE(fs::exists(logits));
}

TEST_CASE("bad input: run takes the output that just fits a position table") {
  CHECK(
      run_program("run --quiet --model " + oracle + "opt --tokens 1,2,3 --output-len 98").status ==
      0);
}

TEST_CASE("bad input: run refuses features of another shape") {
  const TestFolder folder;
  const fs::path file = folder / "features.safetensors";
  const auto refused = [&](const std::vector<std::uint64_t>& shape, const std::string& message) {
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : shape) elements *= extent;
    const std::vector<float> values(elements);
    std::ofstream(file, std::ios::binary) << safetensors_bytes({{"features", shape, values}});
    check_run_refused("--model " + oracle + "whisper --features " + file.string(), message);
  };
  // The model takes 10 mel bins and 60 frames.
  refused({60, 10}, file.string() + ": tensor features: got");
  refused({10}, file.string() + ": tensor features: got");
  refused({1, 10, 60}, file.string() + ": tensor features: got");
  refused({10, 62}, "features: got 62 frames, expected 60");
  refused({10, 59}, "features");
  refused({10, 0}, "features");
}

TEST_CASE("bad input: run refuses safetensors files that lie") {
  const Model m;
  const std::string right = m.bytes();
  m.write(right);
  CHECK(run_program("run --quiet " + m.run(), little_memory).status == 0);

  const auto refused = [&](const std::string& bytes, const std::string& message) {
    m.write(bytes);
    check_run_refused(m.run(), m.weights() + message);
  };
  const auto entry = [&](const char* field, const ordered_json& value) {
    return with_header(right, [&](ordered_json& header) { header[key][field] = value; });
  };
  const std::string place = ": tensor " + key;
  refused("", ": got 0 bytes");
  refused(right.substr(0, 6), ": got 6 bytes");
  refused(right.substr(0, 100), ": got a header length of ");
  refused(right.substr(0, right.size() - 10), ": tensor ");
  refused(right + "tail", ": got ");
  refused(raw(std::uint64_t{1} << 62) + right.substr(8),
          ": got a header length of 4611686018427387904 ");
  refused(raw(std::uint64_t{99'999'999}) + right.substr(8), ": got a header length of 99999999 ");
  refused(safetensors_file("[1, 2]", ""), ": got a header that does not start with '{'");
  refused(safetensors_file("{\"a\": ", ""), "");
  refused(entry("shape", {24, 25}),
          place + ": /data_offsets: got [51840,54144], expected 2400 bytes");
  refused(entry("shape", {std::uint64_t{1} << 62, std::uint64_t{1} << 62}), place);
  refused(entry("shape", {-1, 24}), "");
  refused(entry("dtype", "F99"), place + ": /dtype: got F99");
  refused(entry("dtype", "I32"), place + ": got element type I32");
  refused(entry("data_offsets", {0, 2304}), "");
  refused(entry("data_offsets", {5, 2}), place + ": /data_offsets: got [5,2]");
  refused(entry("data_offsets", {std::uint64_t{1} << 62, (std::uint64_t{1} << 62) + 2304}), place);
  refused(with_header(right, [](ordered_json& header) { header.erase(key); }), "");
}

TEST_CASE("bad input: run refuses checkpoints that are not the model of their config") {
  Model m;
  const auto refused = [&](const Tensors& tensors, const std::string& message) {
    Tensors kept = std::exchange(m.tensors, tensors);
    m.write(m.bytes());
    check_run_refused(m.run(), message);
    m.tensors = std::move(kept);
  };
  const std::string place = m.weights() + ": tensor ";
  Tensors t = m.tensors;
  t.erase(key);
  refused(t, m.folder.path().string() + ": tensor " + key);
  t = m.tensors;
  t["model.layers.2.mlp.up_proj.weight"] = {{53, 24}, std::vector<float>(53 * 24)};
  refused(t, place + "model.layers.2.mlp.up_proj.weight: no weight of a llama model");
  t = m.tensors;
  t["model.layers.0.mlp.down_proj.weight"].shape = {53, 24};
  refused(t, place + "model.layers.0.mlp.down_proj.weight: got shape [53, 24], expected [24, 53]");
  t = m.tensors;
  t[key].data[77] = std::numeric_limits<float>::quiet_NaN();
  refused(t, place + key + ", element 77: got NaN, expected finite weights");
  t = m.tensors;
  t["model.norm.weight"].data[3] = std::numeric_limits<float>::infinity();
  refused(t, place + "model.norm.weight, element 3: got an infinity");

  const json right = m.config;
  const auto refused_config = [&](const char* entry, const json& value,
                                  const std::string& message) {
    m.config = right;
    m.config[entry] = value;
    m.write(m.bytes());
    check_run_refused(m.run(), message);
  };
  refused_config("vocab_size", 62, "shape [61, 24], expected [62, 24]");
  refused_config("vocab_size", std::uint64_t{1} << 40, "shape [61, 24]");
  refused_config("vocab_size", std::uint64_t{1} << 50, "config.json: /vocab_size");
  refused_config("hidden_size", 3 << 20, "shape");
  refused_config("num_attention_heads", 1 << 20, "config.json");
  refused_config("intermediate_size", std::uint64_t{1} << 40, "shape");
  refused_config("num_hidden_layers", 1000, ": tensor model.layers.10.");
  refused_config("num_hidden_layers", std::uint64_t{1} << 60, "/num_hidden_layers");
  refused_config("model_type", "lama", "did you mean 'llama'?");
  m.config = json::array();
  m.write(m.bytes());
  check_run_refused(m.run(), "config.json");
  fs::remove(m.folder / "config.json");
  check_run_refused(m.run(), m.folder.path().string() + "/config.json: cannot be opened");
}

TEST_CASE("bad input: run refuses fused rows beyond the file without listing them") {
  const TestFolder folder;
  fs::copy_file(oracle + "phi3/model.safetensors", folder / "model.safetensors");
  json config = read_json_file(oracle + "phi3/config.json");
  config["intermediate_size"] = std::uint64_t{1} << 40;
  std::ofstream(folder / "config.json") << config;
  check_run_refused("--model " + folder.path().string() + " --tokens 1",
                    "got 1099511627776 rows of a projection, expected at most 4194304");
}

TEST_CASE("bad input: run refuses an index whose shards are not what it says") {
  const TestFolder folder;
  fs::copy(oracle + "llama_sharded", folder.path(), fs::copy_options::recursive);
  const std::string run = "--model " + folder.path().string() + " --tokens 1";
  CHECK(run_program("run --quiet " + run).status == 0);
  const fs::path index = folder / "model.safetensors.index.json";
  const json right = read_json_file(index);
  const auto refused = [&](const std::string& shard, const std::string& message) {
    json changed = right;
    changed["weight_map"]["model.norm.weight"] = shard;
    std::ofstream(index) << changed;
    check_run_refused(run, message);
  };
  refused("model-00003-of-00002.safetensors", "model-00003-of-00002.safetensors");
  refused("../secret.safetensors", index.string());
  const std::string shard = right["weight_map"]["model.norm.weight"];
  refused(shard.find("00001") != std::string::npos ? "model-00002-of-00002.safetensors"
                                                   : "model-00001-of-00002.safetensors",
          "has no tensor model.norm.weight");
}

TEST_CASE("bad input: run refuses GGUF files that lie") {
  const TestFolder folder;
  const fs::path file = folder / "model.gguf";
  const std::string run = "--model " + file.string() + " --tokens 1";
  const auto refused = [&](const std::string& bytes, const std::string& message) {
    std::ofstream(file, std::ios::binary) << bytes;
    check_run_refused(run, message);
  };
  GgufWriter right = gguf_model();
  add_layer(right);
  right.zeros("blk.0.ffn_down.weight", {6, 8});
  std::ofstream(file, std::ios::binary) << right.bytes();
  CHECK(run_program("run --quiet " + run, little_memory).status == 0);

  const std::string bytes = right.bytes();
  const std::string name = file.string() + ": ";
  const auto absurd = raw(std::uint64_t{1} << 60);
  refused("", name);
  refused("GGUX" + bytes.substr(4), name);
  refused("GGUF" + raw(std::uint32_t{9}) + bytes.substr(8), name);
  refused(bytes.substr(0, bytes.size() / 2), name);
  refused(bytes.substr(0, bytes.size() - 100), name);
  refused(bytes.substr(0, 8) + absurd + bytes.substr(16), name);          // tensors
  refused(bytes.substr(0, 16) + absurd + bytes.substr(24), name);         // entries
  refused(bytes.substr(0, 24) + absurd + bytes.substr(32), name);         // a key's length
  refused("GGUF" + raw(std::uint32_t{3}) + std::string(16, '\0'), name);  // nothing in it

  const auto refused_with = [&](const std::string& message,
                                const std::function<void(GgufWriter&)>& spoil) {
    GgufWriter w = gguf_model();
    add_layer(w);
    spoil(w);
    refused(w.bytes(), name + message);
  };
  const std::string down = "blk.0.ffn_down.weight";
  const auto terabyte = std::uint64_t{1} << 40;
  refused_with("tensor " + down + " is missing", [](GgufWriter&) {});
  refused_with("tensor " + down + ": got shape [6, 8], expected [8, 6]", [&](GgufWriter& w) {
    w.zeros(down, {8, 6});
  });
  refused_with("tensor blk.1.ffn_down.weight: no weight of a llama model", [&](GgufWriter& w) {
    w.zeros(down, {6, 8});
    w.zeros("blk.1.ffn_down.weight", {6, 8});
  });
  refused_with("tensor " + down, [&](GgufWriter& w) {
    w.tensor_at(down, {terabyte, 8}, ggml_id::f32, 0);
  });
  refused_with("tensor " + down, [&](GgufWriter& w) {
    w.tensor_at(down, {6, 8}, ggml_id::f32, terabyte);
  });
  refused_with("tensor " + down, [&](GgufWriter& w) {
    w.tensor(down, {6, 8}, 99, std::string(192, '\0'));
  });
  refused_with("tensor " + down + ", element 13: got NaN", [&](GgufWriter& w) {
    std::vector<float> values(48);
    values[13] = std::numeric_limits<float>::quiet_NaN();
    w.tensor(down, {6, 8}, ggml_id::f32, raw_list(values));
  });
  refused_with("", [](GgufWriter& w) {
    w.value("tokenizer.ggml.tokens", gguf_id::array,
            raw(gguf_id::string) + raw(std::uint64_t{1} << 50));
  });
  GgufWriter deep = gguf_model();
  deep.whole("llama.rope.dimension_count", 0xFFFFFFFF);
  refused(deep.bytes(), name);

  GgufWriter layers;
  layers.text("general.architecture", "llama");
  layers.whole("llama.block_count", 0xFFFFFFFF);
  layers.whole("llama.embedding_length", 8);
  layers.whole("llama.feed_forward_length", 6);
  layers.whole("llama.attention.head_count", 2);
  refused(layers.bytes(), name + "metadata llama.block_count: got 4294967295");
  GgufWriter other;
  other.text("general.architecture", "mamba");
  refused(other.bytes(), name);
}

}  // namespace kvcast::cli
