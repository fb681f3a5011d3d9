#include "model/execute/row_loops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/base/error.h"
#include "model/execute/vector_math.h"

namespace kvcast::execute {
namespace {

template <typename F>
KVCAST_INLINE void each(const float* x, float* y, std::size_t n, F f) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) y[i] = f(x[i]);
}

template <typename F>
KVCAST_INLINE void each_pair(const float* x, const float* z, float* y, std::size_t n, F f) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) y[i] = f(x[i], z[i]);
}

}  // namespace

KVCAST_VECTOR_CLONES void map_row(Function function, float parameter, const float* x, float* y,
                                  std::size_t n) {
  switch (function) {
    case Function::Copy:
      if (x != y) std::copy_n(x, n, y);
      return;
    case Function::Scale: return each(x, y, n, [=](float v) { return parameter * v; });
    case Function::ClampBelow:
      return each(x, y, n, [=](float v) { return v > parameter ? v : parameter; });
    case Function::Square: return each(x, y, n, [](float v) { return v * v; });
    case Function::InverseRoot:
      return each(x, y, n, [=](float v) { return 1.0F / std::sqrt(v + parameter); });
    case Function::SoftCap:
      return each(x, y, n, [=](float v) { return parameter * vector_tanh(v / parameter); });
    case Function::Relu: return each(x, y, n, [](float v) { return v > 0 ? v : 0.0F; });
    case Function::Silu: return each(x, y, n, [](float v) { return vector_silu(v); });
    case Function::Gelu: return each(x, y, n, [](float v) { return vector_gelu(v); });
    case Function::GeluTanh: return each(x, y, n, [](float v) { return vector_gelu_tanh(v); });
    case Function::OnePlus: return each(x, y, n, [](float v) { return 1.0F + v; });
    case Function::QuickGelu: return each(x, y, n, [](float v) { return vector_quick_gelu(v); });
    case Function::SquaredRelu: return each(x, y, n, [](float v) { return v > 0 ? v * v : 0.0F; });
    case Function::Sigmoid: return each(x, y, n, [](float v) { return vector_sigmoid(v); });
    case Function::Clamp:
      return each(x, y, n, [=](float v) {
        const float above = v > -parameter ? v : -parameter;
        return above < parameter ? above : parameter;
      });
    case Function::Add:
    case Function::Multiply:
    case Function::Xielu:
    case Function::Center: break;
  }
  KVCAST_ASSERT(false);
}

KVCAST_VECTOR_CLONES void xielu_row(float above, float below, const float* x, float* y,
                                    std::size_t n) {
  each(x, y, n, [=](float v) {
    const float high = v > 0 ? v : 0.0F;
    const float low = v < 0 ? v : 0.0F;
    return 0.5F * v + above * high * high + below * (vector_exp(low) - 1.0F - low);
  });
}

KVCAST_VECTOR_CLONES void combine_rows(Function function, const float* x, const float* z, float* y,
                                       std::size_t n) {
  if (function == Function::Add)
    return each_pair(x, z, y, n, [](float a, float b) { return a + b; });
  if (function == Function::Center)
    return each_pair(x, z, y, n, [](float a, float b) { return a - b; });
  KVCAST_ASSERT(function == Function::Multiply);
  each_pair(x, z, y, n, [](float a, float b) { return a * b; });
}

KVCAST_VECTOR_CLONES void combine_scalar(Function function, const float* x, float z, float* y,
                                         std::size_t n) {
  if (function == Function::Add) return each(x, y, n, [=](float v) { return v + z; });
  if (function == Function::Center) return each(x, y, n, [=](float v) { return v - z; });
  KVCAST_ASSERT(function == Function::Multiply);
  each(x, y, n, [=](float v) { return v * z; });
}

KVCAST_VECTOR_CLONES void gated_row(Function function, const float* gate, const float* up, float* y,
                                    std::size_t n) {
  switch (function) {
    case Function::Silu:
      return each_pair(gate, up, y, n, [](float g, float u) { return vector_silu(g) * u; });
    case Function::Gelu:
      return each_pair(gate, up, y, n, [](float g, float u) { return vector_gelu(g) * u; });
    case Function::GeluTanh:
      return each_pair(gate, up, y, n, [](float g, float u) { return vector_gelu_tanh(g) * u; });
    case Function::QuickGelu:
      return each_pair(gate, up, y, n, [](float g, float u) { return vector_quick_gelu(g) * u; });
    case Function::Sigmoid:
      return each_pair(gate, up, y, n, [](float g, float u) { return vector_sigmoid(g) * u; });
    case Function::SquaredRelu:
      return each_pair(gate, up, y, n, [](float g, float u) { return (g > 0 ? g * g : 0.0F) * u; });
    default:
      KVCAST_ASSERT(function == Function::Relu);
      each_pair(gate, up, y, n, [](float g, float u) { return (g > 0 ? g : 0.0F) * u; });
  }
}

KVCAST_VECTOR_CLONES void clamped_gate_row(float limit, float alpha, const float* gate,
                                           const float* up, float* y, std::size_t n) {
  each_pair(gate, up, y, n, [=](float g, float u) {
    const float low = g < limit ? g : limit;
    const float above = u > -limit ? u : -limit;
    const float inside = above < limit ? above : limit;
    return low * vector_sigmoid(alpha * low) * (inside + 1.0F);
  });
}

KVCAST_VECTOR_CLONES void above_most_of_row(float cutoff, const float* x, float* y, std::size_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < n; ++i) sum += x[i];
  const float mean = sum / static_cast<float>(n);
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::size_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const float edge = mean + cutoff * std::sqrt(squares / static_cast<float>(n));
  each(x, y, n, [=](float v) { return v > edge ? v - edge : 0.0F; });
}

KVCAST_VECTOR_CLONES float rms_norm_row(const float* x, const float* w, float unit, float eps,
                                        float* y, std::size_t n) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::size_t i = 0; i < n; ++i) squares += x[i] * x[i];
  const float root = 1.0F / std::sqrt(squares / static_cast<float>(n) + eps);
  if (w == nullptr) {
    each(x, y, n, [=](float v) { return v * root; });
    return root;
  }
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) y[i] = x[i] * root * (unit + w[i]);
  return root;
}

KVCAST_VECTOR_CLONES MeanAndRoot layer_norm_row(const float* x, const float* w, const float* b,
                                                float eps, float* y, std::size_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < n; ++i) sum += x[i];
  const float mean = sum / static_cast<float>(n);
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::size_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const float root = 1.0F / std::sqrt(squares / static_cast<float>(n) + eps);
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * root;
  if (w != nullptr) combine_rows(Function::Multiply, y, w, y, n);
  if (b != nullptr) combine_rows(Function::Add, y, b, y, n);
  return {mean, root};
}

KVCAST_VECTOR_CLONES float mean_of_row(const float* x, std::size_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < n; ++i) sum += x[i];
  return sum / static_cast<float>(n);
}

KVCAST_VECTOR_CLONES float largest_of_row(const float* x, std::size_t n) {
  float peak = std::numeric_limits<float>::lowest();
#pragma omp simd reduction(max : peak)
  for (std::size_t i = 0; i < n; ++i) peak = x[i] > peak ? x[i] : peak;
  return peak;
}

KVCAST_VECTOR_CLONES bool is_finite_row(const float* x, std::size_t n) {
  int odd = 0;
#pragma omp simd reduction(| : odd)
  for (std::size_t i = 0; i < n; ++i) {
    odd |= std::abs(x[i]) <= std::numeric_limits<float>::max() ? 0 : 1;
  }
  return odd == 0;
}

std::size_t largest_index(const float* x, std::size_t n) {
  constexpr std::size_t block = 256;
  std::size_t first = 0;
  float peak = x[0];
  for (std::size_t i = 0; i < n; i += block) {
    const float largest = largest_of_row(x + i, std::min(block, n - i));
    if (largest > peak) {
      peak = largest;
      first = i;
    }
  }
  return static_cast<std::size_t>(std::find(x + first, x + n, peak) - x);
}

KVCAST_VECTOR_CLONES float exp_row(float shift, float* x, std::size_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < n; ++i) {
    const float e = vector_exp(x[i] - shift);
    x[i] = e;
    sum += e;
  }
  return sum;
}

KVCAST_VECTOR_CLONES void scale_row(float factor, float* x, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) x[i] *= factor;
}

KVCAST_VECTOR_CLONES void rotate_heads(float* x, std::size_t num_heads, std::size_t head_dim,
                                       const float* cosines, const float* sines,
                                       const RopeTable& table) {
  const std::size_t half = table.inverse_frequencies.size();
  if (table.interleaved) {
    for (std::size_t h = 0; h < num_heads; ++h) {
      float* a = x + h * head_dim;
#pragma GCC ivdep
      for (std::size_t j = 0; j < half; ++j) {
        const float first = a[2 * j];
        const float second = a[2 * j + 1];
        a[2 * j] = first * cosines[j] - second * sines[j];
        a[2 * j + 1] = second * cosines[j] + first * sines[j];
      }
    }
    return;
  }
  for (std::size_t h = 0; h < num_heads; ++h) {
    float* a = x + h * head_dim;
    float* b = a + half;
#pragma GCC ivdep
    for (std::size_t j = 0; j < half; ++j) {
      const float first = a[j];
      const float second = b[j];
      a[j] = first * cosines[j] - second * sines[j];
      b[j] = second * cosines[j] + first * sines[j];
    }
  }
}

KVCAST_VECTOR_CLONES float dot_row(const float* x, const float* y, std::size_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

KVCAST_VECTOR_CLONES void add_scaled_row(float factor, const float* x, float* y, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

}  // namespace kvcast::execute
