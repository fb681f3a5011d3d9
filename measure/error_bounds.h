/// Error bounds of estimates: which earlier errors tell of one, and how far they reach.
///
/// The error of a forecast is the factor between it and the measurement, less 1, so that a forecast
/// of half the time is as wrong as one of twice the time.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "roofline/forecast.h"

namespace kvcast::measure {

/// Requests whose forecasts err alike.
enum class Regime {
  ShortPrefill,  ///< batch x prompt under 512 tokens
  Prefill,
  DecodeOne,   ///< batch 1
  DecodeFew,   ///< 2 to 15
  DecodeMany,  ///< 16 and more
  Training,    ///< a step of it
};
inline constexpr std::array all_regimes{Regime::ShortPrefill, Regime::Prefill,    Regime::DecodeOne,
                                        Regime::DecodeFew,    Regime::DecodeMany, Regime::Training};
/// "decode of 2 to 15 sequences"
std::string_view name(Regime regime);
Regime prefill_regime(const roofline::DesignPoint& size);
Regime decode_regime(const roofline::DesignPoint& size);
enum class Phase { Prefill, Decode, Training };
Phase phase_of(Regime regime);

/// What a forecast is of, as far as errors depend on it.
struct Setup {
  std::string device = {};
  std::string fingerprint = {};   ///< of the device's factors
  std::string architecture = {};  ///< empty: unknown
  std::string kind = {};          ///< empty: errors on this device are of no other one
  std::string engine = {};
  std::string method = {};
  std::string attention = {};
  std::string dtypes = {};
  std::string weights = {};  ///< "8-bit weights": kernels of wider ones are others
  bool placed = false;       ///< several devices read the prompt; errors are of these devices alone
};

/// A measured time and its forecast. Errors are ln(predicted / measured).
struct ErrorRow {
  Setup setup = {};
  Regime regime = Regime::Prefill;
  std::string source = {};  ///< empty: the user's own measurement
  double error = 0;         ///< of the forecast for the row's engine
  double ideal_error = 0;   ///< of the forecast without an engine
};

/// The rank, from 1, of the error among `rows` sorted ones that one more error of the same
/// population exceeds with a probability of at most 0.1: ceil(0.9 (rows + 1)), which is beyond the
/// last row if there are fewer than nine.
/// Source   split conformal prediction: Lei et al. 2018 (arXiv:1604.04173), section 2.2
std::size_t conformal_rank(std::size_t rows);

/// What errors of one population say of an estimate's.
struct ErrorBound {
  double error = 0;  ///< measured times are from predicted / (1 + error) to predicted x (1 + error)
  std::size_t rows = 0;
  std::size_t sources = 0;
  bool is_nine_in_ten = true;  ///< else it is the worst of `rows`, for rows in rows + 1
  /// "31 rows of 6 sources: vllm on ampere GPUs, tiled attention, decode of 1 sequence". It says so
  /// if the bound holds less often than for nine in ten.
  std::string population;
};

/// A bound, or why there is none, in one line.
struct BoundOrReason {
  std::optional<ErrorBound> bound = {};
  std::string reason = {};
};

/// The bound from the narrowest population that has enough rows, all of the same method and kind of
/// attention: nine that the user measured
/// himself, else nine rows of three sources, since the rows of one source err together. Where no
/// population is that large, the rows of exactly this setup, however few. An estimate without an
/// engine takes the rows of every engine, with their errors when forecast without one. Rows of the
/// source `without` do not count.
BoundOrReason error_bound(std::span<const ErrorRow> rows, const Setup& of, Regime regime,
                          const std::optional<std::string>& without = {});

}  // namespace kvcast::measure
