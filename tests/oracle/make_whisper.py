"""What transformers makes of Whisper base (weights/whisper-base) and whisper_base/speech.wav.

The recording is synthetic: espeak-ng -v en-us -s 150 "The cache remembers every word.", 16 kHz.
Writes whisper_base/expected_text.json: greedy tokens after the usual start, and the logits of the
first step's best tokens.
"""

import json
import pathlib
import wave

import numpy
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / "whisper_base"
WEIGHTS = FOLDER.parents[2] / "weights" / "whisper-base"
START = [50258, 50259, 50359, 50363]  # <|startoftranscript|><|en|><|transcribe|><|notimestamps|>
END = 50257


@torch.no_grad()
def main():
    with wave.open(str(FOLDER / "speech.wav")) as file:
        samples = numpy.frombuffer(file.readframes(file.getnframes()), numpy.int16) / 32768.0
    extractor = transformers.WhisperFeatureExtractor(feature_size=80)
    features = extractor(samples, sampling_rate=16000, return_tensors="pt").input_features
    model = transformers.WhisperForConditionalGeneration.from_pretrained(
        WEIGHTS, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    states = model.model.encoder(features).last_hidden_state
    tokens, margins = list(START), []
    while tokens[-1] != END and len(tokens) < 40:
        out = model(encoder_outputs=(states,), decoder_input_ids=torch.tensor([tokens]))
        logits = out.logits[0, -1]
        best = logits.topk(2).values
        margins.append(((best[0] - best[1]) / (logits.max() - logits.min())).item())
        tokens.append(logits.argmax().item())
    first = model(encoder_outputs=(states,), decoder_input_ids=torch.tensor([START])).logits[0, -1]
    top = first.topk(20)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(WEIGHTS / "tokenizer.json"))
    expected = {
        "start": START,
        "greedy": tokens[len(START) :],
        "text": tokenizer.decode(tokens, skip_special_tokens=True),
        "smallest_margin": round(min(margins), 6),
        "top_tokens": top.indices.tolist(),
        "top_logits": [round(x, 5) for x in top.values.tolist()],
        "logits_range": round((first.max() - first.min()).item(), 5),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    (FOLDER / "expected_text.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
