/// Reads a WAV file into one channel of samples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvcast::audio {

/// One channel of sound.
struct Recording {
  std::vector<float> samples;     ///< -1..1, or what a float file holds; at least one
  std::uint32_t sample_rate = 0;  ///< Hz, 1000..768000
};

/// PCM of 8, 16, 24 or 32 bits and float of 32, plain or WAVE_FORMAT_EXTENSIBLE; of several
/// channels the mean. A data chunk of 2^32 - 1 bytes, as programs write that cannot seek, goes to
/// the end of the file. Source   Microsoft and IBM, Multimedia Programming Interface and Data
/// Specifications 1.0, 1991;
///          Microsoft, Multiple Channel Audio Data and WAVE Files, 2001
/// Throws   Error for another kind of file or encoding, a chunk that is longer than what is left of
///          the file, samples that are no numbers or above 1e6, or a file of more than 256 MiB
Recording read_wav_file(const std::filesystem::path& path);

/// The same from the bytes of a file; `place` names it in errors.
Recording parse_wav(std::string_view bytes, const std::string& place);

}  // namespace kvcast::audio
