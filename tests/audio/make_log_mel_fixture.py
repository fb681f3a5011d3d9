#!/usr/bin/env python3
"""Writes chirp.wav, half a second of sound, and log_mel.json, what transformers'
WhisperFeatureExtractor makes of it: some of the 3000 frames, with 80 and with 128 bins.

Written with transformers 5.23.0, numpy 2.4.6 and Python 3.11.
"""

import json
import pathlib
import wave

import numpy
from transformers import WhisperFeatureExtractor

HERE = pathlib.Path(__file__).resolve().parent
RATE = 16000
# The first, mirrored; full ones; those where the sound ends and the silence begins; the last.
FRAMES = [0, 1, 2, 13, 26, 38, 48, 49, 50, 51, 52, 2999]


def main():
    seconds = numpy.arange(RATE // 2 - 37) / RATE
    chirp = 0.5 * numpy.sin(2 * numpy.pi * (90 + 6500 * seconds) * seconds)
    noise = numpy.random.default_rng(5).normal(0, 0.02, seconds.size)
    sound = numpy.rint(32767 * numpy.clip(chirp * (1.1 - 2 * seconds) + noise, -1, 1))
    sound = sound.astype("<i2")
    with wave.open(str(HERE / "chirp.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(sound.tobytes())

    expected = {"frames": FRAMES}
    for bins in (80, 128):
        extractor = WhisperFeatureExtractor(feature_size=bins)
        samples = sound.astype(numpy.float32) / 32768
        # What calling the extractor gives is PyTorch's fp32; its numpy path is nearer to exact.
        called = extractor(samples, sampling_rate=RATE, return_tensors="np").input_features[0]
        padded = numpy.pad(samples, (0, 30 * RATE - samples.size))
        features = extractor._np_extract_fbank_features([padded], "cpu")[0]
        assert features.shape == (bins, 3000) and abs(features - called).max() < 1e-4
        columns = features[:, FRAMES].T.astype(float).round(6).tolist()
        expected[f"bins_{bins}"] = columns
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in expected.items()]
    (HERE / "log_mel.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
