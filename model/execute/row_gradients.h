/// Vector loops of training over one row or run of numbers, on the calling thread. Results may lie
/// in the place of an operand.
#pragma once

#include <cstddef>

#include "model/graph/op.h"

namespace kvcast::execute {

/// out = f'·g; `saved` is x, or f(x) where the function saves its result.
void gradient_row(Function function, float parameter, const float* saved, const float* g,
                  float* out, std::size_t n);
/// of_gate = g∘up∘f'(gate), of_up = g∘f(gate)
void gated_gradient_row(Function function, const float* gate, const float* up, const float* g,
                        float* of_gate, float* of_up, std::size_t n);
/// The same of clamped_gate_row.
void clamped_gate_gradient_row(float limit, float alpha, const float* gate, const float* up,
                               const float* g, float* of_gate, float* of_up, std::size_t n);
/// out = g∘(1/2 + 2·above·max(x, 0) + below·(exp(m) - 1)), m = min(x, 0)
void xielu_gradient_row(float above, float below, const float* x, const float* g, float* out,
                        std::size_t n);
/// Σ g∘max(x, 0)² or, `of_negative`, Σ g∘(exp(m) - 1 - m).
float xielu_weight_gradient_row(bool of_negative, const float* g, const float* x, std::size_t n);
/// From the gradient of z = max(x - mean - cutoff·σ, 0), above_most_of_row's result, to that of x.
void above_most_gradient_row(float cutoff, const float* x, const float* z, const float* of_z,
                             float* out, std::size_t n);
/// out = p∘(g - Σ g∘p)
void softmax_gradient_row(const float* p, const float* g, float* out, std::size_t n);
/// out = root·(u - x̂·mean(u∘x̂)), x̂ = x·root, u = g∘(unit + w); a null w is 1.
void rms_norm_gradient_row(const float* g, const float* x, float root, const float* w, float unit,
                           float* out, std::size_t n);
/// out = root·(u - mean(u) - x̂·mean(u∘x̂)), x̂ = (x - mean)·root, u = g∘w; a null w is 1.
void layer_norm_gradient_row(const float* g, const float* x, float mean, float root, const float* w,
                             float* out, std::size_t n);
/// sum += g∘(x - mean)·root
void add_normed_row(const float* g, const float* x, float mean, float root, float* sum,
                    std::size_t n);
/// out = c·sign(x - y); returns Σ |x - y|.
float absolute_error_row(const float* x, const float* y, float c, float* out, std::size_t n);
float squares_of_row(const float* x, std::size_t n);

/// What AdamW's numbers have in common.
struct AdamWStep {
  float rate;
  float kept;  ///< of a weight that decays
  float clip;
  float beta1;
  float beta2;
  float of_mean;  ///< against its bias towards 0
  float of_variance;
  float eps;
};
void adamw_row(const AdamWStep& step, const float* g, float* w, float* m, float* v, std::size_t n);

/// Of a key and n queries, s their scaled scores and `of_p` the gradients of their probabilities:
/// s becomes p = e^(s - log_sum), of_p that of s. Scores go through a soft cap unless it is 0.
void attention_gradient_row(float softcap, const float* bias, const float* log_sums,
                            const float* deltas, float* s, float* of_p, std::size_t n);

}  // namespace kvcast::execute
