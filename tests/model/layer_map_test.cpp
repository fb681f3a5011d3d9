#include "model/config/layer_map.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/config/layer_pruning.h"
#include "model/io/files/csv_table.h"
#include "tests/model/message_of.h"
#include "tests/model/tiny_models.h"
#include "tests/test_folder.h"

namespace kvcast {
namespace {

Architecture model(const std::string& name) { return load_model(catalog(), name); }

Architecture pruned(const Architecture& a, double keep) {
  return prune_layers(a, retained_layers(a.num_hidden_layers(), keep));
}

/// Pairs 0,0,1,1,..., `last` of them, and then single indices up to `end`, as methods in the
/// released yaml files list them.
LayerMap pairs_then_singles(std::size_t last, std::size_t end, std::size_t times = 2,
                            std::size_t then = 1) {
  LayerMap map;
  for (std::size_t j = 0; j < end; ++j) map.insert(map.end(), j < last ? times : then, j);
  return map;
}

TEST_CASE("layer map: the code's maps are those of the released configurations") {
  const Architecture b1 = model("openelm-1.1b"), b3 = model("openelm-3b");
  // apple/corenet, projects/kv-prediction/openelm: 0,0,...,7,7,8,...,19 and so on.
  CHECK(code_layer_map(b1, model("openelm-450m")) == pairs_then_singles(8, 20));
  CHECK(code_layer_map(b1, model("openelm-270m")) == pairs_then_singles(12, 16));
  CHECK(code_layer_map(b3, b1) == pairs_then_singles(8, 28));
  CHECK(code_layer_map(b3, model("openelm-450m")) == pairs_then_singles(16, 20));
  CHECK(code_layer_map(b3, model("openelm-270m")) == pairs_then_singles(4, 16, 3, 2));
}

/// Table 1 by KVP model, and its corrections.
struct Printed {
  std::map<std::string, LayerMap> maps;
  std::map<std::string, std::map<std::size_t, std::size_t>> corrections;
};

Printed read_table_1() {
  Printed printed;
  const auto folder = catalog().root() / "published";
  const CsvTable table = CsvTable::read(folder / "kvp_table1_layer_map.csv");
  for (const CsvRow& row : table.rows()) {
    LayerMap& map = printed.maps[row.text("kvp_model")];
    REQUIRE(row.whole("base_layer_index") == map.size());
    map.push_back(row.whole("aux_layer_index"));
  }
  const CsvTable errata = CsvTable::read(folder / "errata.csv");
  for (const CsvRow& row : errata.rows()) {
    if (row.text("file") != "kvp_table1_layer_map.csv") continue;
    const std::string& key = row.text("key");  // kvp_model=NAME;base_layer_index=N
    const std::size_t name = key.find('=') + 1;
    printed.corrections[key.substr(name, key.find(';') - name)]
                       [std::stoul(key.substr(key.rfind('=') + 1))] = row.whole("corrected");
  }
  REQUIRE(printed.maps.size() == 11);
  REQUIRE(printed.corrections.size() == 3);
  return printed;
}

TEST_CASE("layer map: paper's maps are Table 1 as printed, code's with its errata") {
  const Printed printed = read_table_1();
  for (const auto& [name, map] : printed.maps) {
    CAPTURE(name);
    const bool small = name.starts_with("OE1.1B");
    const Architecture base = model(small ? "openelm-1.1b" : "openelm-3b");
    const std::string end = name.substr(name.rfind('-') + 1);
    std::string canonical = "openelm-" + end;
    std::transform(canonical.begin(), canonical.end(), canonical.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const bool lp = name.find("-LP-") != std::string::npos;
    const Architecture auxiliary = lp ? pruned(base, std::stod(end)) : model(canonical);
    if (small) {
      CHECK(paper_layer_map(base, auxiliary) == map);
    } else {
      // 28 printed entries, 36 layers.
      CHECK(has(message_of([&] { paper_layer_map(base, auxiliary); }), "28 entries for 36 layers"));
    }
    LayerMap right = map;
    const auto corrections = printed.corrections.find(name);
    if (corrections != printed.corrections.end()) {
      for (const auto& [layer, index] : corrections->second) right.at(layer) = index;
    }
    LayerMap code = code_layer_map(base, auxiliary);
    CHECK(code.size() == base.num_hidden_layers());
    code.resize(right.size());
    CHECK(code == right);
  }
}

TEST_CASE("layer map: an auxiliary deeper than the base serves it with its first layers") {
  const Architecture small = model("openelm-270m"), large = model("openelm-450m");
  const LayerMap map = code_layer_map(small, large);
  CHECK(map == pairs_then_singles(0, 16));
  CHECK(needed_layers(map) == 16);
}

TEST_CASE("layer map: layers before the first kept one take that") {
  const Architecture base = model("openelm-270m");
  const std::vector<std::size_t> kept{3, 5};
  const LayerMap map = code_layer_map(base, prune_layers(base, kept));
  LayerMap expected(16, 1);
  std::fill_n(expected.begin(), 5, 0);
  CHECK(map == expected);
}

TEST_CASE("layer map: files are checked") {
  const Architecture base = pruned(model("openelm-270m"), 0.25);  // 4 layers
  const Architecture auxiliary =
      prune_layers(model("openelm-450m"), std::vector<std::size_t>{0, 1});
  const TestFolder folder;
  const auto read = [&](const std::string& text) {
    std::ofstream(folder / "map") << text;
    return read_layer_map((folder / "map").string(), base, auxiliary);
  };
  CHECK(read("0,0\n1, 1\n") == LayerMap{0, 0, 1, 1});
  const auto refused = [&](const std::string& text, const std::string& part) {
    const std::string line = message_of([&] { read(text); });
    CAPTURE(line);
    CHECK(line.find(part) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  };
  refused("0 0 1", "got 3 indices, expected 4");
  refused("0 0 1 1 1", "got 5 indices, expected 4");
  refused("0 1 0 1", "got auxiliary layer 0 for layer 2 after 1, expected indices that do not");
  refused("0 0 1 2", "got auxiliary layer 2 for layer 3, expected indices from 0 to 1");
  refused("0 0 1 -1", "got something else at byte 6");
  refused("0 0 1 1x", "got something else at byte 6");
  refused("0 0 1 99999999999999999999999", "got something else at byte 6");
  CHECK(message_of([&] { read_layer_map("nowhere", base, auxiliary); }).find("no such file") !=
        std::string::npos);
  CHECK(message_of([&] {
          read_layer_map(folder.path().string(), base, auxiliary);
        }).find("no such file, or one that cannot be read") != std::string::npos);
}

}  // namespace
}  // namespace kvcast
