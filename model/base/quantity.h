/// Quantities as people write them: the only code that knows unit prefixes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcast {

/// Ours: what is outside is a slip, and products and quotients of a few such numbers stay finite.
inline bool is_computable(double value) { return value >= 1e-30 && value <= 1e30; }
inline constexpr std::string_view computable_range = "a finite number, 1e-30 to 1e30";

enum class Dimension { FlopsPerSecond, BytesPerSecond, Bytes, Seconds };

/// "312 TFLOP/s", "624 TOP/s", "3.35 TB/s", "40 MiB", "2.6 us": a number above zero and a unit.
/// k, M, G, T, P are powers of 1000; Ki, Mi, Gi, Ti powers of 1024. Returns base units. Throws
/// Error starting with `place` when the number or the unit is missing or of another dimension.
double parse_quantity(std::string_view text, Dimension dimension, std::string_view place);

/// A number of tokens, sequences or devices: "12288", "1k", "128K", "1M". Here k is 1024, as in
/// "a 128k context", and M is 1024².  Throws Error starting with `place`.
std::uint64_t parse_token_count(std::string_view text, std::string_view place);

/// "312 TFLOP/s", "2.04 TB/s", "16.2 MB", "1.83 ms": three digits for a person.
std::string format_quantity(double value, Dimension dimension);
/// "1.23 T" for a bare count.
std::string format_count(double value);

}  // namespace kvcast
