/// Vector loops over one row or run of numbers, on the calling thread.
#pragma once

#include <cstddef>

#include "model/graph/op.h"

namespace kvcast::execute {

/// y[i] = f(x[i]); y may be x.
void map_row(Function function, float parameter, const float* x, float* y, std::size_t n);
/// Function::Xielu with p = `above` and n = `below`.
void xielu_row(float above, float below, const float* x, float* y, std::size_t n);
/// y[i] = x[i] ∘ z[i] for Add, Multiply, Center; y may be x.
void combine_rows(Function function, const float* x, const float* z, float* y, std::size_t n);
/// y[i] = x[i] ∘ z for Add, Multiply, Center.
void combine_scalar(Function function, const float* x, float z, float* y, std::size_t n);
/// y[i] = f(gate[i])·up[i]
void gated_row(Function function, const float* gate, const float* up, float* y, std::size_t n);
/// y[i] = g·sigmoid(alpha·g)·(u + 1), g = min(gate[i], limit), u = up[i] clamped to ±limit
void clamped_gate_row(float limit, float alpha, const float* gate, const float* up, float* y,
                      std::size_t n);
/// y[i] = max(x[i] - mean - cutoff·σ, 0), σ the row's standard deviation
void above_most_of_row(float cutoff, const float* x, float* y, std::size_t n);
/// y = x·root·(unit + w), root = rsqrt(mean(x²) + eps), which it returns; a null w is 1.
float rms_norm_row(const float* x, const float* w, float unit, float eps, float* y, std::size_t n);
struct MeanAndRoot {
  float mean;
  float root;
};
/// y = (x - mean)·root·w + b, root = rsqrt(variance + eps); w and b may be null.
MeanAndRoot layer_norm_row(const float* x, const float* w, const float* b, float eps, float* y,
                           std::size_t n);
float mean_of_row(const float* x, std::size_t n);
float largest_of_row(const float* x, std::size_t n);
/// No infinity and no NaN.
bool is_finite_row(const float* x, std::size_t n);
/// Of equal ones the first. The row is finite and not empty.
std::size_t largest_index(const float* x, std::size_t n);
/// x[i] = e^(x[i] - shift); returns the sum.
float exp_row(float shift, float* x, std::size_t n);
void scale_row(float factor, float* x, std::size_t n);
/// Rotates the table's pairs of each head of head_dim numbers, in place.
void rotate_heads(float* x, std::size_t num_heads, std::size_t head_dim, const float* cosines,
                  const float* sines, const RopeTable& table);
float dot_row(const float* x, const float* y, std::size_t n);
/// y += factor·x
void add_scaled_row(float factor, const float* x, float* y, std::size_t n);

}  // namespace kvcast::execute
