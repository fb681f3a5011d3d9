#include "reports/formula.h"

#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "model/error.h"

namespace kvcast::reports {
namespace {

class Formula {
 public:
  Formula(const CsvRow& row, std::string_view column, const FormulaVariables& variables)
      : text_(row.text(column)), place_(row.place(column)), variables_(variables) {
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

  Count atom() {
    const char c = skip_blanks();
    if (take("(")) {
      Count value = sum();
      if (!take(")")) fail("')'");
      return value;
    }
    const std::size_t begin = next_;
    while (next_ < text_.size() && is_word(text_[next_])) ++next_;
    const std::string word = text_.substr(begin, next_ - begin);
    if (std::isdigit(static_cast<unsigned char>(c))) {
      std::uint64_t number = 0;
      const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), number);
      if (error == std::errc() && rest == word.data() + word.size()) return number;
    }
    const auto variable = variables_.find(word);
    if (variable != variables_.end()) return variable->second;
    next_ = begin;
    fail("a number, a variable or '('");
  }

  const std::string text_;
  const std::string place_;
  const FormulaVariables& variables_;
  std::size_t next_ = 0;
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
                       const FormulaVariables& variables) {
  return Formula(row, column, variables).evaluate();
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
