#include "model/io/audio/log_mel.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <string>

#include <Eigen/Core>
#include <unsupported/Eigen/FFT>

#include "model/base/error.h"
#include "model/io/audio/resample.h"

namespace kvcast::audio {
namespace {

constexpr std::size_t window_length = 400;  // 25 ms
constexpr std::size_t frequencies = window_length / 2 + 1;
constexpr double highest_hz = 8000;

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Slaney's scale: linear up to 1000 Hz, which is 15 mel, then 27 mel for each factor of 6.4.
constexpr double linear_hz_per_mel = 200.0 / 3;
constexpr double break_hz = 1000;
constexpr double break_mel = break_hz / linear_hz_per_mel;
const double log_step = std::log(6.4) / 27;

double mel_of(double hz) {
  return hz < break_hz ? hz / linear_hz_per_mel : break_mel + std::log(hz / break_hz) / log_step;
}

double hz_of(double mel) {
  return mel < break_mel ? mel * linear_hz_per_mel
                         : break_hz * std::exp(log_step * (mel - break_mel));
}

Eigen::Index index(std::size_t i) { return static_cast<Eigen::Index>(i); }

/// Sample `i` of the padded sound, from -200 on, mirrored about its first and its last sample.
double mirrored(const std::vector<float>& padded, std::ptrdiff_t i) {
  const auto last = static_cast<std::ptrdiff_t>(padded.size()) - 1;
  if (i < 0) i = -i;
  if (i > last) i = 2 * last - i;
  return padded[static_cast<std::size_t>(i)];
}

/// Powers [frequencies, frames] of the windowed frames.
Matrix power_spectrum(const std::vector<float>& padded, std::size_t frames) {
  std::vector<double> window;  // periodic: the next window begins where this one ends
  for (std::size_t i = 0; i < window_length; ++i) {
    const double turn = static_cast<double>(i) / window_length;
    window.push_back(0.5 - 0.5 * std::cos(2 * std::numbers::pi * turn));
  }
  Eigen::FFT<double> transform;
  transform.SetFlag(Eigen::FFT<double>::HalfSpectrum);
  std::vector<double> frame(window_length);
  std::vector<std::complex<double>> spectrum;
  Matrix powers(index(frequencies), index(frames));
  for (std::size_t f = 0; f < frames; ++f) {
    const auto first = static_cast<std::ptrdiff_t>(f * whisper_hop) -
                       static_cast<std::ptrdiff_t>(window_length / 2);
    for (std::size_t i = 0; i < window_length; ++i) {
      frame[i] = window[i] * mirrored(padded, first + static_cast<std::ptrdiff_t>(i));
    }
    transform.fwd(spectrum, frame);
    for (std::size_t k = 0; k < frequencies; ++k) {
      powers(index(k), index(f)) = std::norm(spectrum[k]);
    }
  }
  return powers;
}

}  // namespace

std::vector<double> mel_filters(std::size_t mel_bins) {
  if (mel_bins < 1 || mel_bins > 512) {
    throw Error("mel bins", std::to_string(mel_bins), "1 to 512");
  }
  const auto edge = [&](std::size_t i) {
    return hz_of(mel_of(highest_hz) * static_cast<double>(i) / static_cast<double>(mel_bins + 1));
  };
  std::vector<double> filters;
  for (std::size_t bin = 0; bin < mel_bins; ++bin) {
    const double low = edge(bin);
    const double centre = edge(bin + 1);
    const double high = edge(bin + 2);
    for (std::size_t k = 0; k < frequencies; ++k) {
      const double hz = highest_hz * static_cast<double>(k) / (frequencies - 1);
      const double triangle = std::min((hz - low) / (centre - low), (high - hz) / (high - centre));
      filters.push_back(std::max(0.0, triangle) * 2 / (high - low));
    }
  }
  return filters;
}

std::vector<float> log_mel(std::span<const float> samples, std::size_t mel_bins,
                           std::size_t frames) {
  if (frames < 2 || frames > 30000) {
    throw Error("audio frames", std::to_string(frames), "2 to 30000");
  }
  const std::vector<double> filters = mel_filters(mel_bins);
  samples = samples.first(std::min(samples.size(), frames * whisper_hop));
  std::vector<float> padded(samples.begin(), samples.end());
  padded.resize(frames * whisper_hop);

  const Eigen::Map<const Matrix> weights(filters.data(), index(mel_bins), index(frequencies));
  const Matrix mel = weights * power_spectrum(padded, frames);
  const Matrix logarithms = mel.array().max(1e-10).log10();
  const double floor = logarithms.maxCoeff() - 8;
  std::vector<float> features(mel_bins * frames);
  for (std::size_t i = 0; i < features.size(); ++i) {
    features[i] = static_cast<float>(std::max(logarithms.data()[i], floor) / 4 + 1);
  }
  return features;
}

std::vector<float> log_mel(const Recording& recording, std::size_t mel_bins, std::size_t frames) {
  if (frames > 30000) throw Error("audio frames", std::to_string(frames), "2 to 30000");
  const std::vector<float> samples =
      resample(recording.samples, recording.sample_rate, whisper_sample_rate, frames * whisper_hop);
  return log_mel(samples, mel_bins, frames);
}

std::vector<float> by_frame(std::span<const float> mel, std::size_t mel_bins) {
  const std::size_t frames = mel.size() / mel_bins;
  std::vector<float> turned(mel.size());
  for (std::size_t f = 0; f < frames; ++f) {
    for (std::size_t b = 0; b < mel_bins; ++b) turned[f * mel_bins + b] = mel[b * frames + f];
  }
  return turned;
}

}  // namespace kvcast::audio
