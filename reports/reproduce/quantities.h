/// What the formulas of `data/published/*.json` can ask for by name: a model's property, an
/// estimate's value, and what a paper's table needs computed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/io/weights/catalog.h"
#include "reports/reproduce/formula.h"

namespace kvcast::reports {

/// What stands between a quantity's parentheses. Throws Error starting with `place` for arguments
/// that are missing or of another kind.
class QuantityArguments {
 public:
  QuantityArguments(const std::vector<FormulaValue>& values, const std::string& place)
      : values_(values), place_(place) {}

  std::size_t size() const { return values_.size(); }
  const std::string& place() const { return place_; }
  const FormulaValue& at(std::size_t index) const;
  const std::string& word(std::size_t index) const;
  /// A word, or "" after the last argument.
  std::string word_or_none(std::size_t index) const;
  double number(std::size_t index) const { return number_of(at(index), place_); }
  std::uint64_t whole(std::size_t index) const;
  const Count& count(std::size_t index) const { return count_of(at(index), place_); }

 private:
  const std::vector<FormulaValue>& values_;
  const std::string& place_;
};

using Quantity = std::function<FormulaValue(const QuantityArguments&)>;
using Quantities = std::map<std::string, Quantity>;

/// The value of a key; the first time, what `make` returns.
template <typename Map, typename Make>
auto& remembered(Map& map, const typename Map::key_type& key, Make make) {
  auto found = map.find(key);
  if (found == map.end()) found = map.emplace(key, make()).first;
  return found->second;
}

/// All quantities; they keep what they have loaded and recorded. `catalog` must outlive them.
/// `engine`: as PublishedTable::rows takes it.
Quantities make_quantities(const Catalog& catalog, const std::string& engine = {});

/// "openelm-3b", "llama-7b num_key_value_heads=1" (with overrides) or "openelm-3b lp-0.75" (with
/// that share of its layers). Throws Error as load_model does.
Architecture load_described(const Catalog& catalog, const std::string& description);

/// What blanks separate.
std::vector<std::string> words_of(const std::string& text);

// ---- By file: quantities_PAPER.cpp
void add_model_quantities(const Catalog& catalog, const std::string& engine, Quantities& all);
void add_kvp_quantities(const Catalog& catalog, Quantities& all);
void add_kvr_quantities(const Catalog& catalog, Quantities& all);
void add_slim_quantities(const Catalog& catalog, Quantities& all);
void add_specprefill_quantities(const Catalog& catalog, Quantities& all);

}  // namespace kvcast::reports
