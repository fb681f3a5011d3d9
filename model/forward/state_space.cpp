#include "model/forward/state_space.h"

#include <cmath>

#include "model/forward/attention_site.h"

namespace kvcast {
namespace {

/// Of the norm of a delta rule's queries and keys. Source: transformers, models/qwen3_next, l2norm.
constexpr double l2_eps = 1e-6;

double inverse_root(std::uint64_t n) { return 1 / std::sqrt(static_cast<double>(n)); }

class Mixer {
 public:
  Mixer(const StateSpaceSite& site, Value x)
      : s_(site.shape), site_(site), r_(site.r), name_(site.name + ".state."), x_(x) {}

  Value output() {
    const std::uint64_t values = s_.num_heads * s_.value_dim;
    const std::uint64_t keys = s_.num_groups * s_.key_dim;
    x_ = r_.scaled("state_input_scale", x_, s_.input_scale);
    const Value gate = projected("gate", values, s_.gate_scale);
    Value v = projected("value", values, s_.value_scale);
    if (!s_.scans) {
      v = r_.binary("gate_input", Function::Multiply, projected("input_gate", values, 1), v);
      return output_of(r_.binary("gate_state", Function::Multiply, gate, convolved("value", v)));
    }
    Recorder::ScanInputs in;
    if (s_.time_step_rank > 0) {
      in.value = convolved("value", v);
      project_values(in, keys);
    } else {
      const Value k = projected("key", keys, s_.key_scale);
      const Value q = projected("query", keys, s_.query_scale);
      in.time_step = projected("time_step", s_.num_heads, s_.time_step_scale);
      if (s_.delta) {
        in.beta =
            r_.unary("state_beta_gate", Function::Sigmoid, projected("beta", s_.num_heads, 1));
      }
      in.value = convolved("value", v);
      in.key = convolved("key", k);
      in.query = convolved("query", q);
    }
    in.key = unit_heads("key", in.key, 1);
    in.query = unit_heads("query", in.query, inverse_root(s_.key_dim));
    return output_of(gated(gate, scanned(in)));
  }

 private:
  /// Mamba-1's.
  void project_values(Recorder::ScanInputs& in, std::uint64_t keys) {
    const auto of_values = [&](const std::string& part, std::uint64_t features) {
      const Value y = r_.sum_parts(
          "sum_" + part, project(r_, "state_" + part, name_ + part, in.value, features, false));
      if (!s_.projection_norms) return y;
      const std::string norm = part + "_norm";
      return r_.norm("state_" + norm, NormKind::Rms, site_.norm_eps, name_ + norm, y);
    };
    const Value latent = of_values("time_step_latent", s_.time_step_rank);
    in.key = of_values("key", keys);
    in.query = of_values("query", keys);
    in.time_step = project(r_, "state_time_step", name_ + "time_step", latent, s_.num_heads, false);
  }

  Value scanned(Recorder::ScanInputs& in) {
    in.time_step_bias = of_heads("time_step_bias");
    const bool by_row = s_.time_step_rank > 0;
    in.decay =
        by_row ? r_.weight(name_ + "decay.weight", {s_.num_heads, s_.key_dim}) : of_heads("decay");
    if (!s_.delta) in.skip = of_heads("skip");
    in.state =
        r_.cache(name_ + "heads", {batch(), earlier(1), s_.state_elements()}, 1, {}, DType::FP32);
    StateScan op;
    op.num_heads = s_.num_heads;
    op.num_groups = s_.num_groups;
    op.delta = s_.delta;
    op.skips = !s_.delta;
    // transformers clamps time steps in prompts, but not in single steps.
    if (!(r_.info(x_).shape[1] == Count(1))) {
      op.chunk = s_.chunk;
      op.min_step = s_.min_time_step;
      op.max_step = s_.max_time_step;
    }
    const auto [y, state] = r_.state_scan(op, in);
    r_.output(state);
    return y;
  }

  Value output_of(Value y) {
    const Value out =
        project(r_, "state_output", name_ + "output", y, r_.info(x_).shape.back(), s_.output_bias);
    return r_.scaled("state_output_scale", out, s_.output_scale);
  }

  Count batch() const { return r_.info(x_).shape[0]; }
  /// Earlier tokens, at most `most`.
  Count earlier(std::uint64_t most) const { return r_.symbols().minimum(site_.past, most); }

  Value projected(const std::string& part, std::uint64_t features, double factor) {
    const Value y = project(r_, "state_" + part, name_ + part, x_, features, s_.projection_bias);
    return r_.scaled("state_" + part + "_scale", y, factor);
  }
  Value of_heads(const std::string& part) {
    return r_.weight(name_ + part + ".weight", {s_.num_heads});
  }

  Value convolved(const std::string& part, Value x) {
    const Count features = r_.info(x).shape.back();
    const std::uint64_t taps = s_.kernel - 1;
    const Count end = site_.past + r_.info(x).shape[1];
    const Value before = r_.cache(name_ + part + "s", {batch(), earlier(taps), features}, s_.kernel,
                                  r_.symbols().minimum(end, taps));
    const Value rows = r_.append(before, x, "cache_state_" + part);
    r_.output(rows);
    const std::string conv = name_ + "conv_" + part;
    const Value w = r_.weight(conv + ".weight", {features, 1, s_.kernel});
    std::optional<Value> bias;
    if (s_.conv_bias) bias = r_.weight(conv + ".bias", {features});
    const Value y = r_.causal_conv("conv_" + part, rows, r_.info(x).shape[1], w, bias);
    if (!s_.scans) return y;
    return r_.unary("conv_" + part + "_activation", s_.activation, y);
  }

  /// A delta rule's queries and keys have length 1 in each head, times `factor`.
  Value unit_heads(const std::string& part, Value x, double factor) {
    if (!s_.delta) return x;
    // Σx² + eps is n times the mean of x² + eps/n.
    const double eps = l2_eps / static_cast<double>(s_.key_dim);
    const std::string label = "state_" + part + "_norm";
    x = r_.head_norm(label, QueryKeyNorm::RotatedHeads, eps, {}, x, s_.num_groups);
    return r_.scaled(label + "_scale", x, factor * inverse_root(s_.key_dim));
  }

  Value normed(Value y) {
    if (s_.norm_groups == 0) return y;
    const std::string norm = name_ + "norm";
    if (site_.norms_together) {
      return with_all_features(r_, "state", y, [&](Value all) {
        return r_.head_norm("state_norm", QueryKeyNorm::Heads, site_.norm_eps, norm, all, 1);
      });
    }
    if (s_.shares_norm) {
      return r_.head_norm("state_norm", QueryKeyNorm::Heads, site_.norm_eps, norm, y,
                          s_.norm_groups);
    }
    y = r_.head_norm("state_norm", QueryKeyNorm::RotatedHeads, site_.norm_eps, {}, y,
                     s_.norm_groups);
    const Value w = r_.weight(norm + ".weight", {r_.info(y).shape.back()});
    return r_.binary("state_norm_weight", Function::Multiply, y, w);
  }

  Value gated(Value gate, Value y) {
    if (!s_.gate_before_norm) y = normed(y);
    y = r_.gated("gate_state", {Function::Silu}, gate, y);
    return s_.gate_before_norm ? normed(y) : y;
  }

  const StateSpace& s_;
  const StateSpaceSite& site_;
  Recorder& r_;
  std::string name_;
  Value x_;
};

}  // namespace

Value state_space(const StateSpaceSite& site, Value x) { return Mixer(site, x).output(); }

bool is_state(std::string_view cache_name) {
  return cache_name.find(".state.") != std::string_view::npos;
}

std::uint64_t kept_state_rows(const TensorInfo& state) {
  return state.most_rows == 1 ? 1 : state.most_rows - 1;  // a convolution's newest row comes after
}

}  // namespace kvcast
