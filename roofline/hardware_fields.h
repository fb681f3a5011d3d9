/// The numbers of a hardware file, one line each. Whatever reads, writes, prints, combines, fits or
/// fingerprints a device walks this table. Links, which have names of their own, are not in it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "roofline/hardware.h"

namespace kvcast::roofline {

enum class Unit { FlopsPerSecond, BytesPerSecond, Bytes, Seconds, Share };

/// What a share is a share of. Calibrations combine as rates: share times peak.
enum class Peak { None, Matrix, Memory };

/// The forecasts that a number moves: those of any step, or of messages between devices only.
/// Capacities decide what fits, not how long it takes.
enum class Moves { Nothing, Steps, Exchanges };

/// A number of a device, or one of each dtype.
struct Field {
  std::string_view section;  ///< of the file: "" (the top), "latency" or "factors"
  std::string_view key;      ///< in its section
  Unit unit = Unit::Share;
  /// In order: required, optional, of each dtype.
  std::variant<Sourced Hardware::*, std::optional<Sourced> Hardware::*,
               std::map<DType, Sourced> Hardware::*>
      member;
  Moves moves = Moves::Steps;
  Peak peak = Peak::None;
  bool by_length = false;  ///< the file may give it at several lengths
  bool fitted = false;     ///< `validate --fit` takes it
  bool may_be_zero = false;

  bool per_dtype() const { return member.index() == 2; }
  /// "factors.matrix_rate"
  std::string path() const;
  /// "matrix_rate", "operator_latency": as `--fit` names it.
  std::string name() const;
  /// "factor_matrix_rate", "operator_latency_s": as `hardware show` names it.
  std::string printed() const;

  /// The number for the dtype, which fields without dtypes ignore; null if it is absent.
  const Sourced* find(const Hardware& hw, DType dtype) const;
  void set(Hardware& hw, DType dtype, Sourced number) const;
};

/// In the order of validation's fingerprints, which another order would change.
std::span<const Field> hardware_fields();

/// Calls visit(suffix, dtype, number) for each number of a field that is there; the suffix is
/// ".fp16" of one of several dtypes, else "". `Device`: Hardware or const Hardware.
template <typename Device, typename Visit>
void for_each_number(const Field& field, Device& hw, Visit visit) {
  if (const auto* required = std::get_if<Sourced Hardware::*>(&field.member)) {
    visit(std::string(), DType::FP32, hw.**required);
  } else if (const auto* single = std::get_if<std::optional<Sourced> Hardware::*>(&field.member)) {
    if (hw.**single) visit(std::string(), DType::FP32, *(hw.**single));
  } else {
    for (auto& [dtype, number] : hw.*std::get<2>(field.member)) {
      visit("." + std::string(kvcast::name(dtype)), dtype, number);
    }
  }
}

}  // namespace kvcast::roofline
