/// Changes the sample rate of a sound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcast::audio {

/// Band-limited interpolation: y[n] = sum over k of x[k]·h(n·from/to - k), silence around x, with
///   h(t) = c·sinc(c·t)·blackman(c·t/32),  c = 0.92·min(1, to/from),  |c·t| < 32.
/// What a rate of `to` cannot hold is filtered out: it is 70 dB down from to/2 on, and frequencies
/// up to 0.85 of the lower rate's half pass unchanged. Shapes   samples [n] -> [ceil(n·to/from)],
/// or the first `max_samples` of it; equal rates copy Source   J. O. Smith, Digital Audio
/// Resampling Home Page, CCRMA, Stanford 2002
std::vector<float> resample(std::span<const float> samples, std::uint32_t from, std::uint32_t to,
                            std::size_t max_samples);

}  // namespace kvcast::audio
