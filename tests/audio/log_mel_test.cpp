#include "model/io/audio/log_mel.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "tests/model/message_of.h"
#include "tests/near.h"

using namespace kvcast;
using namespace kvcast::audio;

namespace {

const std::string folder = KVCAST_SOURCE_DIR "/tests/audio/";

std::vector<float> tone(double hz, std::size_t samples) {
  std::vector<float> sound;
  for (std::size_t i = 0; i < samples; ++i) {
    const double turn = hz * static_cast<double>(i) / whisper_sample_rate;
    sound.push_back(static_cast<float>(0.5 * std::sin(2 * std::numbers::pi * turn)));
  }
  return sound;
}

std::size_t loudest_bin(const std::vector<float>& features, std::size_t frames, std::size_t frame) {
  std::size_t best = 0;
  for (std::size_t bin = 0; bin * frames < features.size(); ++bin) {
    if (features[bin * frames + frame] > features[best * frames + frame]) best = bin;
  }
  return best;
}

}  // namespace

TEST_CASE("log_mel: 80 and 128 bins are those of transformers' WhisperFeatureExtractor") {
  const nlohmann::json expected = read_json_file(folder + "log_mel.json");
  const Recording chirp = read_wav_file(folder + "chirp.wav");
  for (const std::size_t bins : {80u, 128u}) {
    const std::vector<float> features = log_mel(chirp, bins);
    REQUIRE(features.size() == bins * 3000);
    const nlohmann::json& columns = expected.at("bins_" + std::to_string(bins));
    double largest = 0;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const auto frame = expected.at("frames")[i].get<std::size_t>();
      REQUIRE(columns[i].size() == bins);
      for (std::size_t bin = 0; bin < bins; ++bin) {
        const double difference = features[bin * 3000 + frame] - columns[i][bin].get<double>();
        largest = std::max(largest, std::abs(difference));
      }
    }
    CHECK(columns.size() == 12);
    CHECK(largest < 2e-6);  // written to 6 decimals
  }
}

TEST_CASE("log_mel: filters rise from 0 Hz to 8000 Hz, and each has area 1") {
  // A triangle of base [low, high] and height 2/(high - low) has area 1. Sampled every 40 Hz the
  // sum is 1/40 only for a wide one; the highest of 80 is about 950 Hz wide.
  const std::vector<double> filters = mel_filters(80);
  REQUIRE(filters.size() == 80 * 201);
  double area = 0;
  for (std::size_t k = 0; k < 201; ++k) area += 40 * filters[79 * 201 + k];
  CHECK(area == near(1).epsilon(0.01));
  CHECK(filters[0] == 0);
  CHECK(std::abs(filters[80 * 201 - 1]) < 1e-9);
  // 15 + 27·ln(8)/ln(6.4) = 45.245 mel in 81 steps: filter 0 has its centre at 0.5586 mel, 37.24
  // Hz, and its edges at 0 and 74.48 Hz. 40 Hz lies (74.48 - 40)/37.24 up, of a height of 2/74.48.
  CHECK(filters[1] == near((74.48 - 40) / 37.24 * 2 / 74.48).epsilon(1e-3));
  CHECK(filters[2] == 0);
}

TEST_CASE("log_mel: a tone is loudest in the bin about its frequency, in every full frame") {
  // 1000 Hz is 15 mel; with 80 bins, centres are 45.245/81 mel apart: 15/0.5586 - 1 = 25.9.
  const std::vector<float> features = log_mel(tone(1000, 4800), 80, 60);
  REQUIRE(features.size() == 80 * 60);
  for (std::size_t frame = 2; frame < 28; ++frame) CHECK(loudest_bin(features, 60, frame) == 26);
}

TEST_CASE(
    "log_mel: silence is the floor everywhere, and a sound's floor is 8 decades below its top") {
  // log10(1e-10)/4 + 1
  for (const float x : log_mel(std::vector<float>(1000), 10, 20)) CHECK(x == -1.5F);
  for (const float x : log_mel(std::vector<float>{}, 10, 20)) CHECK(x == -1.5F);
  const std::vector<float> features = log_mel(tone(700, 1600), 10, 60);
  const float top = *std::max_element(features.begin(), features.end());
  const float bottom = *std::min_element(features.begin(), features.end());
  CHECK(top - bottom == near(2));
}

TEST_CASE("log_mel: what is after the last frame does not matter") {
  const std::vector<float> longer = tone(440, 20 * 160 + 777);
  const std::vector<float> cut(longer.begin(), longer.begin() + 20 * 160);
  CHECK(log_mel(longer, 12, 20) == log_mel(cut, 12, 20));
}

TEST_CASE("log_mel: a sound that fills the frames is mirrored about its last sample") {
  std::vector<float> sound;
  std::uint32_t state = 1;
  for (int i = 0; i < 20 * 160; ++i) {
    state = state * 1664525 + 1013904223;  // Knuth's generator
    sound.push_back(static_cast<float>(state >> 8) / 8388608.0F - 1);
  }
  std::vector<float> longer = sound;
  for (std::size_t i = 2; i <= 2 * 160; ++i) longer.push_back(sound[sound.size() - i]);
  const std::vector<float> features = log_mel(sound, 12, 20);
  const std::vector<float> of_longer = log_mel(longer, 12, 22);
  for (std::size_t bin = 0; bin < 12; ++bin) {
    CHECK(features[bin * 20 + 19] == near(of_longer[bin * 22 + 19]));
  }
}

TEST_CASE("log_mel: another sample rate is resampled first") {
  Recording fast{{}, 48000};
  for (int i = 0; i < 48000 / 2; ++i) {
    fast.samples.push_back(static_cast<float>(0.5 * std::sin(2 * std::numbers::pi * i / 48)));
  }
  const std::vector<float> resampled = log_mel(fast, 80, 60);
  const std::vector<float> direct = log_mel(tone(1000, 8000), 80, 60);
  // Frames 2..47 are full. Bins far from the tone hold the resampler's noise, 60 dB below.
  for (std::size_t frame = 2; frame < 48; ++frame) {
    CHECK(resampled[26 * 60 + frame] == near(direct[26 * 60 + frame]).epsilon(1e-4));
    CHECK(loudest_bin(resampled, 60, frame) == 26);
  }
}

TEST_CASE("log_mel: numbers of bins and frames out of range are refused") {
  const std::vector<float> sound(100);
  CHECK(message_of([&] { log_mel(sound, 0); }) == "mel bins: got 0, expected 1 to 512");
  CHECK(message_of([&] { log_mel(sound, 513); }) == "mel bins: got 513, expected 1 to 512");
  CHECK(message_of([&] { log_mel(sound, 80, 1); }) == "audio frames: got 1, expected 2 to 30000");
  const Recording recording{{0.5F}, 8000};
  CHECK(message_of([&] { log_mel(recording, 80, 1 << 20); }) ==
        "audio frames: got 1048576, expected 2 to 30000");
}
