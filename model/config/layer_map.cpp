#include "model/config/layer_map.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast {
namespace {

/// Table 1a has a column for each layer of OpenELM-1.1B, and rows for auxiliaries of 20 and 16.
constexpr std::size_t printed_layers = 28;
constexpr std::size_t printed_canonical[] = {20, 16};

constexpr std::size_t max_map_bytes = std::size_t{1} << 20;  // 10,000 layers take a twentieth

/// The auxiliary consists of layers of a model of the base's depth.
bool is_pruned_base(const Architecture& base, const Architecture& auxiliary) {
  return !auxiliary.pruning.kept.empty() && auxiliary.pruning.of == base.num_hidden_layers();
}

LayerMap last_kept_map(const Architecture& base, const Architecture& auxiliary) {
  const std::vector<std::size_t>& kept = auxiliary.pruning.kept;
  LayerMap map;
  std::size_t last = 0;
  for (std::size_t i = 0; i < base.num_hidden_layers(); ++i) {
    while (last + 1 < kept.size() && kept[last + 1] <= i) ++last;
    map.push_back(last);
  }
  return map;
}

LayerMap map_from_file(const std::string& path, std::size_t layers) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) {
    text.resize(max_map_bytes);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
  }
  if (!file.eof()) {
    throw Error("layer map '" + path + "'", "no such file, or one that cannot be read",
                fmt::format("code, paper, or a file of {} whole numbers", layers));
  }
  LayerMap map;
  constexpr std::string_view between = " ,\t\r\n";
  std::size_t end = 0;
  for (std::size_t at = 0; (at = text.find_first_not_of(between, end)) != std::string::npos;) {
    end = std::min(text.find_first_of(between, at), text.size());
    std::size_t index = 0;
    const auto [rest, error] = std::from_chars(&text[at], text.data() + end, index);
    if (error != std::errc() || rest != text.data() + end) {
      throw Error("layer map " + path, fmt::format("something else at byte {}", at),
                  "whole numbers with blanks, commas or line ends between them");
    }
    map.push_back(index);
  }
  return map;
}

}  // namespace

LayerMap code_layer_map(const Architecture& base, const Architecture& auxiliary) {
  if (is_pruned_base(base, auxiliary)) return last_kept_map(base, auxiliary);
  const std::size_t quotient = base.num_hidden_layers() / auxiliary.num_hidden_layers();
  const std::size_t remainder = base.num_hidden_layers() % auxiliary.num_hidden_layers();
  LayerMap map;
  for (std::size_t j = 0; j < auxiliary.num_hidden_layers(); ++j) {
    map.insert(map.end(), quotient + (j < remainder ? 1 : 0), j);
  }
  return map;
}

LayerMap paper_layer_map(const Architecture& base, const Architecture& auxiliary) {
  const std::size_t layers = base.num_hidden_layers();
  if (layers == printed_layers && is_pruned_base(base, auxiliary)) {
    return last_kept_map(base, auxiliary);
  }
  const bool canonical = std::find(std::begin(printed_canonical), std::end(printed_canonical),
                                   auxiliary.num_hidden_layers()) != std::end(printed_canonical);
  if (layers != printed_layers || !canonical) {
    throw Error("layer map paper",
                fmt::format("a base of {} and an auxiliary of {} layers", layers,
                            auxiliary.num_hidden_layers()),
                "OpenELM-1.1B's 28, with 20, 16 or some of them: the table's rows of OpenELM-3B "
                "have 28 entries for 36 layers; use code");
  }
  LayerMap map;
  for (std::size_t i = 0; i < layers; ++i) map.push_back(i / 2);
  return map;
}

LayerMap read_layer_map(std::string_view text, const Architecture& base,
                        const Architecture& auxiliary) {
  if (text == "code") return code_layer_map(base, auxiliary);
  if (text == "paper") return paper_layer_map(base, auxiliary);
  const LayerMap map = map_from_file(std::string(text), base.num_hidden_layers());
  check_layer_map(map, "layer map " + std::string(text), base, auxiliary);
  return map;
}

void check_layer_map(const LayerMap& map, std::string_view place, const Architecture& base,
                     const Architecture& auxiliary) {
  const std::string where(place);
  if (map.size() != base.num_hidden_layers()) {
    throw Error(where, fmt::format("{} indices", map.size()),
                fmt::format("{}, one for each layer of {}", base.num_hidden_layers(), base.name));
  }
  for (std::size_t i = 0; i < map.size(); ++i) {
    if (map[i] >= auxiliary.num_hidden_layers()) {
      throw Error(where, fmt::format("auxiliary layer {} for layer {}", map[i], i),
                  fmt::format("indices from 0 to {}, the layers of {}",
                              auxiliary.num_hidden_layers() - 1, auxiliary.name));
    }
    if (i > 0 && map[i] < map[i - 1]) {
      throw Error(where,
                  fmt::format("auxiliary layer {} for layer {} after {}", map[i], i, map[i - 1]),
                  "indices that do not descend");
    }
  }
}

std::size_t needed_layers(const LayerMap& map) {
  return map.empty() ? 0 : *std::max_element(map.begin(), map.end()) + 1;
}

}  // namespace kvcast
