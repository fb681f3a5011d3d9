#include "model/convert/mlkv_conversion.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"
#include "model/record/recording.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Numbers = std::vector<float>;

struct Tensor {
  std::vector<std::uint64_t> shape;
  Numbers data;
};
using Tensors = std::map<std::string, Tensor>;

Tensor filled(const std::vector<std::uint64_t>& shape, float first, float step) {
  Tensor t{shape, {}};
  std::size_t elements = 1;
  for (const std::uint64_t extent : shape) elements *= extent;
  for (std::size_t i = 0; i < elements; ++i) {
    t.data.push_back(first + step * static_cast<float>(i));
  }
  return t;
}

/// GPT-NeoX: 3 layers of 2 heads of 4, MLPs of 5. In layer i head h has rows of 100i + 10h + r in
/// the query, 1000 more in the key and 2000 more in the value; the bias holds half of that.
constexpr std::uint64_t layers = 3, heads = 2, head_dim = 4, hidden = 8, mlp_width = 5;

float mark(std::uint64_t layer, std::uint64_t head, std::uint64_t part, std::uint64_t row) {
  return static_cast<float>(1000 * part + 100 * layer + 10 * head + row);
}

Tensors neox_tensors() {
  Tensors t;
  t["gpt_neox.embed_in.weight"] = filled({11, hidden}, 0, 1);
  t["embed_out.weight"] = filled({11, hidden}, 7, 1);
  t["gpt_neox.final_layer_norm.weight"] = filled({hidden}, 1, 0.5F);
  t["gpt_neox.final_layer_norm.bias"] = filled({hidden}, 2, 0.5F);
  for (std::uint64_t i = 0; i < layers; ++i) {
    const std::string layer = "gpt_neox.layers." + std::to_string(i) + ".";
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
      t[layer + norm + ".weight"] = filled({hidden}, 1, 0.25F);
      t[layer + norm + ".bias"] = filled({hidden}, 3, 0.25F);
    }
    Tensor qkv{{3 * heads * head_dim, hidden}, {}};
    Tensor bias{{3 * heads * head_dim}, {}};
    for (std::uint64_t h = 0; h < heads; ++h) {
      for (std::uint64_t part = 0; part < 3; ++part) {
        for (std::uint64_t r = 0; r < head_dim; ++r) {
          qkv.data.insert(qkv.data.end(), hidden, mark(i, h, part, r));
          bias.data.push_back(mark(i, h, part, r) / 2);
        }
      }
    }
    t[layer + "attention.query_key_value.weight"] = qkv;
    t[layer + "attention.query_key_value.bias"] = bias;
    t[layer + "attention.dense.weight"] = filled({hidden, hidden}, 0, 1);
    t[layer + "attention.dense.bias"] = filled({hidden}, 0, 1);
    t[layer + "mlp.dense_h_to_4h.weight"] = filled({mlp_width, hidden}, 0, 1);
    t[layer + "mlp.dense_h_to_4h.bias"] = filled({mlp_width}, 10, 1);
    t[layer + "mlp.dense_4h_to_h.weight"] = filled({hidden, mlp_width}, 0, 1);
    t[layer + "mlp.dense_4h_to_h.bias"] = filled({hidden}, 20, 1);
  }
  return t;
}

json neox_config() {
  return {{"model_type", "gpt_neox"},
          {"hidden_size", hidden},
          {"vocab_size", 11},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"intermediate_size", mlp_width},
          {"rotary_pct", 0.5},
          {"torch_dtype", "float16"}};
}

/// A checkpoint folder, and room for what is made of it.
struct Workplace {
  Workplace() { fs::create_directory(in()); }
  fs::path in() const { return folder / "in"; }
  fs::path out() const { return folder / "out"; }
  Checkpoint write(const json& config, const Tensors& tensors) const {
    std::vector<TensorToWrite> list;
    for (const auto& [name, t] : tensors) list.push_back({name, t.shape, t.data});
    std::ofstream(in() / "config.json") << config;
    std::ofstream(in() / "model.safetensors", std::ios::binary) << safetensors_bytes(list);
    return Checkpoint(in());
  }
  TestFolder folder;
};

Tensors read_back(const fs::path& folder) {
  Tensors tensors;
  for (const StoredTensor& t : read_safetensors(MappedFile::open(folder / "model.safetensors"))) {
    Tensor& to = tensors[t.name];
    to.shape = t.shape;
    to.data.resize(t.elements());
    read_elements(t, 0, to.data);
  }
  return tensors;
}

Tensors converted(const MlkvConversion& conversion, const Tensors& tensors = neox_tensors()) {
  const Workplace w;
  convert_to_mlkv(w.write(neox_config(), tensors), w.out(), conversion);
  return read_back(w.out());
}

/// The first number of each row.
Numbers column(const Tensor& t) {
  Numbers firsts;
  for (std::size_t i = 0; i < t.data.size(); i += t.data.size() / t.shape[0]) {
    firsts.push_back(t.data[i]);
  }
  return firsts;
}

TEST_CASE("mlkv conversion: fused projections are taken apart by head, then by part") {
  const Tensors t = converted({{layers, heads}});
  for (std::uint64_t i = 0; i < layers; ++i) {
    const std::string layer = "gpt_neox.layers." + std::to_string(i) + ".attention.";
    std::uint64_t part = 0;
    for (const char* name : {"query", "key", "value"}) {
      Numbers expected;
      for (std::uint64_t h = 0; h < heads; ++h) {
        for (std::uint64_t r = 0; r < head_dim; ++r) expected.push_back(mark(i, h, part, r));
      }
      CHECK(column(t.at(layer + name + ".weight")) == expected);
      for (float& x : expected) x /= 2;
      CHECK(t.at(layer + name + ".bias").data == expected);
      ++part;
    }
    CHECK_FALSE(t.contains(layer + "query_key_value.weight"));
  }
  CHECK(t.at("gpt_neox.layers.1.mlp.dense_4h_to_h.weight").data ==
        neox_tensors().at("gpt_neox.layers.1.mlp.dense_4h_to_h.weight").data);
  CHECK(t.at("embed_out.weight").data == neox_tensors().at("embed_out.weight").data);
}

TEST_CASE("mlkv conversion: heads of a layer become their mean, then layers the mean of all") {
  // Layers 0, 1, 2 at 0, 100, 200; heads at 0 and 10: 105. One after another: ((0+100)/2+200)/2.
  const auto expected = [](float first) { return Numbers{first, first + 1, first + 2, first + 3}; };
  for (const LayerMerge merge : {LayerMerge::Mean, LayerMerge::Sequential}) {
    const float layer = merge == LayerMerge::Mean ? 100 : 125;
    const Tensors t = converted({{1, 1, MlpWidening::None}, merge});
    const std::string name = "gpt_neox.layers.0.attention.";
    CHECK(t.at(name + "key.weight").shape == std::vector<std::uint64_t>{head_dim, hidden});
    CHECK(column(t.at(name + "key.weight")) == expected(1000 + layer + 5));
    CHECK(column(t.at(name + "value.weight")) == expected(2000 + layer + 5));
    Numbers bias = expected(1000 + layer + 5);
    for (float& x : bias) x /= 2;
    CHECK(t.at(name + "key.bias").data == bias);
    // The queries keep their heads in every layer.
    CHECK(t.at("gpt_neox.layers.2.attention.query.weight").shape ==
          std::vector<std::uint64_t>{heads * head_dim, hidden});
    CHECK_FALSE(t.contains("gpt_neox.layers.1.attention.key.weight"));
    CHECK_FALSE(t.contains("gpt_neox.layers.2.attention.value.bias"));
  }
}

TEST_CASE("mlkv conversion: merging equal heads of equal layers changes no weight") {
  Tensors equal = neox_tensors();
  const std::string layer = "gpt_neox.layers.";
  for (const char* kind : {"weight", "bias"}) {
    const std::string name = std::string(".attention.query_key_value.") + kind;
    Numbers& qkv = equal[layer + "0" + name].data;
    const std::size_t half = qkv.size() / 2;  // of two heads
    std::copy(qkv.begin(), qkv.begin() + static_cast<std::ptrdiff_t>(half),
              qkv.begin() + static_cast<std::ptrdiff_t>(half));
    equal[layer + "1" + name] = equal[layer + "2" + name] = equal[layer + "0" + name];
  }
  const std::string key = "gpt_neox.layers.0.attention.key.weight";
  for (const LayerMerge merge : {LayerMerge::Mean, LayerMerge::Sequential}) {
    const Tensors whole = converted({{layers, heads}, merge}, equal);
    const Tensors merged = converted({{1, 1, MlpWidening::None}, merge}, equal);
    Numbers first_head = whole.at(key).data;
    first_head.resize(first_head.size() / 2);
    CHECK(merged.at(key).data == first_head);
  }
}

TEST_CASE("mlkv conversion: MLPs get copies of their first neurons, at full or at half weight") {
  // 6 heads less 1: 5 · (2 · 8 · 4 + 2 · 4) = 360 numbers, 120 a layer, 15 rows of 8, 7 neurons,
  // but the MLPs have 5; with 3 heads kept 3 · 72 = 216, 72, 9 rows, 4 neurons.
  const std::string mlp = "gpt_neox.layers.1.mlp.";
  const Tensors before = neox_tensors();
  for (const MlpWidening widening : {MlpWidening::Copy, MlpWidening::Preserve}) {
    const Tensors t = converted({{3, 1, widening}});
    const Tensor& up = t.at(mlp + "dense_h_to_4h.weight");
    REQUIRE(up.shape == std::vector<std::uint64_t>{mlp_width + 4, hidden});
    Numbers rows = before.at(mlp + "dense_h_to_4h.weight").data;
    rows.insert(rows.end(), rows.begin(), rows.begin() + 4 * hidden);
    CHECK(up.data == rows);
    CHECK(t.at(mlp + "dense_h_to_4h.bias").data == Numbers{10, 11, 12, 13, 14, 10, 11, 12, 13});
    // Row 1 of the way out was 5, 6, 7, 8, 9.
    const Tensor& down = t.at(mlp + "dense_4h_to_h.weight");
    REQUIRE(down.shape == std::vector<std::uint64_t>{hidden, mlp_width + 4});
    const Numbers row(down.data.begin() + mlp_width + 4, down.data.begin() + 2 * (mlp_width + 4));
    CHECK(row == (widening == MlpWidening::Copy ? Numbers{5, 6, 7, 8, 9, 5, 6, 7, 8}
                                                : Numbers{2.5, 3, 3.5, 4, 9, 2.5, 3, 3.5, 4}));
    CHECK(t.at(mlp + "dense_4h_to_h.bias").data == before.at(mlp + "dense_4h_to_h.bias").data);
  }
}

TEST_CASE("mlkv conversion: the report and the new config say what has changed") {
  const Workplace w;
  std::ofstream(w.in() / "tokenizer.json") << "{}";
  std::ofstream(w.in() / "notes.txt") << "not a tokenizer's";
  const MlkvReport r =
      convert_to_mlkv(w.write(neox_config(), neox_tensors()), w.out(), {{1, 1, MlpWidening::None}});
  CHECK(r.groups == std::vector<std::vector<std::size_t>>{{0, 1, 2}});
  // 5 heads of 6 are gone, each with 2 · 8 · 4 weights and 8 biases.
  CHECK(r.parameters_before - r.parameters_after == 5 * 72);
  CHECK(r.kv_cache_ratio == near(1.0 / 6));
  CHECK(r.copied_files == std::vector<std::string>{"tokenizer.json"});
  CHECK(std::distance(fs::directory_iterator(w.out()), {}) == 3);
  const json config = read_json_file(w.out() / "config.json");
  CHECK(config["num_key_value_layers"] == 1);
  CHECK(config["num_key_value_heads"] == 1);
  CHECK(config["intermediate_size"] == mlp_width);
  CHECK(config["torch_dtype"] == "float32");
  CHECK(config["model_type"] == "gpt_neox");
  CHECK(count_parameters(Checkpoint(w.out()).architecture()) == r.parameters_after);
}

/// The message, when nothing was written.
std::string refusal(const Workplace& w, const Checkpoint& checkpoint, const MlkvConversion& c,
                    const fs::path& out) {
  const auto files = w.folder.num_files();
  const std::string line = message_of([&] { convert_to_mlkv(checkpoint, out, c); });
  CHECK(w.folder.num_files() == files);
  return line;
}

TEST_CASE("mlkv conversion: bad input is refused and nothing is written") {
  const auto refused = [](const MlkvConversion& c, const Tensors& tensors,
                          const std::string& part) {
    const Workplace w;
    const std::string line = refusal(w, w.write(neox_config(), tensors), c, w.out());
    CAPTURE(line);
    CHECK(line.find(part) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  };
  const Tensors whole = neox_tensors();
  refused({{2, 1}}, whole, "got 2 key-value layers, expected a divisor of its 3 layers: 1, 3");
  refused({{6, 1}}, whole, "got 6 key-value layers");
  refused({{1, 4}}, whole, "got 4 key-value heads, expected a divisor of its 2 in each layer");
  refused({{1, 1}}, whole, "MLPs of 5 neurons to widen by 7");
  refused({{1, 2, MlpWidening::None}, LayerMerge::Mean, DType::FP8}, whole,
          "got dtype fp8, expected fp64, fp32");
  Tensors missing = whole;
  missing.erase("gpt_neox.layers.2.attention.query_key_value.bias");
  refused({{1, 2, MlpWidening::None}}, missing, "gpt_neox.layers.2.attention.query_key_value.bias");
  Tensors infinite = whole;
  infinite["gpt_neox.layers.2.attention.dense.bias"].data[3] =
      std::numeric_limits<float>::infinity();
  refused({{1, 2, MlpWidening::None}}, infinite, "an infinity");
  Tensors misshapen = whole;
  misshapen["gpt_neox.layers.0.mlp.dense_h_to_4h.bias"] = filled({mlp_width + 1}, 0, 1);
  refused({{1, 2, MlpWidening::None}}, misshapen, "shape [6]");
}

TEST_CASE("mlkv conversion: a converted checkpoint is not converted again") {
  const Workplace w;
  convert_to_mlkv(w.write(neox_config(), neox_tensors()), w.out(), {{3, 2}});
  const std::string line = refusal(w, Checkpoint(w.out()), {{1, 1}}, w.folder / "again");
  CHECK(line.find("an MLKV model already") != std::string::npos);
}

TEST_CASE("mlkv conversion: only a new folder or an empty one is written to") {
  const Workplace w;
  const Checkpoint source = w.write(neox_config(), neox_tensors());
  const auto refused = [&](const fs::path& out, const std::string& part) {
    const std::string line = refusal(w, source, {{3, 2}}, out);
    CAPTURE(line);
    CHECK(line.find(part) != std::string::npos);
  };
  refused(w.in(), "got a folder with files in it");
  refused(w.in() / "config.json", "got a file");
  refused(w.folder / "no" / "where", "does not exist");
  refused("", "an empty name");
  fs::create_directory(w.out());
  convert_to_mlkv(source, w.out() / "", {{3, 2}});
  CHECK(fs::exists(w.out() / "model.safetensors"));
}

}  // namespace
}  // namespace kvcast
