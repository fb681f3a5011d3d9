#include "reports/reproduce/formula.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast::reports {
namespace {

class Formula {
 public:
  Formula(const std::string& text, const std::string& place, const FormulaNames& names)
      : text_(text), place_(place), names_(names), exact_(!names.quantity) {
    const std::size_t longest = exact_ ? 200 : 1000;  // also how deep parentheses can be nested
    if (text_.size() > longest) {
      throw Error(place_, std::to_string(text_.size()) + " characters",
                  "a formula of at most " + std::to_string(longest));
    }
  }

  FormulaValue evaluate() {
    FormulaValue result = sum();
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

  /// Exact where both are.
  template <typename OfCounts, typename OfNumbers>
  FormulaValue combine(const FormulaValue& a, const FormulaValue& b, OfCounts of_counts,
                       OfNumbers of_numbers) const {
    const Count* const x = std::get_if<Count>(&a);
    const Count* const y = std::get_if<Count>(&b);
    if (x != nullptr && y != nullptr) return of_counts(*x, *y);
    return of_numbers(number_of(a, place_), number_of(b, place_));
  }

  FormulaValue sum() {
    FormulaValue value = product();
    for (;;) {
      if (take("+")) {
        value = combine(value, product(), std::plus<Count>(), std::plus<double>());
      } else if (take("-")) {
        value = combine(value, product(), std::minus<Count>(), std::minus<double>());
      } else {
        return value;
      }
    }
  }

  FormulaValue product() {
    FormulaValue value = power();
    for (;;) {
      if (take("*")) {
        value = combine(value, power(), std::multiplies<Count>(), std::multiplies<double>());
      } else if (take("/")) {
        value = quotient(value, power());
      } else {
        return value;
      }
    }
  }

  FormulaValue quotient(const FormulaValue& over, const FormulaValue& under) const {
    const Count* const divisor = std::get_if<Count>(&under);
    const bool whole = divisor != nullptr && divisor->is_constant() &&
                       divisor->denominator() == 1 && !divisor->is_zero();
    if (exact_ || (whole && std::holds_alternative<Count>(over) && divisor->at({}) <= largest)) {
      return std::get<Count>(over).scaled(
          1, static_cast<std::int64_t>(positive_constant(under, "divisor")));
    }
    return number_of(over, place_) / number_of(under, place_);
  }

  FormulaValue power() {
    const FormulaValue base = atom();
    if (!take("**")) return base;
    const std::uint64_t exponent = positive_constant(power(), "exponent");
    const Count* const count = std::get_if<Count>(&base);
    if (count == nullptr) return std::pow(number_of(base, place_), static_cast<double>(exponent));
    Count value = 1;
    for (std::uint64_t n = exponent; n > 0; --n) value = value * *count;
    return value;
  }

  std::uint64_t positive_constant(const FormulaValue& number, const std::string& what) const {
    const Count* const count = std::get_if<Count>(&number);
    const bool whole = count != nullptr && count->is_constant() && count->denominator() == 1;
    const std::uint64_t value = whole ? count->at({}) : 0;
    if (value == 0 || value > largest) {
      throw Error(place_, "another " + what, "a whole number above 0");
    }
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

  /// What is after "sum(". The variable is named after the terms, so these are read twice.
  FormulaValue sum_over_values() {
    if (in_sum_) fail("no sum within a sum");
    const std::size_t terms = next_;
    const std::size_t separator = text_.find(" for ", terms);
    std::string name = names_.list.name;
    std::vector<Count> values = names_.list.values;
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
    const std::size_t after = next_;
    in_sum_ = true;
    bound_name_ = name;
    Count total;
    next_ = terms;
    for (const Count& value : values) {
      next_ = terms;
      bound_ = value;
      total += count_of(sum(), place_);
    }
    in_sum_ = false;
    if (separator != std::string::npos) {
      skip_blanks();
      if (!values.empty() && next_ < separator) fail("'for'");
      next_ = after;
    }
    expect(")");
    return total;
  }

  /// Behind "name(".
  FormulaValue quantity(const std::string& name) {
    std::vector<FormulaValue> arguments;
    while (!take(")")) {
      if (!arguments.empty()) expect(",");
      const char quote = skip_blanks();
      if (quote == '\'' || quote == '"') {
        const std::size_t end = std::min(text_.find(quote, ++next_), text_.size());
        arguments.emplace_back(text_.substr(next_, end - next_));
        next_ = end;
        expect(std::string_view(&quote, 1));
      } else {
        arguments.push_back(sum());
      }
    }
    return names_.quantity(name, arguments);
  }

  FormulaValue atom() {
    const char c = skip_blanks();
    if (take("(")) {
      FormulaValue value = sum();
      if (!take(")")) fail("')'");
      return value;
    }
    const std::size_t begin = next_;
    const std::string name = word();
    if (std::isdigit(static_cast<unsigned char>(c))) {
      std::uint64_t number = 0;
      const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), number);
      const bool whole = error == std::errc() && rest == name.data() + name.size();
      if (whole && (exact_ || next_ == text_.size() || text_[next_] != '.')) return Count(number);
      double decimal = 0;
      const auto [end, wrong] =
          std::from_chars(text_.data() + begin, text_.data() + text_.size(), decimal);
      next_ = static_cast<std::size_t>(end - text_.data());
      if (!exact_ && wrong == std::errc()) return decimal;
    }
    if (name == "sum" && take("(")) return sum_over_values();
    if (in_sum_ && name == bound_name_) return bound_;
    if (!exact_ && !name.empty() && take("(")) return quantity(name);
    if (const auto variable = names_.variable(name)) return *variable;
    next_ = begin;
    fail("a number, a variable or '('");
  }

  static constexpr std::uint64_t largest = 1 << 20;  ///< divisor, exponent and end of a range
  const std::string text_;
  const std::string place_;
  const FormulaNames& names_;
  const bool exact_;
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

FormulaValue evaluate_formula(const std::string& text, const std::string& place,
                              const FormulaNames& names) {
  return Formula(text, place, names).evaluate();
}

double number_of(const FormulaValue& value, const std::string& place) {
  if (const double* const number = std::get_if<double>(&value)) return *number;
  static const SymbolValues one = Symbols().resolve({1, 1, 1});
  return value_at(count_of(value, place), one);
}

const Count& count_of(const FormulaValue& value, const std::string& place) {
  if (const Count* const count = std::get_if<Count>(&value)) return *count;
  const std::string* const word = std::get_if<std::string>(&value);
  throw Error(place, word != nullptr ? "'" + *word + "'" : "a rounded number", "an exact number");
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
