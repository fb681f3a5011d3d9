#include "model/config/layer_pruning.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "model/io/files/csv_table.h"
#include "model/record/recording.h"
#include "tests/model/message_of.h"
#include "tests/model/tiny_models.h"

namespace kvcast {
namespace {

using Indices = std::vector<std::size_t>;

TEST_CASE("layer pruning: the retained layers are those of KV Prediction's Table 4") {
  const CsvTable table =
      CsvTable::read(catalog().root() / "published/kvp_table4_retained_layers.csv");
  std::map<std::pair<std::string, std::string>, Indices> printed;  // by base model and fraction
  for (const CsvRow& row : table.rows()) {
    printed[{row.text("base_model"), row.text("retained_fraction")}].push_back(
        row.whole("retained_base_layer_index"));
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
  const auto refusal = [](const Architecture& model, const Indices& kept) {
    return message_of([&] { prune_layers(model, kept); });
  };
  CHECK(refusal(a, {}) ==
        "layer pruning of pythia-70m: got no layer to keep, expected at least one");
  CHECK(refusal(a, {0, 6}) ==
        "layer pruning of pythia-70m: got layer 6, expected indices from 0 to 5");
  const char* order = "expected indices in ascending order, each once";
  CHECK(has(refusal(a, {2, 1}), "got layer 1 after layer 2"));
  CHECK(has(refusal(a, {2, 1}), order));
  CHECK(has(refusal(a, {2, 2}), order));
  CHECK(refusal(t5, {0, 1}) ==
        "layer pruning of t5-small: got an encoder-decoder model, expected a decoder-only model");
}

}  // namespace
}  // namespace kvcast
