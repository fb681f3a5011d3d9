#include "model/io/weights/catalog.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "model/record/recording.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"
#include "tests/source_catalog.h"
#include "tests/test_folder.h"

using namespace kvcast;
namespace fs = std::filesystem;

namespace {}  // namespace

TEST_CASE("catalog: every model has the parameters and cache that parameters.csv lists") {
  // name,parameters,kv_elements_per_token,cross_kv_elements_per_encoder_token,source
  std::ifstream file(catalog().root() / "models" / "parameters.csv");
  std::string line;
  REQUIRE(std::getline(file, line));
  REQUIRE(line.starts_with("name,parameters,kv_elements_per_token,cross_kv_elements"));
  std::size_t rows = 0;
  while (std::getline(file, line)) {
    std::istringstream cells(line);
    std::string name;
    std::string parameters;
    std::string kv;
    std::string cross;
    std::getline(cells, name, ',');
    std::getline(cells, parameters, ',');
    std::getline(cells, kv, ',');
    std::getline(cells, cross, ',');
    CAPTURE(name);
    const Architecture a = load_model(catalog(), name);
    Lowering bytes;
    bytes.cache = DType::FP8;  // one byte an element
    const Recording r = record(a, {}, bytes);
    CHECK(r.parameters == std::stoull(parameters));
    CHECK(r.kv_cache_bytes_per_token == Count(std::stoull(kv)));
    CHECK(r.cross_cache_bytes_per_token == Count(std::stoull(cross)));
    ++rows;
  }
  CHECK(rows >= 40);
}

TEST_CASE("catalog: every model file is read and recorded, eager and fused") {
  const std::vector<std::string> names = catalog().names("models");
  CHECK(names.size() >= 60);
  CHECK(std::is_sorted(names.begin(), names.end()));
  for (const std::string& name : names) {
    CAPTURE(name);
    const Architecture a = load_model(catalog(), name);
    CHECK(a.name == name);
    CHECK(a.unknown_keys == std::vector<std::string>{});
    const Recording fused = record(a, {}, {});
    const Lowering eager{Kernels::Eager, Kernels::Eager, DType::FP16, DType::FP16, DType::FP16};
    const Recording slow = record(a, {}, eager);
    CHECK(fused.parameters == slow.parameters);
    const auto cache_bytes = [](const Recording& r) {
      return r.kv_cache_bytes.at(r.symbols.resolve({3, 700, 20000}));
    };
    CHECK(cache_bytes(fused) == cache_bytes(slow));
    CHECK(slow.prefill().nodes().size() > fused.prefill().nodes().size());
  }
}

TEST_CASE("catalog: an unknown model is answered with its neighbour, a path with no such file") {
  const auto find = [](const std::string& what) {
    return message_of([&] { catalog().find("models", "model", what); });
  };
  CHECK(find("llama-7c").find("unknown model 'llama-7c'; did you mean 'llama-7b'?") !=
        std::string::npos);
  CHECK(find("llama-7B-x").find("did you mean 'llama-7b'?") != std::string::npos);
  CHECK(find("qwertyuiop") == "unknown model 'qwertyuiop'; see kvcast model list");
  CHECK(find("./llama-7c.json") == "./llama-7c.json: no such file");
  CHECK(find("models/qwertyuiop") == "models/qwertyuiop: no such file");
  CHECK(find("models/llama-7c") == "models/llama-7c: no such file; did you mean 'llama-7b'?");
  CHECK(find("data/models/llama-7c") == "data/models/llama-7c: no such file");
  CHECK(find("llama.gguf") == "llama.gguf: no such file");
  CHECK(find("").find("unknown model ''") != std::string::npos);
}

TEST_CASE("catalog: a hub name or an alias finds its file in any case, with or without its owner") {
  const auto stem = [](std::string_view folder, const std::string& what) {
    return catalog().find(folder, "name", what).stem().string();
  };
  CHECK(stem("models", "meta-llama/Llama-3.1-8B-Instruct") == "llama-3.1-8b");
  CHECK(stem("models", "META-LLAMA/llama-3.1-8b") == "llama-3.1-8b");
  CHECK(stem("models", "Meta-Llama-3.1-8B-Instruct") == "llama-3.1-8b");
  CHECK(stem("models", "LLaMA-7B") == "llama-7b");
  CHECK(stem("hardware", "h100") == "h100-sxm");
  CHECK(stem("hardware", "A100") == "a100-80gb");
  CHECK(stem("hardware", "4090") == "rtx-4090");
  CHECK(stem("hardware", "mi300") == "mi300x");
  CHECK(load_model(catalog(), "Qwen/Qwen2.5-7B-Instruct").name == "qwen2.5-7b");
  // Another name of a model is none of a device.
  CHECK_THROWS_AS(stem("hardware", "meta-llama/Llama-3.1-8B"), Error);
}

TEST_CASE("catalog: no two files share a name") {
  for (const std::string folder : {"models", "hardware"}) {
    std::map<std::string, std::string> owner;  // of each name in lower case
    const auto claim = [&](const std::string& name, const std::string& file) {
      CAPTURE(name);
      CAPTURE(file);
      CHECK(owner.try_emplace(lower_case(name), file).first->second == file);
    };
    for (const std::string& file : catalog().names(folder)) claim(file, file);
    std::size_t others = 0;
    for (const std::string& file : catalog().names(folder)) {
      for (const std::string& other : catalog().other_names(folder, file)) {
        claim(other, file);
        claim(other.substr(other.find('/') + 1), file);
        ++others;
      }
    }
    CHECK(others >= 20);
  }
}

TEST_CASE("catalog: a number that no model has is answered with the models of its family") {
  const TestFolder folder;
  fs::create_directory(folder / "models");
  for (const char* name :
       {"llama-2-70b", "llama-4-maverick", "llama-4-scout", "qwen3-14b", "qwen3-4b", "qwen3-8b"}) {
    std::ofstream(folder / "models" / (std::string(name) + ".json")) << "{}";
  }
  const Catalog small(folder.path());
  const auto find = [&](const std::string& what) {
    return message_of([&] { small.find("models", "model", what); });
  };
  CHECK(find("qwen3-7b") ==
        "unknown model 'qwen3-7b'; did you mean 'qwen3-4b', 'qwen3-8b' or 'qwen3-14b'?");
  CHECK(find("llama-4-70b") ==
        "unknown model 'llama-4-70b'; did you mean 'llama-4-scout' or 'llama-4-maverick'?");
  CHECK(find("Qwen/Qwen3-9B") ==
        "Qwen/Qwen3-9B: no such file; did you mean 'qwen3-4b', 'qwen3-8b' or 'qwen3-14b'?");
  CHECK(find("lama-4-scout") == "unknown model 'lama-4-scout'; did you mean 'llama-4-scout'?");
  std::ofstream(folder / "models" / "gpt2.json") << R"({"_kvcast": {"hub_names": "gpt"}})";
  CHECK(find("openai/gpt3").find("/_kvcast/hub_names: got \"gpt\"") != std::string::npos);
}

TEST_CASE("catalog: a name never leaves its folder") {
  CHECK_THROWS_AS(catalog().find("models", "model", "../hardware/nothing"), Error);
  CHECK(catalog().find("models", "model", "llama-7b") ==
        catalog().root() / "models" / "llama-7b.json");
}

TEST_CASE("catalog: a file or a checkpoint folder is a model, named after itself") {
  const TestFolder folder;
  const fs::path checkpoint = folder / "my-model";
  fs::create_directory(checkpoint);
  CHECK(message_of([&] {
          load_model(catalog(), checkpoint.string());
        }).find("a folder without config.json") != std::string::npos);
  fs::copy_file(catalog().root() / "models" / "pythia-70m.json", checkpoint / "config.json");
  const Architecture a = load_model(catalog(), checkpoint.string());
  CHECK(a.name == "my-model");
  CHECK(a.hidden_size == 512);
  CHECK(load_model(catalog(), (checkpoint / "config.json").string()).name == "my-model");
  fs::copy_file(checkpoint / "config.json", folder / "other.json");
  CHECK(load_model(catalog(), (folder / "other.json").string()).name == "other");
}

TEST_CASE("catalog: a GGUF file is a model, named after itself, and overrides reach it") {
  const TestFolder folder;
  GgufWriter w = decoder_file("llama");
  w.whole("llama.attention.head_count_kv", 3);
  w.number("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const std::string path = (folder / "tiny.gguf").string();
  std::ofstream(path, std::ios::binary) << w.bytes();

  const Architecture a = load_model(catalog(), path);
  CHECK(a.name == "tiny");
  CHECK(a.vocab_size == 50);
  CHECK(a.num_hidden_layers() == 3);
  CHECK(a.decoder.layers[0].heads == Heads{6, 3, 4});
  const Architecture changed =
      load_model(catalog(), path, {{"num_key_value_heads", "2"}, {"num_hidden_layers", "5"}});
  CHECK(changed.num_hidden_layers() == 5);
  CHECK(changed.decoder.layers[4].heads == Heads{6, 2, 4});
  CHECK(message_of([&] {
          load_model(catalog(), path, {{"num_key_value_hads", "2"}});
        }).find("did you mean 'num_key_value_heads'?") != std::string::npos);

  std::ofstream(path, std::ios::binary) << w.bytes().substr(0, 100);
  CHECK(message_of([&] { load_model(catalog(), path); }).starts_with(path));
}

TEST_CASE("catalog: errors in a config name its file") {
  const TestFolder folder;
  const fs::path file = folder / "broken.json";
  for (const std::string content :
       {"", "[]", "{\"model_type\": \"llama\"", "{}", "{\"model_type\": \"llama\"}", "\x80\x81"}) {
    std::ofstream(file, std::ios::binary) << content;
    const std::string line = message_of([&] { load_model(catalog(), file.string()); });
    CAPTURE(content);
    CAPTURE(line);
    CHECK(line.starts_with(file.string()));
    CHECK(line.find('\n') == std::string::npos);
  }
}

TEST_CASE("catalog: overrides reach the config") {
  const Architecture a =
      load_model(catalog(), "llama-7b", {{"num_key_value_heads", "8"}, {"num_hidden_layers", "2"}});
  CHECK(a.num_hidden_layers() == 2);
  CHECK(a.decoder.layers[0].heads == Heads{32, 8, 128});
}

TEST_CASE("catalog: a data folder without models is refused") {
  const TestFolder folder;
  const std::string line = message_of([&] { Catalog c(folder.path()); });
  CHECK(line.starts_with("data folder " + folder.path().string()));
  CHECK(line.find("models") != std::string::npos);
  CHECK_THROWS_AS(Catalog("/nonexistent"), Error);
  CHECK_THROWS_AS(catalog().names("no-such-folder"), Error);
}
