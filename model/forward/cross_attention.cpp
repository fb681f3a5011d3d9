#include "model/forward/cross_attention.h"

#include "model/forward/attention_site.h"

namespace kvcast {

Value CrossSite::project(std::string_view part, Value x, const Count& features, bool bias) const {
  const std::string label = "cross_" + std::string(part);
  return kvcast::project(r, label, name + "." + label, x, features, bias);
}

Value CrossSite::cache(const std::string& cache_name, const Count& features, std::string_view label,
                       const std::function<Value(Value states)>& rows) const {
  if (!states) return r.cache(cache_name, {batch, length, features});
  const Value filled = rows(*states);
  const Value empty = r.cache(cache_name, {batch, 0, features});
  const Value all = r.append(empty, filled, label);
  r.output(all);
  return all;
}

Recorder::Attention CrossSite::attention() const {
  Recorder::Attention a = attention_of(architecture.decoder, layer().heads);
  a.mask.causal = false;
  return a;
}

CrossMethod plain_cross_attention() {
  CrossMethod m;
  m.cache = [](const CrossSite& s, const std::vector<CrossCache>&) {
    const auto kept = [&](const std::string& part, bool bias) {
      const std::uint64_t features = kv_features(s.layer().heads);
      return s.cache(s.name + ".cross_" + part + "s", features, "cache_cross_" + part,
                     [&](Value states) { return s.project(part, states, features, bias); });
    };
    const Value keys = kept("key", s.architecture.decoder.key_bias);
    return CrossCache{keys, kept("value", s.architecture.decoder.value_bias)};
  };
  m.attend = [](const CrossSite& s, Value x, const CrossCache& cache) {
    const Value q =
        s.project("query", x, query_features(s.layer().heads), s.architecture.decoder.query_bias);
    return s.r.attention(s.attention(), q, cache.keys, cache.values);
  };
  return m;
}

}  // namespace kvcast
