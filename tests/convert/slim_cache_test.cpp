// What Slim attention keeps, to the byte.
#include <cstdint>
#include <string>

#include <doctest/doctest.h>

#include "tests/convert/slim_cases.h"

namespace kvcast::slim_cases {
namespace {

/// The sizes that the paper's cache formulas are made of.
struct Sizes {
  std::uint64_t batch;
  std::uint64_t slots;          ///< of the decoder: tokens that it was given or fed back
  std::uint64_t encoder_slots;  ///< 0: no encoder
  std::uint64_t layers;         ///< of the decoder
  std::uint64_t hidden;         ///< d
  std::uint64_t features;       ///< e, of all key heads
  std::uint64_t at(std::uint64_t per_slot, std::uint64_t per_encoder_slot) const {
    return batch * (slots * per_slot + encoder_slots * per_encoder_slot) * sizeof(double);
  }
};

/// A request of P tokens and N generated ones leaves P + N - 1 rows of each sequence behind: the
/// last token is not read back, so its row is never made. The estimate is for all P + N.
Sizes sizes_of(const Case& c, bool with_last_token) {
  const Architecture& a = c.checkpoint.architecture();
  const Request& r = c.request;
  const std::uint64_t encoder = !a.encoder_decoder   ? 0
                                : a.num_mel_bins > 0 ? a.max_source_positions
                                                     : r.encoder_tokens.front().size();
  return {r.tokens.size(), r.tokens.front().size() + r.output_len - (with_last_token ? 0 : 1),
          encoder,         a.decoder.layers.size(),
          a.hidden_size,   kv_features(a.decoder.layers.front().heads)};
}

/// `bytes` is the paper's formula: by hand, not the recorder's.
template <typename F>
void check_kept(const Case& c, const std::string& option, F bytes) {
  CAPTURE(c.name);
  CAPTURE(option);
  const std::uint64_t kept = bytes(sizes_of(c, false));
  const std::uint64_t estimated = bytes(sizes_of(c, true));
  for (const char* method : {"slim", "slim:order=unoptimized"}) {
    const bool plain = option == "plain";
    const Outcome o =
        plain ? run(c.checkpoint, c.request, {})
              : run(converted(c, option), c.request, slim_session(method, Kernels::Fused));
    CHECK(o.kept_bytes == kept);
    CHECK(o.estimated_kept_bytes == kept);
    CHECK(o.estimated_bytes == estimated);
    if (plain) break;
  }
}

void check_decoder_only(const Case& c, const std::vector<std::string>& halves) {
  const auto vanilla = [](const Sizes& s) { return s.at(2 * s.layers * s.features, 0); };
  check_kept(c, "plain", vanilla);
  for (const std::string& option : halves) {
    check_kept(c, option, [&](const Sizes& s) { return vanilla(s) / 2; });
  }
}

TEST_CASE("slim: keys alone, or values, are half of both to the byte, kept and estimated") {
  check_decoder_only(oracle_case("llama_mha"), {"kcache", "vcache"});
  check_decoder_only(oracle_case("gpt_neox"), {"kcache", "vcache"});
  check_decoder_only(oracle_case("opt"), {"kcache", "vcache"});
  check_decoder_only(oracle_case("olmo"), {"kcache"});
  const std::vector<Case> cases = random_cases();
  check_decoder_only(cases[1], {"kcache", "vcache"});  // e > d
  check_decoder_only(cases[2], {"kcache", "vcache"});  // normalised keys
}

TEST_CASE("slim: grouped heads keep d numbers a token and layer, to the byte") {
  const Case c = random_cases()[0];  // d/2 < e < d, appendix G
  // The first of its two layers has a window of 4 tokens, which is all that it keeps.
  check_kept(c, "kcache",
             [](const Sizes& s) { return s.batch * (s.slots + 4) * s.hidden * sizeof(double); });
}

TEST_CASE("slim: inputs are d numbers a token and layer, 1/(2r) of both, r = e/d, to the byte") {
  check_kept(oracle_case("opt"), "xcache",
             [](const Sizes& s) { return s.at(s.layers * s.hidden, 0); });
  for (const Case& c : {oracle_case("t5"), wide_t5_case()}) {
    const Architecture& a = c.checkpoint.architecture();
    CAPTURE(c.name);
    const std::uint64_t e = kv_features(a.decoder.layers.front().heads);
    REQUIRE(e > a.hidden_size);
    // The decoder's own in every layer; the encoder's output once, for all layers.
    check_kept(c, "xcache", [](const Sizes& s) { return s.at(s.layers * s.hidden, s.hidden); });
  }
  // d_kv = 16, 4 heads, d = 16: r = 4, and a layer keeps an eighth.
  const Case wide = wide_t5_case();
  const Recording plain = record(wide.checkpoint.architecture(), {}, {});
  const Recording slim =
      record(wide.checkpoint.architecture(), parse_methods("slim:option=xcache"), {});
  CHECK(8 * slim.kv_cache_bytes_per_token.at({}) == plain.kv_cache_bytes_per_token.at({}));
}

TEST_CASE("slim: encoder-decoder options keep the paper's caches, to the byte") {
  for (const char* name : {"whisper", "t5", "t5_gated"}) {
    const Case c = oracle_case(name);
    check_kept(c, "plain", [](const Sizes& s) {
      return s.at(2 * s.layers * s.features, 2 * s.layers * s.features);
    });
    for (const char* half : {"encdec1", "vcache"}) {
      check_kept(c, half,
                 [](const Sizes& s) { return s.at(s.layers * s.features, s.layers * s.features); });
    }
    // Option 2: nothing of a layer, and the encoder's output E once.
    check_kept(c, "encdec2", [](const Sizes& s) { return s.at(s.layers * s.features, s.hidden); });
    // Appendix H: the first layer's keys once.
    check_kept(c, "hybrid", [](const Sizes& s) { return s.at(s.layers * s.features, s.features); });
  }
}

}  // namespace
}  // namespace kvcast::slim_cases
