#include "model/config/layer_pruning.h"

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "model/io/weights/catalog.h"
#include "model/record/recording.h"

namespace kvcast {
namespace {

const Catalog& catalog() {
  static const Catalog c(std::string(KVCAST_SOURCE_DIR) + "/data");
  return c;
}

using Indices = std::vector<std::size_t>;

TEST_CASE("layer pruning: the retained layers are those of KV Prediction's Table 4") {
  std::ifstream file(catalog().root() / "published" / "kvp_table4_retained_layers.csv");
  std::map<std::pair<std::string, std::string>, Indices> printed;  // by base model and fraction
  std::string line;
  std::getline(file, line);
  REQUIRE(line ==
          "pruned_model,base_model,retained_fraction,position_in_pruned_model,"
          "retained_base_layer_index,source");
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string pruned_model, base_model, fraction, position, layer;
    for (std::string* field : {&pruned_model, &base_model, &fraction, &position, &layer}) {
      std::getline(fields, *field, ',');
    }
    printed[{base_model, fraction}].push_back(std::stoul(layer));
  }
  REQUIRE(printed.size() == 6);
  for (const auto& [key, layers] : printed) {
    CAPTURE(key.first);
    CAPTURE(key.second);
    const std::size_t num_layers = key.first == "OpenELM 1.1B" ? 28 : 36;
    CHECK(retained_layers(num_layers, std::stod(key.second)) == layers);
  }
}

TEST_CASE("layer pruning: layer counts that are no multiple of four keep what the rule says") {
  CHECK(retained_layers(6, 0.75) == Indices{0, 1, 2, 4, 5});
  CHECK(retained_layers(5, 0.5) == Indices{0, 2, 4});
  CHECK(retained_layers(6, 0.25) == Indices{0, 4});
}

TEST_CASE("layer pruning: other fractions have no rule") {
  for (const double fraction : {0.0, 0.33, 1.0, -0.5}) {
    CAPTURE(fraction);
    CHECK_THROWS_AS(retained_layers(28, fraction), Error);
  }
}

TEST_CASE("layer pruning: parameters of pruned OpenELMs are the published ones") {
  struct Case {
    std::string model;
    double keep;
    std::uint64_t parameters;
  };
  // data/published/README.md, E10; the paper's printed ratios follow from them.
  for (const Case& c : {Case{"openelm-1.1b", 0.75, 806'707'840},
                        {"openelm-1.1b", 0.50, 559'476'480},
                        {"openelm-1.1b", 0.25, 300'186'496},
                        {"openelm-3b", 0.75, 2'260'381'440},
                        {"openelm-3b", 0.50, 1'541'524'992},
                        {"openelm-3b", 0.25, 791'211'264}}) {
    CAPTURE(c.model);
    CAPTURE(c.keep);
    const Architecture a = load_model(catalog(), c.model);
    const Indices kept = retained_layers(a.num_hidden_layers(), c.keep);
    CHECK(count_parameters(prune_layers(a, kept)) == c.parameters);
  }
}

TEST_CASE("layer pruning: the layers kept are the named ones, with their own sizes") {
  const Architecture a = load_model(catalog(), "openelm-1.1b");  // layers differ in size
  const Architecture pruned = prune_layers(a, Indices{3, 17, 20});
  REQUIRE(pruned.num_hidden_layers() == 3);
  CHECK(pruned.decoder.layers[0] == a.decoder.layers[3]);
  CHECK(pruned.decoder.layers[1] == a.decoder.layers[17]);
  CHECK(pruned.decoder.layers[2] == a.decoder.layers[20]);
  CHECK(pruned.vocab_size == a.vocab_size);
  CHECK(pruned.name != a.name);
}

TEST_CASE("layer pruning: keeping every layer changes no count") {
  const Architecture a = load_model(catalog(), "pythia-70m");
  CHECK(count_parameters(prune_layers(a, Indices{0, 1, 2, 3, 4, 5})) == count_parameters(a));
}

TEST_CASE("layer pruning: impossible selections are refused with what would be right") {
  const Architecture a = load_model(catalog(), "pythia-70m");  // 6 layers
  const Architecture t5 = load_model(catalog(), "t5-small");
  const auto prune = [](const Architecture& model, const Indices& kept) {
    return prune_layers(model, kept);
  };
  CHECK_THROWS_WITH_AS(prune(a, {}),
                       "layer pruning of pythia-70m: got no layer to keep, expected at least one",
                       Error);
  CHECK_THROWS_WITH_AS(prune(a, {0, 6}),
                       "layer pruning of pythia-70m: got layer 6, expected indices from 0 to 5",
                       Error);
  CHECK_THROWS_WITH_AS(prune(a, {2, 1}),
                       "layer pruning of pythia-70m: got layer 1 after layer 2, expected indices "
                       "in ascending order, each once",
                       Error);
  CHECK_THROWS_AS(prune(a, {2, 2}), Error);
  CHECK_THROWS_WITH_AS(
      prune(t5, {0, 1}),
      "layer pruning of t5-small: got an encoder-decoder model, expected a decoder-only model",
      Error);
}

}  // namespace
}  // namespace kvcast
