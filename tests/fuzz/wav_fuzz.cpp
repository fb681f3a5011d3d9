// Any bytes are a WAV file or an Error, and any recording has features.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/base/error.h"
#include "model/io/audio/log_mel.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const auto recording = kvcast::audio::parse_wav(bytes, "input.wav");
    if (recording.samples.empty() || recording.samples.size() > size) std::abort();
    for (const float x : kvcast::audio::log_mel(recording, 3, 2)) {
      if (!std::isfinite(x)) std::abort();
    }
  } catch (const kvcast::Error&) {
  }
  return 0;
}
