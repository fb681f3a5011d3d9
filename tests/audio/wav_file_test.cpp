#include "model/io/audio/wav_file.h"

#include <array>
#include <bit>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/model/message_of.h"

using namespace kvcast;
using namespace kvcast::audio;
namespace fs = std::filesystem;

namespace {

std::string little_endian(std::uint64_t value, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

std::string chunk(const std::string& id, const std::string& content) {
  return id + little_endian(content.size(), 4) + content + std::string(content.size() % 2, '\0');
}

struct Spec {
  unsigned tag = 1;
  unsigned channels = 1;
  unsigned rate = 16000;
  unsigned bits = 16;
};

std::string format_chunk(const Spec& s) {
  const unsigned frame = s.channels * (s.bits / 8);
  return chunk("fmt ", little_endian(s.tag, 2) + little_endian(s.channels, 2) +
                           little_endian(s.rate, 4) + little_endian(s.rate * frame, 4) +
                           little_endian(frame, 2) + little_endian(s.bits, 2));
}

std::string extensible_chunk(const Spec& s, unsigned container_bits, std::string guid_tail) {
  const unsigned frame = s.channels * (container_bits / 8);
  return chunk("fmt ", little_endian(0xfffe, 2) + little_endian(s.channels, 2) +
                           little_endian(s.rate, 4) + little_endian(s.rate * frame, 4) +
                           little_endian(frame, 2) + little_endian(container_bits, 2) +
                           little_endian(22, 2) + little_endian(s.bits, 2) + little_endian(3, 4) +
                           little_endian(s.tag, 2) + std::move(guid_tail));
}

const std::string known_guid("\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71", 14);

std::string riff(const std::string& chunks) {
  return "RIFF" + little_endian(4 + chunks.size(), 4) + "WAVE" + chunks;
}

/// The samples of a file of these.
std::vector<float> samples_of(const Spec& s, const std::string& data) {
  return parse_wav(riff(format_chunk(s) + chunk("data", data)), "a.wav").samples;
}

std::string refusal(const std::string& bytes) {
  return message_of([&] { parse_wav(bytes, "a.wav"); });
}

}  // namespace

TEST_CASE("wav_file: each width is scaled so that its most negative value is -1") {
  using Samples = std::vector<float>;
  // 8 bits: 0 is -1, 128 is silence. The others are two's complement.
  CHECK(samples_of({.bits = 8}, std::string("\x00\x80\xc0\xff", 4)) ==
        Samples{-1, 0, 0.5F, 127.0F / 128});
  CHECK(samples_of({.bits = 16}, std::string("\x00\x80\x00\x00\x00\x40\xff\xff", 8)) ==
        Samples{-1, 0, 0.5F, -1.0F / 32768});
  CHECK(samples_of({.bits = 24}, std::string("\x00\x00\x80\x00\x00\x20\xff\xff\xff", 9)) ==
        Samples{-1, 0.25F, -1.0F / 8388608});
  CHECK(samples_of({.bits = 32}, std::string("\x00\x00\x00\x80\x00\x00\x00\x60", 8)) ==
        Samples{-1, 0.75F});
  const auto half = std::bit_cast<std::uint32_t>(-0.125F);
  const auto loud = std::bit_cast<std::uint32_t>(1.5F);
  CHECK(samples_of({.tag = 3, .bits = 32}, little_endian(half, 4) + little_endian(loud, 4)) ==
        Samples{-0.125F, 1.5F});
}

TEST_CASE("wav_file: channels are averaged frame by frame") {
  // 3 channels of 8 bits: (1/2 + 1/4 + 0)/3 and (-1 + 0 - 1/2)/3
  const std::string data("\xc0\xa0\x80\x00\x80\x40", 6);
  const std::vector<float> samples = samples_of({.channels = 3, .bits = 8}, data);
  CHECK(samples == std::vector<float>{0.25F, -0.5F});
}

TEST_CASE("wav_file: the rate is the file's, and chunks it does not know are passed over") {
  // LIST has 3 bytes and one of padding.
  const std::string file =
      riff(chunk("LIST", "abc") + format_chunk({.rate = 44100}) + chunk("fact", "1234") +
           chunk("data", std::string("\0\x40", 2)) + chunk("LIST", "after"));
  const Recording recording = parse_wav(file, "a.wav");
  CHECK(recording.sample_rate == 44100);
  CHECK(recording.samples == std::vector<float>{0.5F});
}

TEST_CASE("wav_file: an extensible format is what its GUID says") {
  const std::string data = chunk("data", std::string("\x00\x00\x00\x40", 4));
  // 24 valid bits lie at the top of 32.
  const std::string pcm = extensible_chunk({.bits = 24}, 32, known_guid);
  CHECK(parse_wav(riff(pcm + data), "a.wav").samples == std::vector<float>{0.5F});
  const std::string real = extensible_chunk({.tag = 3, .bits = 32}, 32, known_guid);
  CHECK(parse_wav(riff(real + data), "a.wav").samples == std::vector<float>{2});
  std::string other = known_guid;
  other.back() = 'x';
  CHECK(refusal(riff(extensible_chunk({}, 16, other) + data)).find("GUID") != std::string::npos);
}

TEST_CASE("wav_file: data of unknown length goes to the end of the file, in whole frames") {
  const std::string open_end = format_chunk({}) + "data" + little_endian(0xffffffff, 4);
  const std::string file = riff(open_end + std::string("\x00\x40\x00\xc0\x01", 5));
  CHECK(parse_wav(file, "a.wav").samples == std::vector<float>{0.5F, -0.5F});
}

TEST_CASE("wav_file: every file cut short is refused by name, and none crashes") {
  const std::string file =
      riff(format_chunk({.channels = 2}) + chunk("data", std::string(8, '\1')));
  CHECK(parse_wav(file, "a.wav").samples.size() == 2);
  for (std::size_t length = 0; length < file.size(); ++length) {
    CAPTURE(length);
    CHECK(refusal(file.substr(0, length)).starts_with("a.wav: "));
  }
}

TEST_CASE("wav_file: what is not a WAV file of these encodings is refused with what was found") {
  struct Bad {
    std::string bytes;
    const char* words;
  };
  const std::string data = chunk("data", std::string(24, '\0'));
  const auto with = [&](const Spec& s) { return riff(format_chunk(s) + data); };
  const std::string good_format = format_chunk({});
  std::string misaligned = format_chunk({});
  misaligned[8 + 12] = 3;
  const auto nan = std::bit_cast<std::uint32_t>(std::numeric_limits<float>::quiet_NaN());
  const auto huge = std::bit_cast<std::uint32_t>(1e30F);
  const std::string real = format_chunk({.tag = 3, .bits = 32});
  const std::array files{
      Bad{"", "expected a WAV file"},
      Bad{"RIFX" + with({}).substr(4), "expected a WAV file"},
      Bad{riff(""), "no chunk 'data'"},
      Bad{riff(good_format), "no chunk 'data'"},
      Bad{riff(data), "chunk 'data' first"},
      Bad{riff(good_format + good_format + data), "a second one"},
      Bad{riff(chunk("fmt ", "short") + data), "5 bytes, expected at least 16"},
      Bad{riff(good_format + "data" + little_endian(25, 4) + std::string(24, '\0')),
          "25 bytes where 24 are left"},
      Bad{riff(good_format + chunk("data", "")), "0 bytes, expected whole frames of 2"},
      Bad{riff(good_format + chunk("data", "123")), "3 bytes, expected whole frames of 2"},
      Bad{riff(misaligned + data), "frames of 3 bytes, expected 2"},
      Bad{with({.tag = 6, .bits = 8}), "format 6 with 8 bits"},  // A-law
      Bad{with({.tag = 3, .bits = 64}), "format 3 with 64 bits"},
      Bad{with({.bits = 12}), "format 1 with 12 bits"},
      Bad{with({.bits = 0}), "format 1 with 0 bits"},
      Bad{with({.channels = 0}), "no channels"},
      Bad{with({.rate = 0}), "got 0 Hz"},
      Bad{with({.rate = 4000000000}), "got 4000000000 Hz"},
      Bad{riff(real + chunk("data", little_endian(nan, 4))), "in frame 0, expected samples"},
      Bad{riff(real + chunk("data", little_endian(0, 4) + little_endian(huge, 4))), "in frame 1"},
  };
  for (const Bad& file : files) {
    const std::string line = refusal(file.bytes);
    CAPTURE(line);
    CAPTURE(file.words);
    CHECK(line.starts_with("a.wav"));
    CHECK(line.find(file.words) != std::string::npos);
  }
}

TEST_CASE("wav_file: a missing file, a folder and a large file are refused by name") {
  CHECK(message_of([] { read_wav_file("/nonexistent/a.wav"); }) ==
        "/nonexistent/a.wav: cannot be opened; expected a WAV file");
  const std::string folder = fs::temp_directory_path().string();
  CHECK(message_of([&] { read_wav_file(folder); }) ==
        folder + ": got a folder, expected a WAV file");
  const fs::path large = fs::temp_directory_path() / "kvcast-wav-file-test-large";
  std::ofstream(large, std::ios::binary) << "RIFF";
  fs::resize_file(large, (256u << 20) + 1);
  CHECK(message_of([&] {
          read_wav_file(large);
        }).ends_with("got more than 256 MiB, expected a WAV file of at most 256 MiB"));
  fs::remove(large);
}

TEST_CASE("wav_file: a file on disk is read whole") {
  const Recording chirp = read_wav_file(KVCAST_SOURCE_DIR "/tests/audio/chirp.wav");
  CHECK(chirp.sample_rate == 16000);
  CHECK(chirp.samples.size() == 8000 - 37);
}
