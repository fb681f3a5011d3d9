/// The operators on tokens that are not side by side, as plain loops that count.
#pragma once

#include <vector>

#include "model/execute/plain_attention.h"
#include "model/execute/token_places.h"

namespace kvcast::execute {

template <typename N>
class PlainTokens : public PlainAttention<N> {
 protected:
  using Base = PlainAttention<N>;
  using Base::call_;
  using Base::in_;
  using Base::in_shape;
  using Base::out_;
  using Base::out_shape;

 public:
  using Real = execute::Real<N>;
  using Base::Base;
  using Base::operator();

  void operator()(const DropTokens&) {
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      const TokenPlaces<N> kept(tokens(0, b));
      std::size_t next = b * out_shape()[1];
      for (std::size_t i = 0; i < in_shape(0)[1] + out_shape()[1]; ++i) {
        const auto token = static_cast<N>(i);
        if (kept.row(token) == TokenPlaces<N>::none) out_(next++, Real{token});
      }
    }
  }

  void operator()(const MissingTokens&) {
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      const TokenPlaces<N> held(tokens(0, b));
      std::size_t next = b * out_shape()[1];
      for (const N token : tokens(1, b)) {
        if (held.row(token) == TokenPlaces<N>::none) out_(next++, Real{token});
      }
    }
  }

  void operator()(const TokenRows&) {
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      const TokenPlaces<N> held(tokens(1, b));
      const std::vector<N> wanted = tokens(2, b);
      for (std::size_t i = 0; i < wanted.size(); ++i) copy_row(held.row(wanted[i]), b, i);
    }
  }

  void operator()(const TokenStates&) {
    const std::size_t features = out_shape()[2];
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      const TokenPlaces<N> held(tokens(1, b));
      const std::vector<N> wanted = tokens(3, b);
      const std::size_t last = wanted.size() - 1;
      for (std::size_t i = 0; i < last; ++i) copy_row(held.row(wanted[i]), b, i);
      const std::size_t from = ((b + 1) * in_shape(2)[1] - 1) * features;
      const std::size_t to = (b * out_shape()[1] + last) * features;
      for (std::size_t f = 0; f < features; ++f) out_(to + f, in_[2](from + f));
    }
  }

  void operator()(const StoreStates&) {
    const std::size_t features = out_shape()[2];
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      const TokenPlaces<N> held(tokens(1, b));
      const std::vector<N> of_x = tokens(3, b);
      for (std::size_t i = 0; i + 1 < of_x.size(); ++i) {
        const std::size_t from = (b * in_shape(2)[1] + i) * features;
        const std::size_t to = (b * out_shape()[1] + held.row(of_x[i])) * features;
        for (std::size_t f = 0; f < features; ++f) out_(to + f, in_[2](from + f));
      }
    }
  }

  void operator()(const TokenMask&) {
    std::size_t next = 0;
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      const std::vector<N> keys = tokens(1, b);
      for (const N query : tokens(0, b)) {
        for (const N key : keys) out_(next++, Real{key <= query ? 0 : masked_score});
      }
    }
  }

 private:
  /// The tokens of sequence b of an input [batch, n] or [batch, n, 1].
  std::vector<N> tokens(std::size_t input, std::size_t b) {
    const std::size_t n = in_shape(input)[1];
    std::vector<N> of_sequence;
    for (std::size_t i = 0; i < n; ++i) of_sequence.push_back(in_[input](b * n + i).value);
    return of_sequence;
  }

  /// Row `from` of input 0 to row `to` of the output, in sequence b.
  void copy_row(std::size_t from, std::size_t b, std::size_t to) {
    const std::size_t features = out_shape()[2];
    const std::size_t read = (b * in_shape(0)[1] + from) * features;
    const std::size_t written = (b * out_shape()[1] + to) * features;
    for (std::size_t f = 0; f < features; ++f) out_(written + f, in_[0](read + f));
  }
};

}  // namespace kvcast::execute
