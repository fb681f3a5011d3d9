/// Changes the sample rate of a sound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcast::audio {

/// Band-limited interpolation by libsoxr at its high quality: frequencies up to 0.91 of the lower
/// rate's half pass unchanged, and what a rate of `to` cannot hold is filtered out, 120 dB down.
/// Shapes   samples [n] -> [ceil(n·to/from)], or the first `max_samples` of it; equal rates copy
/// Source   libsoxr 0.1.3, soxr.h
std::vector<float> resample(std::span<const float> samples, std::uint32_t from, std::uint32_t to,
                            std::size_t max_samples);

}  // namespace kvcast::audio
