#include "model/io/audio/resample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include <doctest/doctest.h>

#include "tests/near.h"

using kvcast::audio::resample;

namespace {

constexpr std::size_t any = 1u << 30;

std::vector<float> tone(double hz, std::uint32_t rate, std::size_t samples) {
  std::vector<float> sound;
  for (std::size_t i = 0; i < samples; ++i) {
    const double turn = hz * static_cast<double>(i) / rate;
    sound.push_back(static_cast<float>(std::sin(2 * std::numbers::pi * turn)));
  }
  return sound;
}

}  // namespace

TEST_CASE("resample: equal rates copy") {
  const std::vector<float> sound{0.25F, -1, 0.5F};
  CHECK(resample(sound, 16000, 16000, any) == sound);
  CHECK(resample(sound, 16000, 16000, 2) == std::vector<float>{0.25F, -1});
}

TEST_CASE("resample: there is a sample for each tick before the sound's end, up to the limit") {
  const std::vector<float> sound(441, 0.1F);
  CHECK(resample(sound, 44100, 16000, any).size() == 160);
  CHECK(resample(std::vector<float>(442), 44100, 16000, any).size() == 161);  // 160.4
  CHECK(resample(sound, 44100, 16000, 7).size() == 7);
  CHECK(resample(sound, 8000, 16000, any).size() == 882);
  CHECK(resample({}, 8000, 16000, any).empty());
}

TEST_CASE("resample: a tone that both rates hold is the same tone afterwards") {
  struct Rates {
    std::uint32_t from;
    std::uint32_t to;
    double hz;  // up to 0.83 of the lower rate's half
  };
  for (const Rates r : std::array{Rates{44100, 16000, 440}, Rates{48000, 16000, 6600},
                                  Rates{8000, 16000, 3300}, Rates{11025, 16000, 1000},
                                  Rates{15999, 16000, 5000}, Rates{192000, 16000, 3000}}) {
    CAPTURE(r.from);
    const std::vector<float> out = resample(tone(r.hz, r.from, r.from / 2), r.from, r.to, any);
    const std::vector<float> direct = tone(r.hz, r.to, out.size());
    REQUIRE(out.size() == r.to / 2);
    double largest = 0;  // away from the ends, where silence begins
    for (std::size_t i = 200; i + 200 < out.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(out[i] - direct[i])));
    }
    CHECK(largest < 1e-3);
  }
}

TEST_CASE("resample: a tone above what the new rate holds is gone") {
  for (const double hz : {8000., 8100., 11000., 20000.}) {
    CAPTURE(hz);
    const std::vector<float> out = resample(tone(hz, 44100, 22050), 44100, 16000, any);
    double largest = 0;
    for (std::size_t i = 200; i + 200 < out.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(out[i])));
    }
    CHECK(largest < 3.2e-4);  // 70 dB
  }
}

TEST_CASE("resample: a constant stays the same constant") {
  const std::vector<float> out = resample(std::vector<float>(4410, 0.75F), 44100, 16000, any);
  for (std::size_t i = 200; i + 200 < out.size(); ++i)
    CHECK(out[i] == kvcast::near(0.75).epsilon(1e-4));
}
