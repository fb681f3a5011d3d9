/// What four-bit codes stand for.
#pragma once

#include <array>

namespace kvcast {

/// Of IQ4_NL and IQ4_XS.
/// Source   ggml-org/ggml: src/ggml-common.h, kvalues_iq4nl
inline constexpr std::array<float, 16> iq4_numbers{-127, -104, -83, -65, -49, -35, -22, -10,
                                                   1,    13,   25,  38,  53,  69,  89,  113};
/// Of MXFP4: sign, two bits of exponent, one of fraction.
/// Source   OCP Microscaling Formats (MX) Specification v1.0, section 5.3.3 and table 7
inline constexpr std::array<float, 16> fp4_numbers{0,    0.5,  1,  1.5,  2,  3,  4,  6,
                                                   -0.F, -0.5, -1, -1.5, -2, -3, -4, -6};

}  // namespace kvcast
