#include <array>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "model/convert/slim_check.h"
#include "model/convert/slim_conversion.h"
#include "model/io/audio/log_mel.h"
#include "tests/execute/oracle.h"
#include "tests/test_folder.h"

namespace kvcast {
namespace {

using execute::Session;
using execute::SessionOptions;

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
  const TestFolder workplace;
  const SlimReport report = convert_to_slim(checkpoint, workplace / "slim", conversion);

  const auto counts = [&](CacheForm kind) {
    const auto under = [&](DType storage) {
      return layers_under(report, SlimSite::Cross, kind, storage, 0.05);
    };
    return std::array{under(DType::FP32), under(DType::FP16), under(DType::BF16)};
  };
  CHECK(counts(CacheForm::Keys) == std::array<std::size_t, 3>{6, 0, 0});
  CHECK(counts(CacheForm::Values) == std::array<std::size_t, 3>{6, 6, 1});
  CHECK(counts(CacheForm::Inputs) == std::array<std::size_t, 3>{6, 6, 6});

  const auto text = expected.at("greedy").get<std::vector<execute::TokenId>>();
  execute::Request to_the_end = request;
  to_the_end.stop_tokens = {text.back()};
  // The automatic choice, from weights in each storage: relative error of all logits under 1 %.
  for (const DType dtype : {DType::FP32, DType::FP16, DType::BF16}) {
    CAPTURE(name(dtype));
    const std::filesystem::path out = workplace.path() / name(dtype);
    conversion.dtype = dtype;
    if (dtype == DType::FP32) {
      std::filesystem::rename(workplace / "slim", out);
    } else {
      convert_to_slim(checkpoint, out, conversion);
    }
    const LogitComparison logits = compare_logits(checkpoint, Checkpoint(out), to_the_end);
    CHECK(logits.relative_error > 0);
    CHECK(logits.relative_error < 0.01);
    // The start, whose last position gives the first token, and the text to its end.
    CHECK(logits.positions == request.tokens[0].size() + text.size() - 1);
    CHECK(logits.same == logits.positions);
  }
  SessionOptions o;
  o.methods = parse_methods("slim");
  o.decoder_tokens = request.tokens[0].size();
  const Checkpoint slim(workplace / "fp32");
  const auto slim_bytes = Session(slim, o).run(request).kv_cache_bytes;
  o.methods = {};
  CHECK(slim_bytes * 2 == Session(checkpoint, o).run(request).kv_cache_bytes);
}

}  // namespace
}  // namespace kvcast
