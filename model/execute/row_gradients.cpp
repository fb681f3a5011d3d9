#include "model/execute/row_gradients.h"

#include <cmath>

#include "model/base/error.h"
#include "model/execute/row_loops.h"
#include "model/execute/vector_math.h"

namespace kvcast::execute {
namespace {

// The derivatives of activations, of x unless said otherwise.
KVCAST_INLINE float relu_slope(float y) { return y > 0 ? 1.0F : 0.0F; }
KVCAST_INLINE float squared_relu_slope(float x) { return x > 0 ? 2.0F * x : 0.0F; }
KVCAST_INLINE float sigmoid_slope(float y) { return y * (1.0F - y); }
KVCAST_INLINE float silu_slope(float x) {
  const float sigmoid = vector_sigmoid(x);
  return sigmoid * (1.0F + x * (1.0F - sigmoid));
}
KVCAST_INLINE float quick_gelu_slope_of(float x) {
  const float steep = 1.702F * x;
  const float sigmoid = vector_sigmoid(steep);
  return sigmoid * (1.0F + steep * (1.0F - sigmoid));
}
KVCAST_INLINE float gelu_slope(float x) {
  return 0.5F * (1.0F + vector_erf(x * 0.70710678118654752F)) +
         x * 0.39894228040143268F * vector_exp(-0.5F * x * x);
}
KVCAST_INLINE float gelu_tanh_slope(float x) {
  const float square = x * x;
  const float tangent = vector_tanh(0.79788456080286536F * (x + 0.044715F * square * x));
  return 0.5F * (1.0F + tangent) + 0.5F * x * (1.0F - tangent * tangent) * 0.79788456080286536F *
                                       (1.0F + 3 * 0.044715F * square);
}

template <typename F>
KVCAST_INLINE void each(const float* saved, const float* g, float* out, std::size_t n, F slope) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) out[i] = g[i] * slope(saved[i]);
}

/// `value` and `slope` of the gate.
template <typename F, typename S>
KVCAST_INLINE void each_gate(const float* gate, const float* up, const float* g, float* of_gate,
                             float* of_up, std::size_t n, F value, S slope) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const float a = gate[i];
    const float through = g[i];
    const float y = value(a);
    of_gate[i] = through * up[i] * slope(a, y);
    of_up[i] = through * y;
  }
}

}  // namespace

KVCAST_VECTOR_CLONES void gradient_row(Function function, float parameter, const float* saved,
                                       const float* g, float* out, std::size_t n) {
  switch (function) {
    case Function::ClampBelow:
      return each(saved, g, out, n, [=](float x) { return x >= parameter ? 1.0F : 0.0F; });
    case Function::Clamp:
      return each(saved, g, out, n, [=](float x) {
        return (x >= -parameter ? 1.0F : 0.0F) * (x <= parameter ? 1.0F : 0.0F);
      });
    case Function::Square: return each(saved, g, out, n, [](float x) { return 2.0F * x; });
    case Function::InverseRoot:
      return each(saved, g, out, n, [](float y) { return -0.5F * y * y * y; });
    case Function::SoftCap:
      return each(saved, g, out, n, [=](float y) {
        const float share = y / parameter;
        return 1.0F - share * share;
      });
    case Function::Relu: return each(saved, g, out, n, [](float y) { return relu_slope(y); });
    case Function::SquaredRelu:
      return each(saved, g, out, n, [](float x) { return squared_relu_slope(x); });
    case Function::Sigmoid: return each(saved, g, out, n, [](float y) { return sigmoid_slope(y); });
    case Function::Silu: return each(saved, g, out, n, [](float x) { return silu_slope(x); });
    case Function::QuickGelu:
      return each(saved, g, out, n, [](float x) { return quick_gelu_slope_of(x); });
    case Function::Gelu: return each(saved, g, out, n, [](float x) { return gelu_slope(x); });
    case Function::GeluTanh:
      return each(saved, g, out, n, [](float x) { return gelu_tanh_slope(x); });
    default: KVCAST_ASSERT(false);
  }
}

KVCAST_VECTOR_CLONES void xielu_gradient_row(float above, float below, const float* x,
                                             const float* g, float* out, std::size_t n) {
  each(x, g, out, n, [=](float v) {
    const float high = v > 0 ? v : 0.0F;
    const float low = v < 0 ? v : 0.0F;
    return 0.5F + 2.0F * above * high + below * (vector_exp(low) - 1.0F);
  });
}

KVCAST_VECTOR_CLONES float xielu_weight_gradient_row(bool of_negative, const float* g,
                                                     const float* x, std::size_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < n; ++i) {
    const float high = x[i] > 0 ? x[i] : 0.0F;
    const float low = x[i] < 0 ? x[i] : 0.0F;
    sum += g[i] * (of_negative ? vector_exp(low) - 1.0F - low : high * high);
  }
  return sum;
}

KVCAST_VECTOR_CLONES void above_most_gradient_row(float cutoff, const float* x, const float* z,
                                                  const float* of_z, float* out, std::size_t n) {
  float all = 0;
  float sum = 0;
#pragma omp simd reduction(+ : all, sum)
  for (std::size_t i = 0; i < n; ++i) {
    all += x[i];
    sum += z[i] > 0 ? of_z[i] : 0.0F;
  }
  const auto features = static_cast<float>(n);
  const float center = all / features;
  const float mean = sum / features;
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::size_t i = 0; i < n; ++i) squares += (x[i] - center) * (x[i] - center);
  const float deviation = std::sqrt(squares / features);
  const float slope = deviation > 0 ? cutoff * mean / deviation : 0.0F;
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = (z[i] > 0 ? of_z[i] : 0.0F) - mean - slope * (x[i] - center);
  }
}

KVCAST_VECTOR_CLONES void clamped_gate_gradient_row(float limit, float alpha, const float* gate,
                                                    const float* up, const float* g, float* of_gate,
                                                    float* of_up, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const float a = gate[i];
    const float u = up[i];
    const float of_y = g[i];
    const float low = a < limit ? a : limit;
    const float above = u > -limit ? u : -limit;
    const float inside = above < limit ? above : limit;
    const float sigmoid = vector_sigmoid(alpha * low);
    const float slope = sigmoid * (1.0F + alpha * low * (1.0F - sigmoid));
    of_gate[i] = a <= limit ? of_y * (inside + 1.0F) * slope : 0.0F;
    of_up[i] = inside == u ? of_y * low * sigmoid : 0.0F;
  }
}

KVCAST_VECTOR_CLONES void gated_gradient_row(Function function, const float* gate, const float* up,
                                             const float* g, float* of_gate, float* of_up,
                                             std::size_t n) {
  switch (function) {
    case Function::Silu:
      return each_gate(
          gate, up, g, of_gate, of_up, n, [](float a) { return vector_silu(a); },
          [](float a, float /*y*/) { return silu_slope(a); });
    case Function::Gelu:
      return each_gate(
          gate, up, g, of_gate, of_up, n, [](float a) { return vector_gelu(a); },
          [](float a, float /*y*/) { return gelu_slope(a); });
    case Function::GeluTanh:
      return each_gate(
          gate, up, g, of_gate, of_up, n, [](float a) { return vector_gelu_tanh(a); },
          [](float a, float /*y*/) { return gelu_tanh_slope(a); });
    case Function::QuickGelu:
      return each_gate(
          gate, up, g, of_gate, of_up, n, [](float a) { return vector_quick_gelu(a); },
          [](float a, float /*y*/) { return quick_gelu_slope_of(a); });
    case Function::Sigmoid:
      return each_gate(
          gate, up, g, of_gate, of_up, n, [](float a) { return vector_sigmoid(a); },
          [](float /*a*/, float y) { return sigmoid_slope(y); });
    case Function::SquaredRelu:
      return each_gate(
          gate, up, g, of_gate, of_up, n, [](float a) { return a > 0 ? a * a : 0.0F; },
          [](float a, float /*y*/) { return squared_relu_slope(a); });
    default:
      KVCAST_ASSERT(function == Function::Relu);
      each_gate(
          gate, up, g, of_gate, of_up, n, [](float a) { return a > 0 ? a : 0.0F; },
          [](float /*a*/, float y) { return relu_slope(y); });
  }
}

KVCAST_VECTOR_CLONES void softmax_gradient_row(const float* p, const float* g, float* out,
                                               std::size_t n) {
  const float sum = dot_row(p, g, n);
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) out[i] = p[i] * (g[i] - sum);
}

KVCAST_VECTOR_CLONES void rms_norm_gradient_row(const float* g, const float* x, float root,
                                                const float* w, float unit, float* out,
                                                std::size_t n) {
  float sum = 0;
  if (w == nullptr) {
    sum = dot_row(g, x, n);
  } else {
#pragma omp simd reduction(+ : sum)
    for (std::size_t i = 0; i < n; ++i) sum += g[i] * (unit + w[i]) * x[i];
  }
  const float share = root * root * sum / static_cast<float>(n);
  if (w == nullptr) {
#pragma omp simd
    for (std::size_t i = 0; i < n; ++i) out[i] = root * (g[i] - x[i] * share);
    return;
  }
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) out[i] = root * (g[i] * (unit + w[i]) - x[i] * share);
}

KVCAST_VECTOR_CLONES void layer_norm_gradient_row(const float* g, const float* x, float mean,
                                                  float root, const float* w, float* out,
                                                  std::size_t n) {
  float sum = 0;
  float product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (std::size_t i = 0; i < n; ++i) {
    const float u = w == nullptr ? g[i] : g[i] * w[i];
    sum += u;
    product += u * (x[i] - mean);
  }
  const float mean_u = sum / static_cast<float>(n);
  const float share = root * root * product / static_cast<float>(n);
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const float u = w == nullptr ? g[i] : g[i] * w[i];
    out[i] = root * (u - mean_u - (x[i] - mean) * share);
  }
}

KVCAST_VECTOR_CLONES void add_normed_row(const float* g, const float* x, float mean, float root,
                                         float* sum, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) sum[i] += g[i] * ((x[i] - mean) * root);
}

KVCAST_VECTOR_CLONES float absolute_error_row(const float* x, const float* y, float c, float* out,
                                              std::size_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < n; ++i) {
    const float difference = x[i] - y[i];
    sum += std::abs(difference);
    out[i] = (difference > 0 ? c : 0.0F) - (difference < 0 ? c : 0.0F);
  }
  return sum;
}

KVCAST_VECTOR_CLONES float squares_of_row(const float* x, std::size_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

KVCAST_VECTOR_CLONES void adamw_row(const AdamWStep& step, const float* g, float* w, float* m,
                                    float* v, std::size_t n) {
  const AdamWStep s = step;
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const float clipped = s.clip * g[i];
    const float mean = s.beta1 * m[i] + (1 - s.beta1) * clipped;
    const float variance = s.beta2 * v[i] + (1 - s.beta2) * clipped * clipped;
    m[i] = mean;
    v[i] = variance;
    w[i] =
        s.kept * w[i] - s.rate * (mean * s.of_mean / (std::sqrt(variance * s.of_variance) + s.eps));
  }
}

KVCAST_VECTOR_CLONES void attention_gradient_row(float softcap, const float* bias,
                                                 const float* log_sums, const float* deltas,
                                                 float* s, float* of_p, std::size_t n) {
  if (softcap == 0 && bias == nullptr) {
#pragma omp simd
    for (std::size_t i = 0; i < n; ++i) {
      const float p = vector_exp(s[i] - log_sums[i]);
      s[i] = p;
      of_p[i] = p * (of_p[i] - deltas[i]);
    }
    return;
  }
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const float tangent = softcap > 0 ? vector_tanh(s[i] / softcap) : 0.0F;
    const float capped = softcap > 0 ? softcap * tangent : s[i];
    const float p = vector_exp((bias == nullptr ? capped : capped + bias[i]) - log_sums[i]);
    s[i] = p;
    of_p[i] = p * (of_p[i] - deltas[i]) * (1.0F - tangent * tangent);
  }
}

}  // namespace kvcast::execute
