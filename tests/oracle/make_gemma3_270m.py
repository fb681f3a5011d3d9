"""What transformers makes of Gemma 3 270M (pretrained), read from the GGUF file in weights/.

As make_smollm2.py: greedy continuations of three prompts, and the perplexity of smollm2/alice.txt.
Writes gemma3_270m/expected_text.json.
"""

import pathlib

import make_smollm2

make_smollm2.FOLDER = pathlib.Path(__file__).parent / "gemma3_270m"
make_smollm2.TEXT = pathlib.Path(__file__).parent / "smollm2" / "alice.txt"
make_smollm2.GGUF = make_smollm2.FOLDER.parents[2] / "weights" / "gemma-3-270m.gguf"
make_smollm2.PROMPTS = [
    "The capital of France is",
    "Water boils at 100 degrees Celsius. Ice melts at",
    "def fibonacci(n):\n    ",
]

if __name__ == "__main__":
    make_smollm2.main()
