#!/usr/bin/env python3
"""ggml_blocks.safetensors: numbers, and the blocks that ggml's reference makes of them.

Needs the packages llama-cpp-python (its libggml-base) and gguf, whose quantisers say the same of
the types that they have.

Usage: make_ggml_blocks.py
"""

import ctypes
import importlib.util
import pathlib

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
ROW = 256


def rows():
    """Rows of a block of the largest kind: usual weights, and what is peculiar."""
    random = np.random.default_rng(7)
    usual = [random.normal(0, 0.05, ROW) for _ in range(4)]
    outliers = random.normal(0, 0.02, ROW)
    outliers[[3, 77, 200]] = [4.0, -2.5, 1.0]
    halves = np.round(random.normal(0, 3, ROW)) / 2  # ties
    some_zero = random.normal(0, 1, ROW)
    some_zero[:64] = 0
    peculiar = [
        outliers,
        halves,
        some_zero,
        np.zeros(ROW),
        np.full(ROW, 0.25),
        np.full(ROW, -3.0),
        random.uniform(0.5, 1, ROW),  # no number below 0
        -random.uniform(0, 1, ROW),
        random.normal(0, 1e-6, ROW),  # scales that are subnormal halves
        random.normal(0, 1e-10, ROW),
        random.laplace(0, 100, ROW),
        np.arange(ROW) % 17 - 8.0,
    ]
    return np.array(usual + peculiar, dtype=np.float32)


def quantised(library, kind, numbers):
    out = np.zeros(numbers.size * 4, dtype=np.uint8)
    size = library.ggml_quantize_chunk(
        int(gguf.GGMLQuantizationType[kind]),
        numbers.ctypes.data_as(ctypes.c_void_p),
        out.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(0),
        ctypes.c_int64(numbers.shape[0]),
        ctypes.c_int64(numbers.shape[1]),
        None,
    )
    return out[:size]


def main():
    folder = pathlib.Path(importlib.util.find_spec("llama_cpp").origin).parent
    library = ctypes.CDLL(str(next(folder.rglob("libggml-base.so*"))))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    numbers = rows()
    tensors = {"numbers": ("F32", numbers.view(np.uint8).ravel(), list(numbers.shape))}
    for kind in TYPES:
        blocks = quantised(library, kind, numbers)
        try:
            theirs = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[kind])
            assert np.array_equal(theirs.view(np.uint8).ravel(), blocks), kind
            print(kind, "as gguf's quantiser")
        except NotImplementedError:
            print(kind, "of ggml alone")
        tensors[kind] = ("U8", blocks, [len(blocks)])
    write(tensors, HERE / "ggml_blocks.safetensors")


def write(tensors, path):
    import json

    header, data = {}, b""
    for name, (dtype, content, shape) in tensors.items():
        begin = len(data)
        data += content.tobytes()
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


if __name__ == "__main__":
    main()
