/// Formulas: those that papers print, as the `expression_python` columns of `data/published/` spell
/// them, and those of its JSON files, which say what we compute.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/base/count.h"
#include "model/io/files/csv_table.h"
#include "reports/reproduce/reproduce.h"

namespace kvcast::reports {

/// An exact polynomial, a rounded number, or a word (an argument of a quantity, its name).
using FormulaValue = std::variant<Count, double, std::string>;

/// A count at one token of one sequence, fractions kept; throws Error starting with `place` for a
/// word.
double number_of(const FormulaValue& value, const std::string& place);
const Count& count_of(const FormulaValue& value, const std::string& place);

/// A variable with a value for each process: "c_i".
struct FormulaList {
  std::string name;
  std::vector<Count> values;
};

/// What the names in a formula mean.
struct FormulaNames {
  /// Nothing for an unknown name.
  std::function<std::optional<FormulaValue>(const std::string& name)> variable;
  FormulaList list = {};
  /// Quantities, name(argument, ...), with decimals, words in quotes, and quotients that are
  /// rounded where they are not exact. Unset: a printed formula, all of it exact.
  std::function<FormulaValue(const std::string& name, const std::vector<FormulaValue>& arguments)>
      quantity = {};
};

/// Evaluates over polynomials: + - * / **, parentheses, whole numbers, the variables given,
/// sum(...) over the values of the list and sum(... for i in range(a,b)); divisors, exponents and
/// ranges are constants. The result is exact, for all values of its symbols at once, unless a
/// quantity is not. Throws Error with `place`, what was found and what was expected.
FormulaValue evaluate_formula(const std::string& text, const std::string& place,
                              const FormulaNames& names);

/// The value of a count, fractions kept.
double value_at(const Count& count, const SymbolValues& values);

/// What we count: a polynomial, or the ratio of two.
struct CountRatio {
  Count over;
  Count under = 1;
};

/// A printed formula beside ours. The row shows both at `values`; they agree when they are the same
/// for all values of the symbols.
ReproducedRow compare_formula(const CsvRow& row, std::string cell, const Count& formula,
                              const CountRatio& ours, const SymbolValues& values);

}  // namespace kvcast::reports
