/// Whisper's input: the log-mel spectrogram of a sound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/io/audio/wav_file.h"

namespace kvcast::audio {

constexpr std::uint32_t whisper_sample_rate = 16000;  // Hz
constexpr std::size_t whisper_hop = 160;              // samples from frame to frame: 10 ms
constexpr std::size_t whisper_frames = 3000;          // 30 s

/// Triangular filters of equal width on Slaney's mel scale from 0 to 8000 Hz, each of area 1.
/// Shape    [mel_bins, 201], for the 201 frequencies of a 400-sample transform at 16 kHz
/// Source   M. Slaney, Auditory Toolbox version 2, 1998; librosa, filters.mel
/// Throws   Error unless mel_bins is 1 to 512
std::vector<double> mel_filters(std::size_t mel_bins);

/// The features Whisper's encoder reads. Per frame: 400 samples about it (the sound's ends
/// mirrored) under a Hann window, the power of their Fourier transform, mel_filters; then
/// max(log10(max(1e-10, x)), largest - 8) / 4 + 1, `largest` being that of the whole sound.
/// Shapes   samples [n] at 16 kHz, finite, followed by silence or cut to frames·160 -> [mel_bins,
///          frames], row by row; models use 80 bins (128 in large-v3) and 3000 frames
/// Source   openai/whisper, whisper/audio.py; transformers, feature_extraction_whisper.py
/// Throws   Error unless mel_bins is 1 to 512 and frames 2 to 30000
std::vector<float> log_mel(std::span<const float> samples, std::size_t mel_bins,
                           std::size_t frames = whisper_frames);

/// The same of a recording of any sample rate, resampled where it is not 16 kHz.
std::vector<float> log_mel(const Recording& recording, std::size_t mel_bins,
                           std::size_t frames = whisper_frames);

/// [mel_bins, frames] as log_mel gives it -> [frames, mel_bins] as the encoder's graph takes it.
std::vector<float> by_frame(std::span<const float> mel, std::size_t mel_bins);

}  // namespace kvcast::audio
