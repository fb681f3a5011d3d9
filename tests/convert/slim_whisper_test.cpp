#include <algorithm>
#include <array>
#include <cmath>

#include <doctest/doctest.h>

#include "model/audio/log_mel.h"
#include "model/convert/slim_conversion.h"
#include "tests/execute/oracle.h"
#include "tests/reports/test_folder.h"

namespace kvcast {
namespace {

using execute::Generation;
using execute::Session;
using execute::SessionOptions;

/// Layers whose cross-attention stays under 5 % error, as the published study counts them.
std::size_t layers_under(const SlimReport& report, SlimKind kind, DType storage) {
  return static_cast<std::size_t>(
      std::count_if(report.layers.begin(), report.layers.end(), [&](const SlimLayerReport& l) {
        return l.site == SlimSite::Cross && l.errors.at(kind).at(storage) < 0.05;
      }));
}

// OpenMachine-ai/transformer-tricks, commit 379556c, counts for Whisper base on real encoder
// activations: keys kept 6, 0 and 0 of 6 layers in fp32, fp16 and bf16, values 6, 6 and 1, inputs
// 6, 6 and 6.
TEST_CASE("Whisper base: layers under 5 % error are those of the published study") {
  const auto folder = std::filesystem::path(KVCAST_SOURCE_DIR) / "weights" / "whisper-base";
  if (!std::filesystem::exists(folder)) {
    MESSAGE("skipped: " << folder.string() << " is not there; ./run weights fetches it");
    return;
  }
  const auto data = execute::oracle_folder() / "whisper_base";
  const nlohmann::json expected = read_json_file(data / "expected_text.json");
  const Checkpoint checkpoint(folder);
  const Architecture& a = checkpoint.architecture();

  SlimConversion conversion;
  execute::Request& request = conversion.calibration;
  request.tokens = {expected.at("start").get<std::vector<execute::TokenId>>()};
  const auto mel = audio::log_mel(audio::read_wav_file(data / "speech.wav"), a.num_mel_bins);
  request.features = audio::by_frame(mel, a.num_mel_bins);
  request.output_len = 16;
  const reports::TestFolder workplace;
  const SlimReport report = convert_to_slim(checkpoint, workplace / "slim", conversion);

  const auto counts = [&](SlimKind kind) {
    return std::array{layers_under(report, kind, DType::FP32),
                      layers_under(report, kind, DType::FP16),
                      layers_under(report, kind, DType::BF16)};
  };
  CHECK(counts(SlimKind::KeyCache) == std::array<std::size_t, 3>{6, 0, 0});
  CHECK(counts(SlimKind::ValueCache) == std::array<std::size_t, 3>{6, 6, 1});
  CHECK(counts(SlimKind::InputCache) == std::array<std::size_t, 3>{6, 6, 6});

  // The automatic choice: relative error of all logits under 1 %, the text the same.
  const auto run = [&](const Checkpoint& c, const char* method) {
    SessionOptions o;
    o.methods = parse_methods(method);
    o.decoder_tokens = request.tokens[0].size();
    o.logits = Logits::All;
    return Session(c, o).run(request);
  };
  const Generation vanilla = run(checkpoint, "plain");
  const Generation slim = run(Checkpoint(workplace / "slim"), "slim");
  CHECK(slim.tokens == vanilla.tokens);
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < vanilla.logits.size(); ++i) {
    difference += std::pow(slim.logits[i] - vanilla.logits[i], 2);
    norm += std::pow(vanilla.logits[i], 2);
  }
  CHECK(std::sqrt(difference / norm) < 0.01);
  CHECK(slim.kv_cache_bytes * 2 == vanilla.kv_cache_bytes);
}

}  // namespace
}  // namespace kvcast
