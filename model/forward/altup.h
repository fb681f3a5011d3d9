/// Gemma 3n's decoder around its layers' attention and MLP.
///
/// A token has several hidden states, its streams (AltUp). A layer predicts all of them by a small
/// mixture, computes attention and MLP of one, the active stream, and corrects all by what came of
/// it. Beside attention stands a low-rank branch (LAuReL). Each layer also reads an input of its
/// own for each token, from a table of which only the tokens' rows are read.
///
/// Sources: transformers, models/gemma3n/modeling_gemma3n.py; Baykal et al. 2023 (AltUp,
/// arXiv:2301.13310); Menghani et al. 2024 (LAuReL, arXiv:2411.07501).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/forward/recorder.h"

namespace kvcast {

/// The streams of one pass. D = hidden_size, n = num_streams, p = layer_features.
class AltUpStreams {
 public:
  /// From the scaled embedding [batch, tokens, D] and the token ids [batch, tokens].
  AltUpStreams(Recorder& r, const Architecture& a, Value embedded, Value ids);

  /// The layer's input [batch, tokens, D]: the active of the streams that it predicts.
  /// Work a token: 2·n·D FLOPs for the router, 2·n³ for the coefficients, 2·n²·D for the mixture.
  Value predict(std::size_t layer);
  /// Corrects the predicted streams by the layer's output [batch, tokens or the last one, D], and
  /// adds its own input to all but the first.
  /// Work a token: 2·n·D FLOPs for the router, 2·n² for the coefficients, 2·n·D to correct, 4·p·D
  /// for the two products of the input.
  void correct(std::size_t layer, Value output);
  /// Their mean [batch, tokens or the last one, D].  Work a token: 2·(n - 1)·D² FLOPs.
  Value merge(bool last_token);

 private:
  Value linear(std::string_view label, const std::string& name, Value x, std::uint64_t features);
  Value norm(std::string_view label, const std::string& name, Value x);
  /// tanh(W·norm(x)/D): [batch, tokens, n]
  Value modalities(const std::string& layer, Value x);
  /// The root of the mean square of each row.
  Value magnitude(Value x);
  /// x with the magnitude `target` in each row.
  Value rescaled(Value x, Value target);

  Recorder& r_;
  const Architecture& a_;
  const AltUp& form_;
  std::vector<Value> streams_;
  std::vector<Value> predicted_ = {};
  Value layer_inputs_;  ///< [batch, tokens, table_layers·p]
};

/// (h + x + norm(W_right·W_left·x))/√2 for the layer called `name`; x is the attention's input and
/// h the hidden state with the attention's output.
Value with_low_rank_branch(Recorder& r, const Architecture& a, const std::string& name, Value h,
                           Value x);

}  // namespace kvcast
