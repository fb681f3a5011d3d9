#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/model/tiny_models.h"

using namespace kvcast;
using nlohmann::json;

namespace {

const std::string t5 = R"({"model_type": "t5", "d_model": 42, "vocab_size": 51,
  "num_layers": 3, "num_heads": 6, "d_kv": 5, "d_ff": 20})";
const std::string whisper = R"({"model_type": "whisper", "d_model": 42, "vocab_size": 51,
  "encoder_layers": 2, "encoder_attention_heads": 6, "encoder_ffn_dim": 20,
  "decoder_layers": 3, "decoder_attention_heads": 3, "decoder_ffn_dim": 22})";

}  // namespace

TEST_CASE("config_encoder_decoders: T5 v1.0 has a scaled tied head and unscaled scores") {
  const Architecture a = model_of(t5);
  CHECK(a.encoder_decoder);
  CHECK(a.num_mel_bins == 0);
  CHECK(a.tied_embeddings);
  CHECK(a.logit_scale == 1 / std::sqrt(42.0));
  CHECK(a.max_position_embeddings == 512);
  for (const Stack* s : {&a.encoder, &a.decoder}) {
    CHECK(s->layers == std::vector<LayerShape>(3, {{6, 6, 5}, 20, 0}));  // 6 · 5 < 42
    CHECK(s->norm == NormKind::Rms);
    CHECK(s->norm_eps == 1e-6);
    CHECK(s->position == Position::Relative);
    CHECK(s->relative_buckets == 32);
    CHECK(s->relative_max_distance == 128);
    CHECK(s->attention_scale == 1);
    CHECK(s->score_scale == ScoreScale::None);
    CHECK_FALSE(s->gated_mlp);
    CHECK(s->activation == Function::Relu);
    CHECK_FALSE((s->query_bias || s->mlp_bias));
  }
  CHECK_FALSE(a.encoder.causal);
  CHECK(a.decoder.causal);
  CHECK_FALSE(a.encoder.cross_attention);
  CHECK(a.decoder.cross_attention);
}

TEST_CASE("config_encoder_decoders: Flan-T5's head is untied and unscaled, its MLP gated") {
  const Architecture a = model_of(t5, R"({"tie_word_embeddings": false, "num_decoder_layers": 2,
    "feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16})");
  CHECK_FALSE(a.tied_embeddings);
  CHECK(a.logit_scale == 1);
  CHECK(a.encoder.layers.size() == 3);
  CHECK(a.decoder.layers.size() == 2);
  CHECK(a.decoder.gated_mlp);
  CHECK(a.decoder.activation == Function::GeluTanh);  // gated-gelu means gelu_new
  CHECK(a.encoder.relative_buckets == 8);
  CHECK(a.encoder.relative_max_distance == 16);
}

TEST_CASE("config_encoder_decoders: Whisper's stacks have their own heads and no key bias") {
  const Architecture a = model_of(whisper);
  CHECK(a.encoder_decoder);
  CHECK(a.num_mel_bins == 80);
  CHECK(a.max_source_positions == 1500);
  CHECK(a.max_position_embeddings == 448);
  CHECK(a.tied_embeddings);
  CHECK(a.logit_scale == 1);
  CHECK(a.encoder.layers == std::vector<LayerShape>(2, {{6, 6, 7}, 20, 0}));
  CHECK(a.decoder.layers == std::vector<LayerShape>(3, {{3, 3, 14}, 22, 0}));
  CHECK(a.encoder.attention_scale == 1 / std::sqrt(7.0));
  CHECK(a.decoder.attention_scale == 1 / std::sqrt(14.0));
  CHECK(a.encoder.position == Position::Sinusoid);
  CHECK(a.encoder.position_rows == 1500);
  CHECK(a.decoder.position == Position::Learned);
  CHECK(a.decoder.position_rows == 448);
  for (const Stack* s : {&a.encoder, &a.decoder}) {
    CHECK(s->norm == NormKind::Layer);
    CHECK((s->query_bias && s->value_bias && s->attention_output_bias && s->mlp_bias));
    CHECK_FALSE(s->key_bias);
    CHECK(s->score_scale == ScoreScale::OnQuery);
    CHECK(s->activation == Function::Gelu);
  }
  CHECK_FALSE(a.encoder.causal);
  CHECK(a.decoder.cross_attention);
}

TEST_CASE("config_encoder_decoders: Whisper's sizes are read where they are given") {
  const Architecture a = model_of(whisper, R"({"num_mel_bins": 11, "max_source_positions": 13,
    "max_target_positions": 17, "tie_word_embeddings": false})");
  CHECK(a.num_mel_bins == 11);
  CHECK(a.encoder.position_rows == 13);
  CHECK(a.decoder.position_rows == 17);
  CHECK_FALSE(a.tied_embeddings);
}
