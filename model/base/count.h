/// Symbolic counts: exact polynomials in the batch, the prompt length and the cache length.
///
/// A forward pass is recorded once with symbols for its free dimensions. Each operator's FLOPs and
/// bytes are then polynomials with rational coefficients, for instance `2·4096²·batch·prompt_len`,
/// which a sweep evaluates at a million points without recording again. Equal polynomials have
/// equal representations, so `==` compares them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcast {

/// Names a free dimension, or one derived from others (`Symbols::minimum`, ...).
struct Symbol {
  std::uint16_t id = 0;
  auto operator<=>(const Symbol&) const = default;
};

/// The free dimensions that every recording has.
namespace symbol {
inline constexpr Symbol batch{0};       ///< sequences processed together
inline constexpr Symbol prompt_len{1};  ///< prompt tokens; encoder-decoder models: encoder length
inline constexpr Symbol kv_len{2};      ///< tokens in the cache at a decode step, its own included
inline constexpr std::size_t num_free = 3;
}  // namespace symbol

/// A product of symbols, sorted; the empty product is 1.
class Monomial {
 public:
  static constexpr std::size_t max_degree = 6;
  Monomial() { factors_.fill(none); }
  explicit Monomial(Symbol s) : Monomial() { factors_[0] = s.id; }

  std::size_t degree() const;
  std::span<const std::uint16_t> factors() const { return {factors_.data(), degree()}; }
  /// Throws Error above max_degree.
  friend Monomial operator*(const Monomial& a, const Monomial& b);
  auto operator<=>(const Monomial&) const = default;

 private:
  static constexpr std::uint16_t none = 65535;
  std::array<std::uint16_t, max_degree> factors_;
};

/// Values of all symbols of a recording, free and derived, by symbol id.
using SymbolValues = std::vector<std::uint64_t>;

/// What a run has found a symbol of Symbols::found_by_run to be.
struct FoundCount {
  Symbol symbol;
  std::uint64_t value = 0;
};

/// A polynomial over symbols. Plain numbers convert to constant counts.
class Count {
 public:
  struct Term {
    Monomial monomial;
    std::int64_t numerator = 0;
    bool operator==(const Term&) const = default;
  };

  Count() = default;
  Count(std::uint64_t constant);  // NOLINT(google-explicit-constructor): numbers are counts
  Count(Symbol s);                // NOLINT(google-explicit-constructor)

  bool is_constant() const;
  bool is_zero() const { return terms_.empty(); }
  /// The value of a constant count; asserts that it is one and a whole number.
  std::uint64_t constant() const;
  std::span<const Term> terms() const { return terms_; }
  std::int64_t denominator() const { return denominator_; }
  /// True if any term contains the symbol.
  bool depends_on(Symbol s) const;

  /// The exact value, a fraction rounded up to the next whole number (a half byte occupies one).
  /// Throws Error when it is negative or does not fit 64 bits.
  std::uint64_t at(std::span<const std::uint64_t> values) const;

  Count& operator+=(const Count& other);
  Count& operator-=(const Count& other);
  friend Count operator+(Count a, const Count& b) { return std::move(a += b); }
  friend Count operator-(Count a, const Count& b) { return std::move(a -= b); }
  friend Count operator*(const Count& a, const Count& b);
  /// This count times numerator/denominator, kept as an exact fraction.
  Count scaled(std::int64_t numerator, std::int64_t denominator) const;
  bool operator==(const Count&) const = default;
  /// An arbitrary total order, for maps that fold equal counts together.
  friend bool operator<(const Count& a, const Count& b);

 private:
  void normalize();
  std::vector<Term> terms_;  ///< sorted by monomial, no zero coefficient
  std::int64_t denominator_ = 1;
};

/// How many experts, of all layers counted together, a token chooses with each probability.
using ExpertLoads = std::map<double, std::uint64_t>;

/// The symbols of one recording: the free ones, and those derived from counts by functions that
/// are no polynomials. Derivations on constant counts fold to constants at once, so a recording
/// with concrete shapes has no derived symbols.
class Symbols {
 public:
  Symbols();

  /// min(a, b)
  Count minimum(const Count& a, const Count& b);
  /// ceil(a * fraction), 0 < fraction <= 1; the product is taken on the nearest multiple of
  /// 2^-32 to `fraction`, with a guard so that 0.1 of 10 is 1 and not 2.
  Count ceil_fraction(const Count& a, double fraction);
  /// ceil(a / divisor)
  Count ceil_divide(const Count& a, std::uint64_t divisor);
  /// The largest multiple of `chunk` that is not above a.
  Count whole_chunks(const Count& a, std::uint64_t chunk);
  /// Σ 1 - (1 - p)^tokens over the experts, rounded: the distinct ones that tokens are expected to
  /// read where each chooses independently. Where all are alike, p is K/E.
  Count expected_distinct(const Count& tokens, const ExpertLoads& loads);
  /// ceil(a · mean + deviation · √a): of a draws, what a sum of theirs is when it lies so many
  /// standard deviations of one draw above its mean.
  Count drawn_sum(const Count& a, double mean, double deviation);
  /// A count that depends on the data, `most` at most: estimates take what is expected, or `most`,
  /// and a run says what it is.
  Symbol found_by_run(const Count& most, std::string name, std::optional<Count> expected = {});

  std::size_t size() const { return names_.size(); }
  const std::string& name(Symbol s) const { return names_[s.id]; }
  /// All values from those of the free symbols (batch, prompt_len, kv_len), and what a run has
  /// found.
  SymbolValues resolve(std::array<std::uint64_t, symbol::num_free> free,
                       std::span<const FoundCount> found = {}) const;
  /// The same in place: `values` holds the free symbols and room for all derived ones.
  void resolve(std::span<std::uint64_t> values, std::span<const FoundCount> found = {}) const;
  /// The same at many points at once, in doubles, which are exact below 2^53: number i of symbol s
  /// is values[s.id · points + i].
  void resolve(std::span<double> values, std::size_t points) const;
  /// The same where only the last of `found` is new: symbols before it keep their values.
  void resolve_newest(std::span<std::uint64_t> values, std::span<const FoundCount> found) const;
  /// With the largest value of what is not found yet: for room.
  SymbolValues resolve_most(std::array<std::uint64_t, symbol::num_free> free,
                            std::span<const FoundCount> found = {}) const;
  bool has_derived() const { return !derived_.empty(); }
  /// The symbol and all derived from it.
  std::vector<Symbol> varying_with(Symbol s) const;
  /// Values of kv_len at which a derived symbol of kv_len may change slope: all minima's, and those
  /// of chunks up to `last`.
  std::vector<std::uint64_t> kv_len_breakpoints(std::span<const std::uint64_t> values,
                                                std::uint64_t last = 0) const;
  /// True if those differ between prompts of different lengths.
  bool kv_len_breakpoints_vary() const;
  /// "2·batch·prompt_len + 5"
  std::string to_string(const Count& c) const;

 private:
  enum class Function { Minimum, CeilFraction, CeilDivide, ExpectedDistinct, DrawnSum, FoundByRun };
  struct Derived {
    Function function = Function::Minimum;
    Count a;                      ///< of FoundByRun: at most
    Count b;                      ///< of FoundByRun: expected
    std::uint64_t parameter = 0;  ///< of ExpectedDistinct and DrawnSum: index into their table
    bool operator==(const Derived&) const = default;
  };
  /// Of derived symbols from `first` on; those before it have their values.
  void resolve(std::span<std::uint64_t> values, std::span<const FoundCount> found,
               std::size_t first, bool most) const;
  Count derive(Derived derived, std::string name);
  Symbol add(Derived derived, std::string name);
  std::uint64_t last_smaller(const Derived& d, std::span<const std::uint64_t> values) const;
  std::uint64_t apply(const Derived& d, std::uint64_t a, std::uint64_t b) const;

  std::vector<std::string> names_;
  std::vector<Derived> derived_;
  std::vector<ExpertLoads> expert_loads_;
  struct Draw {
    double mean = 0;
    double deviation = 0;
  };
  std::vector<Draw> draws_;
};

}  // namespace kvcast
