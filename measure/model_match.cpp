#include "measure/model_match.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/base/error.h"
#include "model/record/recording.h"

namespace kvcast::measure {
namespace {

/// llama.cpp counts all numbers in a GGUF file, also small tables of frequencies: 64 numbers of 8
/// billion.
constexpr double parameter_tolerance = 1e-5;

bool same_shape(const Architecture& a, const Architecture& b) {
  if (a.hidden_size != b.hidden_size || a.vocab_size != b.vocab_size ||
      a.decoder.layers.size() != b.decoder.layers.size()) {
    return false;
  }
  const LayerShape& x = a.decoder.layers.front();
  const LayerShape& y = b.decoder.layers.front();
  return x.intermediate_size == y.intermediate_size &&
         x.heads.num_attention_heads == y.heads.num_attention_heads &&
         x.heads.num_key_value_heads == y.heads.num_key_value_heads;
}

bool same_number(std::uint64_t a, std::uint64_t b) {
  return std::abs(static_cast<double>(a) / static_cast<double>(b) - 1) <= parameter_tolerance;
}

/// Throws Error when a file with `parameters` is of another model. Files may hold the embedding
/// table a second time, as the head, and may pad the vocabulary, which adds whole rows to each
/// table.
void check_parameters(const Architecture& a, std::uint64_t parameters) {
  const std::uint64_t own = count_parameters(a);
  const auto is_of = [&](std::uint64_t expected, std::uint64_t row) {
    // Our choice: more than padding to a multiple of 128 or 512, less than another vocabulary.
    constexpr std::uint64_t most_rows = 1024;
    const std::uint64_t difference =
        parameters > expected ? parameters - expected : expected - parameters;
    return same_number(parameters, expected) ||
           (difference % row == 0 && difference / row <= most_rows);
  };
  if (is_of(own, (a.tied_embeddings ? 1 : 2) * a.hidden_size)) return;
  if (a.tied_embeddings && is_of(own + a.vocab_size * a.hidden_size, 2 * a.hidden_size)) return;
  throw Error(fmt::format("its model has {} parameters, and {} has {}", parameters, a.name, own));
}

}  // namespace

std::string not_in_catalog(std::string_view kind, std::string_view name,
                           const std::vector<std::string>& names) {
  const std::string hint = did_you_mean(name, names);
  return fmt::format("the catalog has no {} '{}'{}{}", kind, name, hint.empty() ? "" : "; ", hint);
}

std::pair<std::string, std::vector<ConfigOverride>> split_overrides(const std::string& model) {
  const std::size_t brace = model.find('{');
  if (brace == std::string::npos || model.back() != '}') return {model, {}};
  std::vector<ConfigOverride> overrides;
  std::size_t begin = brace + 1;
  while (begin < model.size()) {
    const std::size_t end = std::min(model.find(',', begin), model.size() - 1);
    const std::string pair = model.substr(begin, end - begin);
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos) throw Error("model " + model, "'" + pair + "'", "KEY=VALUE");
    overrides.push_back({pair.substr(0, equals), pair.substr(equals + 1)});
    begin = end + 1;
  }
  return {model.substr(0, brace), overrides};
}

std::string plain_model_name(std::string name) {
  name = lower_case(name.substr(name.rfind('/') + 1));
  if (name.starts_with("meta-")) name.erase(0, 5);
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (const std::string_view ending : {"-hf", "-instruct", "-chat", "-it", "-base", "-fp8"}) {
      if (!name.ends_with(ending)) continue;
      name.erase(name.size() - ending.size());
      shorter = true;
    }
  }
  return name;
}

std::string ModelMatch::find(const std::string& name, std::uint64_t parameters) {
  std::string& found = found_[{name, parameters}];
  if (found.empty()) found = search(name, parameters);
  return found;
}

std::string ModelMatch::named(const std::string& name) const {
  const auto known = [&](const std::string& n) {
    return std::find(names_.begin(), names_.end(), n) != names_.end();
  };
  std::error_code ec;
  std::string listed = catalog_.canonical("models", name);
  if (known(listed) || std::filesystem::exists(name, ec)) return listed;
  const std::string plain = plain_model_name(name);
  if (known(plain)) return plain;
  throw Error(not_in_catalog("model", plain, names_));
}

std::string ModelMatch::search(const std::string& name, std::uint64_t parameters) {
  if (!name.empty()) {
    std::string model = named(name);
    if (parameters > 0) check_parameters(load_model(catalog_, model), parameters);
    return model;
  }
  if (parameters == 0) throw Error("its file names no model; expected --model");
  std::vector<std::string> matches;
  for (const std::string& model : names_) {
    std::uint64_t& own = counted_[model];
    if (own == 0) own = count_parameters(load_model(catalog_, model));
    if (same_number(own, parameters)) matches.push_back(model);
  }
  if (matches.empty()) {
    throw Error(fmt::format("no catalog model has {} parameters; expected --model", parameters));
  }
  std::string longest = matches.front();
  const Architecture first = load_model(catalog_, longest);
  std::size_t most_positions = first.max_position_embeddings;
  for (const std::string& match : matches) {
    const Architecture other = load_model(catalog_, match);
    if (!same_shape(first, other)) {
      throw Error(fmt::format("{} parameters are those of {}; expected --model", parameters,
                              fmt::join(matches, ", ")));
    }
    if (other.max_position_embeddings <= most_positions) continue;
    most_positions = other.max_position_embeddings;
    longest = match;
  }
  return longest;
}

}  // namespace kvcast::measure
