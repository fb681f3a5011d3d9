#include "model/io/weights/routed_tokens.h"

#include <charconv>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/io/files/csv_table.h"
#include "model/io/files/csv_writer.h"

namespace kvcast {
namespace {

/// Tokens of all experts of a layer.
std::uint64_t sum(const std::vector<std::uint64_t>& tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), std::uint64_t{0});
}

RoutedTokens read(const CsvTable& table, const Architecture& model) {
  const std::vector<LayerShape>& layers = model.decoder.layers;
  RoutedTokens routed;
  std::set<std::pair<std::uint64_t, std::uint64_t>> known;
  for (const CsvRow& row : table.rows()) {
    const std::uint64_t layer = row.whole("layer");
    if (layer >= layers.size() || !layers[layer].experts) {
      throw Error(row.place("layer"), std::to_string(layer),
                  "a layer of " + model.name + " with experts, counted from 0");
    }
    const std::uint64_t experts = layers[layer].experts->routing.num_experts;
    const std::uint64_t expert = row.whole("expert");
    if (expert >= experts) {
      throw Error(row.place("expert"), std::to_string(expert),
                  "0 to " + std::to_string(experts - 1));
    }
    if (!known.emplace(layer, expert).second) {
      throw Error(row.place("expert"), "expert " + std::to_string(expert) + " again",
                  "each expert of a layer once");
    }
    const std::uint64_t tokens = row.whole("tokens");
    // Sums of a layer then fit 64 bits.
    constexpr std::uint64_t most = std::uint64_t{1} << 40;
    if (tokens > most) {
      throw Error(row.place("tokens"), std::to_string(tokens), "at most " + std::to_string(most));
    }
    std::vector<std::uint64_t>& of_layer = routed[layer];
    of_layer.resize(experts);
    of_layer[expert] = tokens;
  }
  return routed;
}

void check_has_experts(const Architecture& model) {
  if (layers_with_experts(model.decoder) > 0) return;
  throw Error("the model " + model.name, "no experts", "a mixture of experts");
}

/// A whole number for a model with experts; the limits are ours.
std::uint64_t parse_of_experts(std::string_view key, const std::string& text, std::uint64_t least,
                               std::uint64_t most, const Architecture& model) {
  check_has_experts(model);
  std::uint64_t n = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || rest != text.data() + text.size() || n < least || n > most) {
    throw Error(key, "'" + text + "'", fmt::format("a whole number from {} to {}", least, most));
  }
  return n;
}

}  // namespace

void write_routed_tokens(const std::filesystem::path& path, const RoutedTokens& routed) {
  CsvWriter csv(path, {"layer", "expert", "tokens"});
  for (const auto& [layer, tokens] : routed) {
    for (std::uint64_t expert = 0; expert < tokens.size(); ++expert) {
      csv.cell(layer).cell(expert).cell(tokens[expert]);
      csv.end_row();
    }
  }
  csv.commit();
}

void expect_routed_tokens(const std::filesystem::path& path, Architecture& model) {
  check_has_experts(model);
  const CsvTable table = CsvTable::read(path);
  const RoutedTokens routed = read(table, model);
  for (std::uint64_t i = 0; i < model.decoder.layers.size(); ++i) {
    std::optional<Experts>& e = model.decoder.layers[i].experts;
    if (!e) continue;
    const std::string place = table.name() + ": layer " + std::to_string(i);
    const auto found = routed.find(i);
    const std::uint64_t all = found == routed.end() ? 0 : sum(found->second);
    if (all == 0) throw Error(place, "no tokens", "those of its experts");
    const auto chosen = static_cast<double>(e->routing.num_experts_per_tok);
    e->probabilities.clear();
    for (std::uint64_t expert = 0; expert < found->second.size(); ++expert) {
      const double share = static_cast<double>(found->second[expert]) / static_cast<double>(all);
      if (share * chosen > 1) {
        throw Error(
            place + ", expert " + std::to_string(expert),
            std::to_string(found->second[expert]) + " of " + std::to_string(all) + " choices",
            "at most 1 of " + std::to_string(e->routing.num_experts_per_tok) +
                ", as a token chooses an expert once");
      }
      e->probabilities.push_back(share * chosen);
    }
  }
}

void expect_fullest(const std::string& draws, Architecture& model) {
  const std::uint64_t n = parse_of_experts("expert_draws", draws, 1, 1'000'000, model);
  for (LayerShape& layer : model.decoder.layers) {
    if (layer.experts) layer.experts->draws = n;
  }
}

void copy_experts(const std::string& copies, Architecture& model) {
  const std::uint64_t n = parse_of_experts("expert_copies", copies, 0, 65'536, model);
  for (LayerShape& layer : model.decoder.layers) {
    if (layer.experts) layer.experts->copies = n;
  }
}

}  // namespace kvcast
