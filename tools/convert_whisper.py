#!/usr/bin/env python3
"""CTranslate2's Whisper as a Hugging Face folder: model.safetensors beside the given config.json.

usage: convert_whisper.py MODEL.bin CONFIG.json FOLDER

Values are copied bit for bit (fp16); fused projections are cut into their rows. Needs nothing but
Python; the file is read as data and every length in it is checked.
Source: OpenNMT/CTranslate2, python/ctranslate2/specs/model_spec.py (format), whisper_spec.py.
"""

import json
import pathlib
import struct
import sys

FP16 = 4  # CTranslate2's data type


class Reader:
    def __init__(self, data):
        self.data = memoryview(data)
        self.at = 0

    def take(self, count):
        if count > len(self.data) - self.at:
            sys.exit(f"convert_whisper: byte {self.at}: the file ends before {count} more bytes")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def text(self):
        return bytes(self.take(self.number("H"))).rstrip(b"\0").decode()


def read_model(path):
    """{name: (shape, bytes)} of the fp16 tensors."""
    reader = Reader(path.read_bytes())
    version, spec = reader.number("I"), reader.text()
    if version != 6 or spec != "WhisperSpec":
        sys.exit(f"convert_whisper: {path}: got {spec} version {version}, expected WhisperSpec 6")
    reader.number("I")  # revision
    tensors = {}
    for _ in range(reader.number("I")):
        name, rank = reader.text(), reader.number("B")
        shape = [reader.number("I") for _ in range(rank)]
        kind, size = reader.number("B"), reader.number("I")
        values = reader.take(size)
        if kind == FP16:
            tensors[name] = (shape, values)
    return tensors


def rows(tensor, part, parts):
    """The part-th of equally tall pieces."""
    shape, values = tensor
    height, size = shape[0] // parts, len(values) // parts
    return [height] + shape[1:], values[part * size : (part + 1) * size]


def layer(tensors, stack, index):
    """(Hugging Face name, tensor) of one layer."""
    ours, theirs = f"model.{stack}.layers.{index}.", f"{stack}/layer_{index}/"

    def both(name, source, part=0, parts=1):
        yield f"{name}.weight", rows(tensors[f"{theirs}{source}/weight"], part, parts)
        yield f"{name}.bias", rows(tensors[f"{theirs}{source}/bias"], part, parts)

    def norm(name, source):
        yield f"{name}.weight", tensors[f"{theirs}{source}/layer_norm/gamma"]
        yield f"{name}.bias", tensors[f"{theirs}{source}/layer_norm/beta"]

    def named():
        for i, part in enumerate(("q_proj", "k_proj", "v_proj")):
            yield from both(f"self_attn.{part}", "self_attention/linear_0", i, 3)
        yield from both("self_attn.out_proj", "self_attention/linear_1")
        yield from norm("self_attn_layer_norm", "self_attention")
        if stack == "decoder":
            yield from both("encoder_attn.q_proj", "attention/linear_0")
            for i, part in enumerate(("k_proj", "v_proj")):
                yield from both(f"encoder_attn.{part}", "attention/linear_1", i, 2)
            yield from both("encoder_attn.out_proj", "attention/linear_2")
            yield from norm("encoder_attn_layer_norm", "attention")
        yield from both("fc1", "ffn/linear_0")
        yield from both("fc2", "ffn/linear_1")
        yield from norm("final_layer_norm", "ffn")

    for name, tensor in named():
        if name.endswith("k_proj.bias"):  # Whisper has none: zeros fill it
            if any(tensor[1]):
                sys.exit(f"convert_whisper: {ours}{name}: got numbers, expected zeros")
            continue
        yield ours + name, tensor


def convert(tensors, config):
    yield "model.decoder.embed_tokens.weight", tensors["decoder/embeddings/weight"]
    for stack in ("encoder", "decoder"):
        prefix = f"model.{stack}."
        yield prefix + "embed_positions.weight", tensors[f"{stack}/position_encodings/encodings"]
        yield prefix + "layer_norm.weight", tensors[f"{stack}/layer_norm/gamma"]
        yield prefix + "layer_norm.bias", tensors[f"{stack}/layer_norm/beta"]
        for index in range(config[f"{stack}_layers"]):
            yield from layer(tensors, stack, index)
    for conv in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            yield f"model.encoder.{conv}.{kind}", tensors[f"encoder/{conv}/{kind}"]


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, values) in tensors:
        end = offset + len(values)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, (_, values) in tensors:
            out.write(values)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    model, config, folder = map(pathlib.Path, sys.argv[1:])
    # What only kvcast's catalog says stays there.
    settings = {k: v for k, v in json.loads(config.read_text()).items() if not k.startswith("_")}
    settings["torch_dtype"] = "float16"
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "model.safetensors", list(convert(read_model(model), settings)))
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    main()
