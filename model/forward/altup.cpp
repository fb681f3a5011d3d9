#include "model/forward/altup.h"

#include <cmath>
#include <numbers>

namespace kvcast {
namespace {

constexpr double half_root = 1 / std::numbers::sqrt2;
/// Keeps the root of a row of zeros at zero and changes no other.
constexpr double tiny = 1e-30;
constexpr double least_mean_square = 1e-5;  // modeling_gemma3n.py, Gemma3nTextModel.forward

std::string layer_name(std::size_t layer) { return "layers." + std::to_string(layer); }

}  // namespace

AltUpStreams::AltUpStreams(Recorder& r, const Architecture& a, Value embedded, Value ids)
    : r_(r), a_(a), form_(*a.decoder.altup), streams_{embedded} {
  const auto hidden = static_cast<double>(a.hidden_size);
  const std::uint64_t features = form_.table_layers * form_.layer_features;
  const Value table = r.weight("layer_inputs.weight", {form_.layer_rows, features});
  const Value rows = r.unary("layer_inputs_scale", Function::Scale,
                             r.embedding(table, ids, "layer_inputs", {.first_for_unknown = true}),
                             std::sqrt(static_cast<double>(form_.layer_features)));
  Value projected =
      linear("layer_inputs_projection", "layer_inputs_projection", embedded, features);
  projected =
      r.unary("layer_inputs_projection_scale", Function::Scale, projected, 1 / std::sqrt(hidden));
  const std::string projection_norm = "layer_inputs_norm";
  projected = r.head_norm(projection_norm, QueryKeyNorm::Heads, a.decoder.norm_eps, projection_norm,
                          projected, form_.table_layers);
  layer_inputs_ = r.unary("layer_inputs_mean", Function::Scale,
                          r.binary("add_layer_inputs", Function::Add, projected, rows), half_root);

  const Value target = magnitude(embedded);
  for (std::uint64_t i = 1; i < form_.num_streams; ++i) {
    const std::string name = "stream." + std::to_string(i);
    streams_.push_back(rescaled(linear("stream", name, embedded, a.hidden_size), target));
  }
}

Value AltUpStreams::predict(std::size_t layer) {
  const std::string name = layer_name(layer);
  const std::uint64_t n = form_.num_streams;
  const Value seen = modalities(name, streams_[form_.active]);
  predicted_ = r_.mix_streams("predict_streams", streams_, streams_,
                              linear("prediction", name + ".altup.prediction", seen, n * n));
  return predicted_[form_.active];
}

void AltUpStreams::correct(std::size_t layer, Value output) {
  const std::string name = layer_name(layer);
  // After its attention the last layer may go on with the last token alone.
  const bool leaves = r_.info(output).shape[1] != r_.info(predicted_[0]).shape[1];
  const auto kept = [&](Value x) { return leaves ? r_.last_token(x) : x; };
  for (Value& stream : predicted_) stream = kept(stream);
  const Value change = r_.binary("innovation", Function::Center, output, predicted_[form_.active]);
  Value shares =
      linear("correction", name + ".altup.correction", modalities(name, output), form_.num_streams);
  shares = r_.unary("correction_offset", Function::OnePlus, shares);
  streams_ = r_.mix_streams("correct_streams", {change}, predicted_, shares);

  Value x = streams_[form_.active];
  if (form_.scales_active) {
    x = r_.binary("active_scale", Function::Multiply, x,
                  r_.weight(name + ".altup.scale.weight", {a_.hidden_size}));
  }
  const std::uint64_t p = form_.layer_features;
  const Value gate = linear("layer_input_gate", name + ".layer_input.gate", x, p);
  const Value own = kept(r_.slice_features("layer_input", layer_inputs_, layer * p, p));
  x = r_.gated("layer_input_activation", {a_.decoder.activation}, gate, own);
  x = linear("layer_input_projection", name + ".layer_input.projection", x, a_.hidden_size);
  x = norm("layer_input_norm", name + ".layer_input_norm", x);
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    streams_[i] = r_.binary("add_layer_input", Function::Add, streams_[i], x);
  }
}

Value AltUpStreams::merge(bool last_token) {
  if (last_token) {
    for (Value& stream : streams_) stream = r_.last_token(stream);
  }
  const Value target = magnitude(streams_[0]);
  Value sum = streams_[0];
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    const std::string name = "unstream." + std::to_string(i);
    const Value x = rescaled(linear("unstream", name, streams_[i], a_.hidden_size), target);
    sum = r_.binary("add_streams", Function::Add, sum, x);
  }
  return r_.unary("mean_of_streams", Function::Scale, sum,
                  1 / static_cast<double>(form_.num_streams));
}

Value AltUpStreams::linear(std::string_view label, const std::string& name, Value x,
                           std::uint64_t features) {
  return r_.linear(label, x, r_.weight(name + ".weight", {features, r_.info(x).shape.back()}));
}

Value AltUpStreams::norm(std::string_view label, const std::string& name, Value x) {
  return r_.norm(label, a_.decoder.norm, a_.decoder.norm_eps, name, x);
}

Value AltUpStreams::modalities(const std::string& layer, Value x) {
  const Value normed = norm("router_norm", layer + ".altup.router_norm", x);
  const Value routed = linear("router", layer + ".altup.router", normed, form_.num_streams);
  const Value scaled =
      r_.unary("router_scale", Function::Scale, routed, 1 / static_cast<double>(a_.hidden_size));
  return r_.unary("router_tanh", Function::SoftCap, scaled, 1);
}

Value AltUpStreams::magnitude(Value x) {
  const Value mean = r_.row_mean("magnitude", r_.unary("magnitude", Function::Square, x));
  return r_.binary("magnitude", Function::Multiply, mean,
                   r_.unary("magnitude", Function::InverseRoot, mean, tiny));
}

Value AltUpStreams::rescaled(Value x, Value target) {
  Value own = r_.row_mean("magnitude", r_.unary("magnitude", Function::Square, x));
  own = r_.unary("magnitude", Function::ClampBelow, own, least_mean_square);
  own = r_.unary("magnitude", Function::InverseRoot, own);
  const Value factor = r_.binary("rescale", Function::Multiply, target, own);
  return r_.binary("rescale", Function::Multiply, x, factor);
}

Value with_low_rank_branch(Recorder& r, const Architecture& a, const std::string& name, Value h,
                           Value x) {
  const std::uint64_t rank = a.decoder.altup->laurel_rank;
  const Value left = r.weight(name + ".laurel.left.weight", {rank, a.hidden_size});
  const Value right = r.weight(name + ".laurel.right.weight", {a.hidden_size, rank});
  Value branch = r.linear("laurel_right", r.linear("laurel_left", x, left), right);
  branch = r.norm("laurel_norm", a.decoder.norm, a.decoder.norm_eps, name + ".laurel_norm", branch);
  h = r.binary("residual", Function::Add, h, r.binary("residual", Function::Add, x, branch));
  return r.unary("branch_scale", Function::Scale, h, half_root);
}

}  // namespace kvcast
