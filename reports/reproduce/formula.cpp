#include "reports/reproduce/formula.h"

#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast::reports {
namespace {

class Formula {
 public:
  Formula(const CsvRow& row, std::string_view column, const FormulaVariables& variables,
          const FormulaList& list)
      : text_(row.text(column)), place_(row.place(column)), variables_(variables), list_(list) {
    constexpr std::size_t longest = 200;  // also how deep parentheses can be nested
    if (text_.size() > longest) {
      throw Error(place_, std::to_string(text_.size()) + " characters",
                  "a formula of at most " + std::to_string(longest));
    }
  }

  Count evaluate() {
    Count result = sum();
    if (skip_blanks() != '\0') fail("an operator or the end");
    return result;
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    const std::string rest = text_.substr(next_);
    throw Error(place_, rest.empty() ? "the end of '" + text_ + "'" : "'" + rest + "'", expected);
  }

  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

  char skip_blanks() {
    while (next_ < text_.size() && text_[next_] == ' ') ++next_;
    return next_ < text_.size() ? text_[next_] : '\0';
  }

  bool take(std::string_view token) {
    skip_blanks();
    if (text_.compare(next_, token.size(), token) != 0) return false;
    next_ += token.size();
    return true;
  }

  Count sum() {
    Count value = product();
    for (;;) {
      if (take("+")) {
        value += product();
      } else if (take("-")) {
        value -= product();
      } else {
        return value;
      }
    }
  }

  Count product() {
    Count value = power();
    for (;;) {
      if (take("*")) {
        value = value * power();
      } else if (take("/")) {
        value = value.scaled(1, static_cast<std::int64_t>(positive_constant(power(), "divisor")));
      } else {
        return value;
      }
    }
  }

  Count power() {
    const Count base = atom();
    if (!take("**")) return base;
    Count value = 1;
    for (std::uint64_t n = positive_constant(power(), "exponent"); n > 0; --n) value = value * base;
    return value;
  }

  std::uint64_t positive_constant(const Count& count, const std::string& what) const {
    const std::uint64_t limit = 1 << 20;
    const bool whole = count.is_constant() && count.denominator() == 1;
    const std::uint64_t value = whole ? count.at({}) : 0;
    if (value == 0 || value > limit)
      throw Error(place_, "another " + what, "a whole number above 0");
    return value;
  }

  std::string word() {
    skip_blanks();
    const std::size_t begin = next_;
    while (next_ < text_.size() && is_word(text_[next_])) ++next_;
    return text_.substr(begin, next_ - begin);
  }

  void expect(std::string_view token) {
    if (!take(token)) fail("'" + std::string(token) + "'");
  }

  /// What is behind "sum(". The variable is named behind the terms, so these are read twice.
  Count sum_over_values() {
    if (in_sum_) fail("no sum within a sum");
    const std::size_t terms = next_;
    const std::size_t separator = text_.find(" for ", terms);
    std::string name = list_.name;
    std::vector<Count> values = list_.values;
    if (separator != std::string::npos) {
      next_ = separator;
      expect("for");
      name = word();
      for (const char* token : {"in", "range", "("}) expect(token);
      const std::uint64_t first = positive_constant(sum(), "first value");
      expect(",");
      const std::uint64_t end = positive_constant(sum(), "end of a range");
      expect(")");
      values.clear();
      for (std::uint64_t i = first; i < end; ++i) values.emplace_back(i);
    }
    if (separator == std::string::npos && values.empty()) fail("... for i in range(a,b)");
    const std::size_t behind = next_;
    in_sum_ = true;
    bound_name_ = name;
    Count total;
    next_ = terms;
    for (const Count& value : values) {
      next_ = terms;
      bound_ = value;
      total += sum();
    }
    in_sum_ = false;
    if (separator != std::string::npos) {
      skip_blanks();
      if (!values.empty() && next_ < separator) fail("'for'");
      next_ = behind;
    }
    expect(")");
    return total;
  }

  Count atom() {
    const char c = skip_blanks();
    if (take("(")) {
      Count value = sum();
      if (!take(")")) fail("')'");
      return value;
    }
    const std::size_t begin = next_;
    const std::string name = word();
    if (std::isdigit(static_cast<unsigned char>(c))) {
      std::uint64_t number = 0;
      const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), number);
      if (error == std::errc() && rest == name.data() + name.size()) return number;
    }
    if (name == "sum" && take("(")) return sum_over_values();
    if (in_sum_ && name == bound_name_) return bound_;
    const auto variable = variables_.find(name);
    if (variable != variables_.end()) return variable->second;
    next_ = begin;
    fail("a number, a variable or '('");
  }

  const std::string text_;
  const std::string place_;
  const FormulaVariables& variables_;
  const FormulaList& list_;
  std::size_t next_ = 0;
  bool in_sum_ = false;
  std::string bound_name_;  ///< the variable of the sum that is read, and its value
  Count bound_;
};

/// A count as printed: all digits of a whole number, the shortest decimals of a fraction.
std::string spell(const Count& count, const SymbolValues& values) {
  const auto denominator = static_cast<std::uint64_t>(count.denominator());
  const std::uint64_t numerator = count.scaled(count.denominator(), 1).at(values);
  if (numerator % denominator == 0) return std::to_string(numerator / denominator);
  return fmt::format("{}", value_at(count, values));
}

}  // namespace

Count evaluate_formula(const CsvRow& row, std::string_view column,
                       const FormulaVariables& variables, const FormulaList& list) {
  return Formula(row, column, variables, list).evaluate();
}

double value_at(const Count& count, const SymbolValues& values) {
  const std::uint64_t numerator = count.scaled(count.denominator(), 1).at(values);
  return static_cast<double>(numerator) / static_cast<double>(count.denominator());
}

ReproducedRow compare_formula(const CsvRow& row, std::string cell, const Count& formula,
                              const CountRatio& ours, const SymbolValues& values) {
  ReproducedRow result;
  set_origin(row, result);
  result.cell = std::move(cell);
  result.published = spell(formula, values);
  result.ours = value_at(ours.over, values) / value_at(ours.under, values);
  const double published = value_at(formula, values);
  result.relative_error = result.ours == published ? 0 : result.ours / published - 1;
  result.exact = true;
  result.agrees = ours.over == formula * ours.under;
  return result;
}

}  // namespace kvcast::reports
