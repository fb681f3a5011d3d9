/// Formulas that papers print, as the `expression_python` columns of `data/published/` spell them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/count.h"
#include "model/io/files/csv_table.h"
#include "reports/reproduce/reproduce.h"

namespace kvcast::reports {

using FormulaVariables = std::map<std::string, Count>;

/// A variable with a value for each process: "c_i".
struct FormulaList {
  std::string name;
  std::vector<Count> values;
};

/// Evaluates the formula in a cell over polynomials: + - * / **, parentheses, whole numbers, the
/// variables given, sum(...) over the values of the list and sum(... for i in range(a,b));
/// divisors, exponents and ranges are constants. The result is exact, for all values of its symbols
/// at once. Throws Error with the cell's place, what was found and what was expected.
Count evaluate_formula(const CsvRow& row, std::string_view column,
                       const FormulaVariables& variables, const FormulaList& list = {});

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
