#include "measure/error_bounds.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "model/base/error.h"
#include "roofline/engine.h"

namespace kvcast::measure {
namespace {

constexpr std::size_t enough_rows = 9;
constexpr std::size_t enough_sources = 3;

enum class Near { SameDevice, SameArchitecture, SameKind };

/// Which rows a population has, from a narrow one to wide ones.
struct Rung {
  Near device = Near::SameDevice;
  bool own = false;  ///< measured by the user alone
  bool same_engine = true;
  bool same_dtypes = false;
  bool same_weights = true;
  bool same_regime = true;  ///< else the phase
  std::size_t rows = enough_rows;
  std::size_t sources = enough_sources;
};
// Chosen by leaving sources out (kvcast validate coverage). Weighting sources equally was tried and
// dropped: it covered too few prompts. So was a population of both kinds of attention: bounds of
// prompts were twice as wide.
constexpr Rung ladder[] = {
    {.own = true, .same_dtypes = true, .sources = 1},
    {.own = true, .same_dtypes = true, .same_regime = false, .sources = 1},
    {},
    {.device = Near::SameArchitecture},
    {.device = Near::SameKind},
    {.device = Near::SameArchitecture, .same_engine = false},
    {.device = Near::SameKind, .same_engine = false},
    {.device = Near::SameKind, .same_engine = false, .same_weights = false},
    {.same_dtypes = true, .same_regime = false, .rows = 1, .sources = 1},
};
constexpr const Rung& widest = ladder[std::size(ladder) - 2];

bool is_ideal(const Setup& s) { return s.engine == roofline::Engine{}.name; }

bool same_device(const Setup& a, const Setup& b) {
  return a.device == b.device && a.fingerprint == b.fingerprint;
}

bool is_near(const Setup& row, const Setup& of, Near near) {
  if (same_device(row, of)) return true;
  if (near == Near::SameDevice || of.placed) return false;
  if (row.kind.empty() || row.kind != of.kind) return false;
  return near == Near::SameKind || row.architecture == of.architecture;
}

bool has(const Rung& rung, const ErrorRow& row, const Setup& of, Regime regime) {
  const Setup& s = row.setup;
  if (s.method != of.method || s.attention != of.attention) return false;
  if (rung.same_weights && s.weights != of.weights) return false;
  if (rung.same_regime ? row.regime != regime : phase_of(row.regime) != phase_of(regime)) {
    return false;
  }
  if (rung.own && !row.source.empty()) return false;
  if (rung.same_engine && !is_ideal(of) && s.engine != of.engine) return false;
  if (rung.same_dtypes && s.dtypes != of.dtypes) return false;
  return is_near(s, of, rung.device);
}

/// "3 rows"
std::string counted(std::size_t n, const char* noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

/// "ampere GPUs"
std::string devices_text(Near near, const Setup& of) {
  if (near == Near::SameDevice || of.placed) return of.device;
  std::string kind = of.kind;
  std::transform(kind.begin(), kind.end(), kind.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return (near == Near::SameArchitecture ? of.architecture + " " : "") + kind + "s";
}

std::string_view any_of(Phase phase) {
  switch (phase) {
    case Phase::Prefill: return "any prefill";
    case Phase::Decode: return "any decode";
    case Phase::Training: return name(Regime::Training);
  }
  KVCAST_ASSERT(false);
  return "";
}

/// "vllm with slim on ampere GPUs, tiled attention, decode of 1 sequence"
std::string population_text(const Rung& rung, const Setup& of, Regime regime) {
  std::string text = rung.same_engine && !is_ideal(of) ? of.engine : "any engine";
  if (of.method != "plain") text += " with " + of.method;
  text += " on " + devices_text(rung.device, of);
  text += fmt::format(", {} attention", of.attention);
  if (rung.same_weights) text += ", " + (rung.same_dtypes ? of.dtypes : of.weights);
  return fmt::format("{}, {}", text, rung.same_regime ? name(regime) : any_of(phase_of(regime)));
}

struct Population {
  std::vector<double> errors;  ///< without their signs
  std::set<std::string> sources;
};

Population population_of(std::span<const ErrorRow> rows, const Rung& rung, const Setup& of,
                         Regime regime, const std::optional<std::string>& without) {
  Population p;
  for (const ErrorRow& row : rows) {
    if (row.source == without || !has(rung, row, of, regime)) continue;
    p.errors.push_back(std::abs(is_ideal(of) ? row.ideal_error : row.error));
    p.sources.insert(row.source);
  }
  return p;
}

ErrorBound bound_of(Population p, const Rung& rung, const Setup& of, Regime regime) {
  ErrorBound b;
  b.rows = p.errors.size();
  b.sources = p.sources.size();
  std::sort(p.errors.begin(), p.errors.end());
  const std::size_t rank = std::min(conformal_rank(b.rows), b.rows);
  b.error = std::expm1(p.errors[rank - 1]);
  const bool own = p.sources == std::set<std::string>{""};
  b.population = (own ? counted(b.rows, "own row")
                      : counted(b.rows, "row") + " of " + counted(b.sources, "source")) +
                 ": " + population_text(rung, of, regime);
  b.is_nine_in_ten = b.rows >= enough_rows;
  if (!b.is_nine_in_ten) {
    b.population +=
        fmt::format("; the worst of them, which holds for {} in {}", b.rows, b.rows + 1);
  }
  return b;
}

/// Why not even the widest population is large enough.
std::string no_bound(std::span<const ErrorRow> rows, const Setup& of, Regime regime,
                     const std::optional<std::string>& without) {
  const Population alike = population_of(rows, widest, of, regime, without);
  std::string text =
      fmt::format("no error bound for {} with {}, {} attention, on {}: ", name(regime), of.method,
                  of.attention, of.device);
  if (alike.errors.empty()) {
    text += "no stored row is alike";
  } else {
    text += fmt::format("{} of {} like it, but {} of {} are needed",
                        counted(alike.errors.size(), "stored row"),
                        counted(alike.sources.size(), "source"), counted(enough_rows, "row"),
                        counted(enough_sources, "source"));
  }
  const auto outdated = std::count_if(rows.begin(), rows.end(), [&](const ErrorRow& row) {
    return row.setup.device == of.device && row.setup.method == of.method &&
           row.setup.fingerprint != of.fingerprint && phase_of(row.regime) == phase_of(regime);
  });
  if (outdated > 0) {
    text += fmt::format(" ({} of other {})", counted(static_cast<std::size_t>(outdated), "row"),
                        of.placed ? "factors or links" : "factors");
  }
  return text;
}

}  // namespace

std::string_view name(Regime regime) {
  switch (regime) {
    case Regime::ShortPrefill: return "prefill under 512 tokens";
    case Regime::Prefill: return "prefill of 512 and more tokens";
    case Regime::DecodeOne: return "decode of 1 sequence";
    case Regime::DecodeFew: return "decode of 2 to 15 sequences";
    case Regime::DecodeMany: return "decode of 16 and more sequences";
    case Regime::Training: return "steps of training";
  }
  KVCAST_ASSERT(false);
  return "";
}

Regime prefill_regime(const roofline::DesignPoint& size) {
  // Shares of 512, since a product of the two may overflow.
  const bool is_short =
      size.batch < 512 && size.prompt_len < 512 && size.batch * size.prompt_len < 512;
  return is_short ? Regime::ShortPrefill : Regime::Prefill;
}

Regime decode_regime(const roofline::DesignPoint& size) {
  if (size.batch == 1) return Regime::DecodeOne;
  return size.batch < 16 ? Regime::DecodeFew : Regime::DecodeMany;
}

Phase phase_of(Regime regime) {
  switch (regime) {
    case Regime::ShortPrefill:
    case Regime::Prefill: return Phase::Prefill;
    case Regime::DecodeOne:
    case Regime::DecodeFew:
    case Regime::DecodeMany: return Phase::Decode;
    case Regime::Training: return Phase::Training;
  }
  KVCAST_ASSERT(false);
  return {};
}

std::size_t conformal_rank(std::size_t rows) { return (9 * (rows + 1) + 9) / 10; }

BoundOrReason error_bound(std::span<const ErrorRow> rows, const Setup& of, Regime regime,
                          const std::optional<std::string>& without) {
  for (const Rung& rung : ladder) {
    if (rung.device == Near::SameArchitecture && of.architecture.empty()) continue;
    Population p = population_of(rows, rung, of, regime, without);
    if (p.errors.size() < rung.rows || p.sources.size() < rung.sources) continue;
    return {bound_of(std::move(p), rung, of, regime)};
  }
  return {{}, no_bound(rows, of, regime, without)};
}

}  // namespace kvcast::measure
