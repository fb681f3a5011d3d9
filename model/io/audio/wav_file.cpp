#include "model/io/audio/wav_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "model/base/error.h"
#include "model/base/read_file.h"

namespace kvcast::audio {
namespace {

constexpr std::uint64_t max_file_bytes = 256u << 20;
constexpr std::uint32_t unknown_length = 0xffffffff;
/// Far above any recording, and far below where sums of squares overflow.
constexpr double largest_sample = 1e6;
constexpr std::uint16_t tag_pcm = 1;
constexpr std::uint16_t tag_float = 3;
constexpr std::uint16_t tag_extensible = 0xfffe;

// libsndfile 1.2 was tried: it takes frames whose length contradicts channels and bits, PCM of 12
// bits and files cut short without a word, and the code around it was as long as this file.

/// The GUID of an extensible format after its first two bytes, which are the tag.
constexpr std::string_view guid_tail("\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71",
                                     14);

/// The little-endian number in 1 to 4 bytes.
std::uint32_t number(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

std::uint16_t number16(std::string_view bytes, std::size_t offset) {
  return static_cast<std::uint16_t>(number(bytes.substr(offset, 2)));
}

struct Format {
  std::uint16_t tag = 0;
  std::uint16_t channels = 0;
  std::uint32_t sample_rate = 0;
  std::uint16_t bits = 0;
  std::size_t sample_bytes() const { return bits / 8u; }
  std::size_t frame_bytes() const { return channels * sample_bytes(); }
};

Format parse_format(std::string_view chunk, const std::string& place) {
  const std::string where = place + ": chunk 'fmt '";
  if (chunk.size() < 16) {
    throw Error(where, std::to_string(chunk.size()) + " bytes", "at least 16");
  }
  Format f{number16(chunk, 0), number16(chunk, 2), number(chunk.substr(4, 4)), number16(chunk, 14)};
  if (f.tag == tag_extensible) {
    if (chunk.size() < 40) {
      throw Error(where, "WAVE_FORMAT_EXTENSIBLE in " + std::to_string(chunk.size()) + " bytes",
                  "at least 40");
    }
    if (chunk.substr(26, 14) != guid_tail) {
      throw Error(where, "an extensible format of another GUID", "that of PCM or float");
    }
    f.tag = number16(chunk, 24);
  }
  const bool known = (f.tag == tag_pcm && f.bits % 8 == 0 && f.bits >= 8 && f.bits <= 32) ||
                     (f.tag == tag_float && f.bits == 32);
  if (!known) {
    throw Error(where,
                "format " + std::to_string(f.tag) + " with " + std::to_string(f.bits) + " bits",
                "format 1 (PCM) with 8, 16, 24 or 32 bits, or 3 (float) with 32");
  }
  if (f.channels == 0) throw Error(where, "no channels", "at least one");
  if (f.sample_rate < 1000 || f.sample_rate > 768000) {
    throw Error(where, std::to_string(f.sample_rate) + " Hz", "1000 to 768000 Hz");
  }
  const std::uint16_t block_align = number16(chunk, 12);
  if (block_align != f.frame_bytes()) {
    throw Error(where, "frames of " + std::to_string(block_align) + " bytes",
                std::to_string(f.frame_bytes()) + ", as channels and bits say");
  }
  return f;
}

/// One sample, full scale 1.
float decode(const Format& f, std::string_view bytes) {
  const std::uint32_t value = number(bytes);
  if (f.tag == tag_float) return std::bit_cast<float>(value);
  if (f.bits == 8) return (static_cast<float>(value) - 128) / 128;  // the one unsigned width
  // The sign bit to the top: every width becomes a share of 2^31.
  const auto whole = static_cast<std::int32_t>(value << (32 - f.bits));
  return static_cast<float>(whole) / 2147483648.0F;
}

Recording mix(const Format& f, std::string_view data, const std::string& place) {
  Recording recording;
  recording.sample_rate = f.sample_rate;
  recording.samples.reserve(data.size() / f.frame_bytes());
  for (std::size_t at = 0; at < data.size(); at += f.frame_bytes()) {
    double sum = 0;
    for (std::size_t channel = 0; channel < f.channels; ++channel) {
      sum += decode(f, data.substr(at + channel * f.sample_bytes(), f.sample_bytes()));
    }
    const double mean = sum / f.channels;
    if (!(std::abs(mean) <= largest_sample)) {  // false for NaN too
      throw Error(place + ": chunk 'data'",
                  std::to_string(mean) + " in frame " + std::to_string(at / f.frame_bytes()),
                  "samples of at most 1e6, where 1 is full scale");
    }
    recording.samples.push_back(static_cast<float>(mean));
  }
  return recording;
}

}  // namespace

Recording parse_wav(std::string_view bytes, const std::string& place) {
  if (bytes.size() < 12 || bytes.substr(0, 4) != "RIFF" || bytes.substr(8, 4) != "WAVE") {
    throw Error(place, "a file that does not begin with RIFF and WAVE", "a WAV file");
  }
  std::optional<Format> format;
  std::size_t at = 12;  // the length that RIFF claims is not needed: the chunks end with the file
  while (bytes.size() - at >= 8) {
    const std::string_view id = bytes.substr(at, 4);
    const std::uint32_t length = number(bytes.substr(at + 4, 4));
    at += 8;
    const std::size_t left = bytes.size() - at;
    const bool to_the_end = id == "data" && length == unknown_length;
    if (length > left && !to_the_end) {
      throw Error(place + ": chunk '" + std::string(id) + "'",
                  std::to_string(length) + " bytes where " + std::to_string(left) + " are left",
                  "a chunk that ends with the file or before");
    }
    std::string_view chunk = bytes.substr(at, to_the_end ? left : length);
    if (id == "fmt ") {
      if (format) throw Error(place + ": chunk 'fmt '", "a second one", "one");
      format = parse_format(chunk, place);
    } else if (id == "data") {
      if (!format) throw Error(place, "chunk 'data' first", "chunk 'fmt ' before it");
      const std::size_t partial = chunk.size() % format->frame_bytes();
      if (to_the_end) chunk.remove_suffix(partial);
      if (chunk.empty() || chunk.size() % format->frame_bytes() != 0) {
        throw Error(
            place + ": chunk 'data'", std::to_string(chunk.size()) + " bytes",
            "whole frames of " + std::to_string(format->frame_bytes()) + " bytes, one or more");
      }
      return mix(*format, chunk, place);
    }
    // Chunks begin at even offsets.
    at += std::min<std::size_t>(left, std::size_t{length} + length % 2);
  }
  throw Error(place, "no chunk 'data'", "the chunks 'fmt ' and 'data'");
}

Recording read_wav_file(const std::filesystem::path& path) {
  return parse_wav(read_file(path, "a WAV file", max_file_bytes), path.string());
}

}  // namespace kvcast::audio
