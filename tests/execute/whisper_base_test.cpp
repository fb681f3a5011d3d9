#include <doctest/doctest.h>

#include "model/io/audio/log_mel.h"
#include "tests/execute/oracle.h"

namespace kvcast::execute {
namespace {

TEST_CASE("Whisper base: a recording's tokens and logits are those of transformers") {
  const auto folder = std::filesystem::path(KVCAST_SOURCE_DIR) / "weights" / "whisper-base";
  if (!std::filesystem::exists(folder)) {
    MESSAGE("skipped: " << folder.string() << " is not there; ./run weights fetches it");
    return;
  }
  const auto data = oracle_folder() / "whisper_base";
  const nlohmann::json expected = read_json_file(data / "expected_text.json");
  const Checkpoint checkpoint(folder);
  const Architecture& a = checkpoint.architecture();

  Request request;
  request.tokens = {expected.at("start").get<std::vector<TokenId>>()};
  const auto mel = audio::log_mel(audio::read_wav_file(data / "speech.wav"), a.num_mel_bins);
  request.features = audio::by_frame(mel, a.num_mel_bins);
  const auto greedy = expected.at("greedy").get<std::vector<TokenId>>();
  request.output_len = greedy.size();
  SessionOptions o;
  o.decoder_tokens = request.tokens[0].size();
  const Session session(checkpoint, o);
  const Generation g = session.run(request);
  CHECK(g.tokens[0] == greedy);

  // The features differ by up to 6e-5 between transformers' own two ways to compute them.
  const auto top = expected.at("top_tokens").get<std::vector<std::size_t>>();
  const auto logits = expected.at("top_logits").get<std::vector<double>>();
  const double range = expected.at("logits_range").get<double>();
  for (std::size_t i = 0; i < top.size(); ++i) {
    CHECK(std::abs(g.logits[top[i]] - logits[i]) < 1e-4 * range);
  }
}

}  // namespace
}  // namespace kvcast::execute
