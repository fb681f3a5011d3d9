#include "model/base/count.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "model/base/error.h"

namespace kvcast {
namespace {

__extension__ using Wide = __int128;  // room for a product of two coefficients

Error overflow() {
  return Error("a FLOP or byte count exceeds 64 bits; expected a smaller model, batch or prompt");
}

std::int64_t narrow(Wide value) {
  if (value > std::numeric_limits<std::int64_t>::max() ||
      value < std::numeric_limits<std::int64_t>::min()) {
    throw overflow();
  }
  return static_cast<std::int64_t>(value);
}

/// Monomials are ordered as their keys are, which takes two comparisons instead of six.
std::pair<std::uint64_t, std::uint32_t> key_of(const Monomial& m) {
  const auto f = std::bit_cast<std::array<std::uint16_t, Monomial::max_degree>>(m);
  const auto two = [&](std::size_t i) { return std::uint32_t{f[i]} << 16 | f[i + 1]; };
  static_assert(Monomial::max_degree == 6);
  return {std::uint64_t{two(0)} << 32 | two(2), two(4)};
}

/// Leaves out zeros, and takes common factors out of numerators and denominator.
void reduce(std::vector<Count::Term>& terms, std::int64_t& denominator) {
  std::erase_if(terms, [](const Count::Term& t) { return t.numerator == 0; });
  if (denominator == 1) return;
  std::int64_t divisor = denominator;
  for (const Count::Term& t : terms) divisor = std::gcd(divisor, t.numerator);
  for (Count::Term& t : terms) t.numerator /= divisor;
  denominator /= divisor;
}

/// Adds `sign` times `other`, whose terms are sorted as these are.
void add_terms(std::vector<Count::Term>& terms, std::int64_t& denominator, const Count& other,
               int sign) {
  const std::int64_t common = std::lcm(denominator, other.denominator());
  const std::int64_t mine = common / denominator;
  const std::int64_t theirs = common / other.denominator() * sign;
  if (mine != 1) {
    for (Count::Term& t : terms) t.numerator = narrow(static_cast<Wide>(t.numerator) * mine);
  }
  denominator = common;
  std::size_t at = 0;
  // By index: the terms of a count that is added to itself are those that are read.
  for (std::size_t i = 0; i < other.terms().size(); ++i) {
    const Count::Term& term = other.terms()[i];
    const Wide added = static_cast<Wide>(term.numerator) * theirs;
    const auto key = key_of(term.monomial);
    while (at < terms.size() && key_of(terms[at].monomial) < key) ++at;
    if (at < terms.size() && key_of(terms[at].monomial) == key) {
      terms[at].numerator = narrow(static_cast<Wide>(terms[at].numerator) + added);
    } else {
      terms.insert(terms.begin() + static_cast<std::ptrdiff_t>(at), {term.monomial, narrow(added)});
    }
  }
  reduce(terms, denominator);
}

/// The sum of the terms' numerators times their symbols' values; empty where `Int` is too narrow.
template <class Int>
std::optional<Int> sum_at(std::span<const Count::Term> terms,
                          std::span<const std::uint64_t> values) {
  Int sum = 0;
  for (const Count::Term& term : terms) {
    Int product = term.numerator;
    for (const std::uint16_t factor : term.monomial.factors()) {
      if (__builtin_mul_overflow(product, values[factor], &product)) return {};
    }
    if (__builtin_add_overflow(sum, product, &sum)) return {};
  }
  return sum;
}

/// Nothing when it is negative. Throws Error when it does not fit 64 bits.
std::optional<std::uint64_t> value_at(const Count& c, std::span<const std::uint64_t> values) {
  const std::int64_t denominator = c.denominator();
  // Most sums have 64 bits, which are several times faster than 128.
  const auto narrow_sum = sum_at<std::int64_t>(c.terms(), values);
  if (narrow_sum && *narrow_sum >= 0) {
    if (denominator == 1) return static_cast<std::uint64_t>(*narrow_sum);
    if (*narrow_sum <= std::numeric_limits<std::int64_t>::max() - denominator) {
      return static_cast<std::uint64_t>((*narrow_sum + denominator - 1) / denominator);
    }
  }
  const std::optional<Wide> sum = sum_at<Wide>(c.terms(), values);
  if (!sum) throw overflow();
  if (*sum < 0) return {};
  const Wide value = (*sum + denominator - 1) / denominator;
  if (value > static_cast<Wide>(std::numeric_limits<std::uint64_t>::max())) throw overflow();
  return static_cast<std::uint64_t>(value);
}

/// The same at many points in doubles, 0 where it is negative. `values`: see Symbols::resolve.
void values_at(const Count& c, std::span<const double> values, std::span<double> sums) {
  const std::size_t points = sums.size();
  std::fill(sums.begin(), sums.end(), 0.0);
  for (const Count::Term& term : c.terms()) {
    const auto numerator = static_cast<double>(term.numerator);
    const auto factors = term.monomial.factors();
    if (factors.empty()) {
      for (double& sum : sums) sum += numerator;
      continue;
    }
    for (std::size_t i = 0; i < points; ++i) {
      double product = numerator * values[factors[0] * points + i];
      for (const std::uint16_t factor : factors.subspan(1)) product *= values[factor * points + i];
      sums[i] += product;
    }
  }
  const auto denominator = static_cast<double>(c.denominator());
  for (double& sum : sums) {
    sum = std::max(denominator == 1 ? sum : std::ceil(sum / denominator), 0.0);
  }
}

constexpr int fraction_bits = 32;

}  // namespace

std::size_t Monomial::degree() const {
  return static_cast<std::size_t>(
      std::distance(factors_.begin(), std::find(factors_.begin(), factors_.end(), none)));
}

Monomial operator*(const Monomial& a, const Monomial& b) {
  const std::size_t degree_a = a.degree();
  const std::size_t degree_b = b.degree();
  if (degree_a + degree_b > Monomial::max_degree) {
    throw Error("a symbolic count exceeds degree " + std::to_string(Monomial::max_degree));
  }
  Monomial product = a;
  std::copy_n(b.factors_.begin(), degree_b,
              product.factors_.begin() + static_cast<std::ptrdiff_t>(degree_a));
  std::sort(product.factors_.begin(), product.factors_.end());
  return product;
}

Count::Count(std::uint64_t constant) {
  if (constant != 0) terms_.push_back({Monomial(), narrow(static_cast<Wide>(constant))});
}

Count::Count(Symbol s) : terms_{{Monomial(s), 1}} {}

bool Count::is_constant() const {
  return terms_.empty() || (terms_.size() == 1 && terms_[0].monomial.degree() == 0);
}

std::uint64_t Count::constant() const {
  KVCAST_ASSERT(is_constant() && denominator_ == 1);
  return terms_.empty() ? 0 : static_cast<std::uint64_t>(terms_[0].numerator);
}

bool Count::depends_on(Symbol s) const {
  return std::any_of(terms_.begin(), terms_.end(), [s](const Term& t) {
    const auto factors = t.monomial.factors();
    return std::find(factors.begin(), factors.end(), s.id) != factors.end();
  });
}

std::uint64_t Count::at(std::span<const std::uint64_t> values) const {
  const std::optional<std::uint64_t> value = value_at(*this, values);
  if (!value) throw Error("a FLOP or byte count is negative at the given sizes");
  return *value;
}

Count& Count::operator+=(const Count& other) {
  add_terms(terms_, denominator_, other, 1);
  return *this;
}

Count& Count::operator-=(const Count& other) {
  add_terms(terms_, denominator_, other, -1);
  return *this;
}

Count operator*(const Count& a, const Count& b) {
  Count product;
  product.denominator_ = narrow(static_cast<Wide>(a.denominator_) * b.denominator_);
  for (const Count::Term& x : a.terms_) {
    for (const Count::Term& y : b.terms_) {
      product.terms_.push_back(
          {x.monomial * y.monomial, narrow(static_cast<Wide>(x.numerator) * y.numerator)});
    }
  }
  product.normalize();
  return product;
}

Count Count::scaled(std::int64_t numerator, std::int64_t denominator) const {
  KVCAST_ASSERT(denominator > 0);
  Count result = *this;
  for (Term& t : result.terms_) t.numerator = narrow(static_cast<Wide>(t.numerator) * numerator);
  result.denominator_ = narrow(static_cast<Wide>(denominator_) * denominator);
  reduce(result.terms_, result.denominator_);
  return result;
}

bool operator<(const Count& a, const Count& b) {
  const auto key = [](const Count::Term& t) { return std::tie(t.monomial, t.numerator); };
  if (a.denominator_ != b.denominator_) return a.denominator_ < b.denominator_;
  return std::lexicographical_compare(
      a.terms_.begin(), a.terms_.end(), b.terms_.begin(), b.terms_.end(),
      [&key](const Count::Term& x, const Count::Term& y) { return key(x) < key(y); });
}

void Count::normalize() {
  std::sort(terms_.begin(), terms_.end(),
            [](const Term& a, const Term& b) { return key_of(a.monomial) < key_of(b.monomial); });
  std::size_t kept = 0;
  for (const Term& term : terms_) {
    if (kept > 0 && key_of(terms_[kept - 1].monomial) == key_of(term.monomial)) {
      terms_[kept - 1].numerator =
          narrow(static_cast<Wide>(terms_[kept - 1].numerator) + term.numerator);
    } else {
      terms_[kept++] = term;
    }
  }
  terms_.resize(kept);
  reduce(terms_, denominator_);
}

Symbols::Symbols() : names_{"batch", "prompt_len", "kv_len"} {}

Count Symbols::derive(Derived derived, std::string name) {
  if (derived.a.is_constant() && derived.b.is_constant()) {
    return apply(derived, derived.a.constant(), derived.b.constant());
  }
  const auto known = std::find(derived_.begin(), derived_.end(), derived);
  if (known == derived_.end()) return add(std::move(derived), std::move(name));
  const auto index = static_cast<std::size_t>(known - derived_.begin()) + symbol::num_free;
  return Symbol{static_cast<std::uint16_t>(index)};
}

Symbol Symbols::add(Derived derived, std::string name) {
  const std::size_t index = names_.size();
  if (index >= 65535) {  // which stands for none
    throw Error("a recording with more than 65,534 sizes of its own; fewer layers may differ");
  }
  derived_.push_back(std::move(derived));
  names_.push_back(std::move(name));
  return Symbol{static_cast<std::uint16_t>(index)};
}

Count Symbols::minimum(const Count& a, const Count& b) {
  if (a == b) return a;
  std::string name = "min(" + to_string(a) + ", " + to_string(b) + ")";
  return derive({Function::Minimum, a, b, 0}, std::move(name));
}

Count Symbols::ceil_fraction(const Count& a, double fraction) {
  if (!(fraction > 0 && fraction <= 1)) {
    throw Error("a fraction of tokens", std::to_string(fraction), "a number above 0 and at most 1");
  }
  if (fraction == 1) return a;
  const double scaled = std::round(fraction * std::ldexp(1.0, fraction_bits));
  const auto parameter = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(scaled));
  std::string name = "ceil(" + std::to_string(fraction) + "·(" + to_string(a) + "))";
  return derive({Function::CeilFraction, a, Count(), parameter}, std::move(name));
}

Count Symbols::ceil_divide(const Count& a, std::uint64_t divisor) {
  KVCAST_ASSERT(divisor > 0);
  if (divisor == 1) return a;
  std::string name = "ceil((" + to_string(a) + ")/" + std::to_string(divisor) + ")";
  return derive({Function::CeilDivide, a, Count(), divisor}, std::move(name));
}

Count Symbols::whole_chunks(const Count& a, std::uint64_t chunk) {
  return (ceil_divide(a + 1, chunk) - 1) * chunk;
}

Count Symbols::expected_distinct(const Count& tokens, const ExpertLoads& loads) {
  const auto known = std::find(expert_loads_.begin(), expert_loads_.end(), loads);
  const auto index = static_cast<std::size_t>(known - expert_loads_.begin());
  if (known == expert_loads_.end()) expert_loads_.push_back(loads);
  std::string name = "distinct(" + to_string(tokens) + ")";
  return derive({Function::ExpectedDistinct, tokens, Count(), index}, std::move(name));
}

Count Symbols::drawn_sum(const Count& a, double mean, double deviation) {
  const auto known = std::find_if(draws_.begin(), draws_.end(), [&](const Draw& d) {
    return d.mean == mean && d.deviation == deviation;
  });
  const auto index = static_cast<std::size_t>(known - draws_.begin());
  if (known == draws_.end()) draws_.push_back({mean, deviation});
  return derive({Function::DrawnSum, a, Count(), index}, "drawn(" + to_string(a) + ")");
}

Symbol Symbols::found_by_run(const Count& most, std::string name, std::optional<Count> expected) {
  Count usual = expected ? *expected : most;
  return add({Function::FoundByRun, most, std::move(usual), 0}, std::move(name));
}

std::uint64_t Symbols::apply(const Derived& d, std::uint64_t a, std::uint64_t b) const {
  switch (d.function) {
    case Function::Minimum: return std::min(a, b);
    case Function::CeilFraction: {
      // The fraction is known to within 2^-33, so a product closer to a whole number than
      // a * 2^-33 is that whole number.
      const Wide product = static_cast<Wide>(a) * d.parameter;
      const Wide one = Wide{1} << fraction_bits;
      const Wide slack = std::min<Wide>(static_cast<Wide>(a), one / 2 - 1);
      const Wide rounded = (product - slack + one - 1) / one;
      return static_cast<std::uint64_t>(std::max<Wide>(rounded, a > 0 ? 1 : 0));
    }
    case Function::CeilDivide: return a / d.parameter + (a % d.parameter != 0 ? 1 : 0);
    case Function::ExpectedDistinct: {
      double read = 0;
      for (const auto& [probability, experts] : expert_loads_[d.parameter]) {
        const double unread = std::pow(1 - probability, static_cast<double>(a));
        read += static_cast<double>(experts) * (1 - unread);
      }
      return static_cast<std::uint64_t>(std::llround(read));
    }
    case Function::DrawnSum: {
      const auto draws = static_cast<double>(a);
      const Draw& draw = draws_[d.parameter];
      const double sum = draws * draw.mean + std::sqrt(draws) * draw.deviation;
      return static_cast<std::uint64_t>(std::ceil(sum));
    }
    case Function::FoundByRun: return b;
  }
  KVCAST_ASSERT(false);
  return 0;
}

SymbolValues Symbols::resolve(std::array<std::uint64_t, symbol::num_free> free,
                              std::span<const FoundCount> found) const {
  SymbolValues values(size());
  std::copy(free.begin(), free.end(), values.begin());
  resolve(values, found);
  return values;
}

SymbolValues Symbols::resolve_most(std::array<std::uint64_t, symbol::num_free> free,
                                   std::span<const FoundCount> found) const {
  SymbolValues values(size());
  std::copy(free.begin(), free.end(), values.begin());
  resolve(values, found, 0, true);
  return values;
}

void Symbols::resolve(std::span<std::uint64_t> values, std::span<const FoundCount> found) const {
  resolve(values, found, 0, false);
}

void Symbols::resolve(std::span<double> values, std::size_t points) const {
  constexpr double largest = 1ULL << 63;  // that is converted to a whole number
  std::vector<double> second(points);
  for (std::size_t i = 0; i < derived_.size(); ++i) {
    const Derived& d = derived_[i];
    const std::span<double> found = values.subspan((symbol::num_free + i) * points, points);
    if (d.function == Function::FoundByRun) {
      values_at(d.b, values, found);
      continue;
    }
    values_at(d.a, values, found);
    if (d.function == Function::Minimum) {
      values_at(d.b, values, second);
      for (std::size_t n = 0; n < points; ++n) found[n] = std::min(found[n], second[n]);
      continue;
    }
    double last = -1;  // points often have the same
    double of_last = 0;
    for (double& value : found) {
      if (value != last) {
        last = value;
        const auto whole = static_cast<std::uint64_t>(std::min(value, largest));
        of_last = static_cast<double>(apply(d, whole, 0));
      }
      value = of_last;
    }
  }
}

void Symbols::resolve_newest(std::span<std::uint64_t> values,
                             std::span<const FoundCount> found) const {
  KVCAST_ASSERT(!found.empty() && found.back().symbol.id >= symbol::num_free);
  resolve(values, found, found.back().symbol.id - symbol::num_free, false);
}

void Symbols::resolve(std::span<std::uint64_t> values, std::span<const FoundCount> found,
                      std::size_t first, bool most) const {
  for (std::size_t i = first; i < derived_.size(); ++i) {
    const Derived& d = derived_[i];
    std::uint64_t& value = values[symbol::num_free + i];
    // A symbol of another pass may have no value here: the tokens before a rank's own, in a decode
    // step after a shortened prompt.
    const std::uint64_t a = value_at(d.a, values).value_or(0);
    const bool at_most = most && d.function == Function::FoundByRun;
    value = at_most ? a : apply(d, a, value_at(d.b, values).value_or(0));
    if (d.function != Function::FoundByRun) continue;
    for (const FoundCount& f : found) {
      if (f.symbol.id != symbol::num_free + i) continue;
      KVCAST_ASSERT(f.value <= a);
      value = f.value;
    }
  }
}

std::vector<Symbol> Symbols::varying_with(Symbol s) const {
  std::vector<Symbol> varying{s};
  const auto varies = [&](const Count& c) {
    return std::any_of(varying.begin(), varying.end(), [&](Symbol v) { return c.depends_on(v); });
  };
  for (std::size_t i = 0; i < derived_.size(); ++i) {
    if (!varies(derived_[i].a) && !varies(derived_[i].b)) continue;
    varying.push_back(Symbol{static_cast<std::uint16_t>(symbol::num_free + i)});
  }
  return varying;
}

std::vector<std::uint64_t> Symbols::kv_len_breakpoints(std::span<const std::uint64_t> values,
                                                       std::uint64_t last_kv_len) const {
  std::vector<std::uint64_t> points;
  const std::vector<Symbol> varying = varying_with(symbol::kv_len);
  const auto varies = [&](const Count& c) {
    return std::any_of(varying.begin(), varying.end(), [&](Symbol s) { return c.depends_on(s); });
  };
  for (const Derived& d : derived_) {
    if (!varies(d.a) && !varies(d.b)) continue;
    // A share of the tokens is affine to within one token, what a run finds changes slope with what
    // it is expected to be, and what is drawn bends all along.
    if (d.function == Function::CeilFraction || d.function == Function::FoundByRun ||
        d.function == Function::ExpectedDistinct || d.function == Function::DrawnSum) {
      continue;
    }
    if (d.function == Function::CeilDivide) {  // chunks of a cache, of kv_len and so many tokens
      if (last_kv_len == 0) continue;
      SymbolValues at(values.begin(), values.end());
      at[symbol::kv_len.id] = last_kv_len;
      const Count more = d.a - Count(symbol::kv_len);
      KVCAST_ASSERT(!varies(more));
      const std::uint64_t last = d.a.at(at);
      for (std::uint64_t a = d.parameter; a < last; a += d.parameter) {
        if (last - a < last_kv_len) points.push_back(last_kv_len - (last - a));
      }
      continue;
    }
    // Else decode steps derive minima: sliding windows, caches of limited length.
    KVCAST_ASSERT(d.function == Function::Minimum);
    if (d.a == Count(symbol::kv_len) && !varies(d.b)) {
      points.push_back(d.b.at(values));
    } else if (const std::uint64_t last = last_smaller(d, values); last > 0) {
      points.push_back(last);
    }
  }
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
  return points;
}

bool Symbols::kv_len_breakpoints_vary() const {
  const std::vector<Symbol> of_cache = varying_with(symbol::kv_len);
  const std::vector<Symbol> of_prompt = varying_with(symbol::prompt_len);
  const auto depends = [](const Derived& d, const std::vector<Symbol>& symbols) {
    return std::any_of(symbols.begin(), symbols.end(),
                       [&](Symbol s) { return d.a.depends_on(s) || d.b.depends_on(s); });
  };
  return std::any_of(derived_.begin(), derived_.end(), [&](const Derived& d) {
    return d.function == Function::Minimum && depends(d, of_cache) && depends(d, of_prompt);
  });
}

/// The last kv_len at which the first argument of a minimum is not above the second; 0 when the
/// order never changes. The difference of the two must grow with kv_len.
std::uint64_t Symbols::last_smaller(const Derived& d, std::span<const std::uint64_t> values) const {
  SymbolValues at(values.begin(), values.end());
  const auto smaller = [&](std::uint64_t kv_len) {
    at[symbol::kv_len.id] = kv_len;
    resolve(at);
    return d.a.at(at) <= d.b.at(at);
  };
  std::uint64_t low = 1;
  std::uint64_t high = std::uint64_t{1} << 40;
  if (!smaller(low) || smaller(high)) return 0;
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (smaller(middle) ? low : high) = middle;
  }
  return low;
}

std::string Symbols::to_string(const Count& c) const {
  if (c.is_zero()) return "0";
  std::string text;
  for (const Count::Term& term : c.terms()) {
    const bool negative = term.numerator < 0;
    const std::uint64_t magnitude = negative ? 0 - static_cast<std::uint64_t>(term.numerator)
                                             : static_cast<std::uint64_t>(term.numerator);
    text += text.empty() ? (negative ? "-" : "") : (negative ? " - " : " + ");
    const auto factors = term.monomial.factors();
    std::string product;
    if (magnitude != 1 || factors.empty()) product = std::to_string(magnitude);
    for (const std::uint16_t factor : factors) {
      product += (product.empty() ? "" : "·") + names_[factor];
    }
    text += product;
  }
  if (c.denominator() != 1) text = "(" + text + ")/" + std::to_string(c.denominator());
  return text;
}

}  // namespace kvcast
