#include "model/methods/prompt_scores.h"

#include <string>

#include "model/base/error.h"

namespace kvcast {

Value attend_and_keep_query(const AttentionSite& s, const AttentionMethod& attend,
                            const Count& earlier) {
  const Value o = attend(s);
  const Value query = s.r.last_token(s.shared.queries);
  const Value kept =
      s.r.cache(s.name + ".queries", {s.batch(), earlier, query_features(s.layer.heads)});
  s.r.output(s.r.append(kept, query, "cache_query"));
  return o;
}

void record_importance(Recorder& r, const Architecture& a, const Count& queries,
                       std::uint64_t pool) {
  const Count batch = symbol::batch;
  const Count prompt = symbol::prompt_len;
  const Stack& stack = a.decoder;
  std::optional<Value> largest;
  for (std::size_t i = 0; i < stack.layers.size(); ++i) {
    r.enter("score", static_cast<int>(i));
    const LayerShape& layer = stack.layers[i];
    const Value q = r.cache("layers." + std::to_string(i) + ".queries",
                            {batch, queries, query_features(layer.heads)});
    const Value k = r.cache("layers." + std::to_string(layer.kv_layer.value_or(i)) + ".keys",
                            {batch, prompt, kv_features(layer.heads)});
    largest = r.largest_probability(attention_of(stack, layer.heads), q, k, pool, largest);
  }
  r.enter("score");
  r.output(r.row_mean("importance", *largest));
}

void plan_importance(Plan& plan, const NamePrefixes& prefixes, const Count& queries,
                     std::uint64_t pool, std::function<Architecture(const Plan&)> model) {
  plan.helpers.push_back(
      {{.name = "score",
        .part = TtftPart::Score,
        .prefixes = prefixes,
        .result = HelperResult::Importance,
        .tokens = symbol::prompt_len},
       [=](Recorder& r, const Plan& whole) { record_importance(r, model(whole), queries, pool); }});
}

void check_prunable(std::string_view method, const Architecture& a) {
  const Position p = a.decoder.position;
  if (!a.encoder_decoder && (p == Position::Rope || p == Position::Learned)) return;
  throw Error("method " + std::string(method), "the model " + a.name,
              "a decoder-only model with rotary or learned positions");
}

void check_windows(std::string_view method, const Architecture& a, double keep) {
  if (keep == 1) return;
  for (const LayerShape& layer : a.decoder.layers) {
    if (layer.sliding_window == 0 && layer.attention_chunk == 0) continue;
    throw Error("method " + std::string(method), "the model " + a.name + " with sliding windows",
                "a model whose layers attend to all tokens: windows over pruned ones are not "
                "defined");
  }
}

}  // namespace kvcast
