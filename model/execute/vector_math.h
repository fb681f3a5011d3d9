/// Elementary functions on fp32 that compilers turn into vector code, for the loops of this folder.
#pragma once

#include <bit>
#include <cstdint>

/// Compiles a function once for each instruction set and picks the best when the program starts.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define KVCAST_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KVCAST_VECTOR_CLONES
#endif
#define KVCAST_INLINE [[gnu::always_inline]] inline

namespace kvcast::execute {

/// e^x, relative error below 1.2e-7; 0 below -87 (no denormals), capped at e^88.
/// Source: the Cephes library's expf: reduction by ln 2 in two parts, degree-5 polynomial.
KVCAST_INLINE float vector_exp(float x) {
  const float clamped = x > 88.0F ? 88.0F : (x < -87.0F ? -87.0F : x);
  // Adding and taking away 1.5·2^23 rounds to the nearest whole number.
  const float n = (clamped * 1.44269504088896341F + 12582912.0F) - 12582912.0F;
  const float r = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const float power = std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
  return x < -87.0F ? 0.0F : p * power;
}

/// tanh x, absolute error below 2e-7.
KVCAST_INLINE float vector_tanh(float x) { return 1.0F - 2.0F / (vector_exp(2.0F * x) + 1.0F); }

/// erf x, absolute error below 3e-7.
/// Source: Abramowitz and Stegun 1964, Handbook of Mathematical Functions, 7.1.26.
KVCAST_INLINE float vector_erf(float x) {
  const float a = x < 0 ? -x : x;
  const float t = 1.0F / (1.0F + 0.3275911F * a);
  float p = 1.061405429F;
  p = p * t - 1.453152027F;
  p = p * t + 1.421413741F;
  p = p * t - 0.284496736F;
  p = p * t + 0.254829592F;
  const float y = 1.0F - p * t * vector_exp(-a * a);
  return x < 0 ? -y : y;
}

KVCAST_INLINE float vector_silu(float x) { return x / (1.0F + vector_exp(-x)); }
KVCAST_INLINE float vector_sigmoid(float x) { return 1.0F / (1.0F + vector_exp(-x)); }
KVCAST_INLINE float vector_quick_gelu(float x) { return x / (1.0F + vector_exp(-1.702F * x)); }
KVCAST_INLINE float vector_gelu(float x) {
  return 0.5F * x * (1.0F + vector_erf(x * 0.70710678118654752F));
}
KVCAST_INLINE float vector_gelu_tanh(float x) {
  const float inner = 0.79788456080286536F * (x + 0.044715F * x * x * x);
  return 0.5F * x * (1.0F + vector_tanh(inner));
}

}  // namespace kvcast::execute
