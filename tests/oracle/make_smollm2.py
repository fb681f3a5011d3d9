"""What transformers makes of SmolLM2-135M-Instruct, read from the GGUF file in weights/.

Greedy continuations of three prompts, and the perplexity of smollm2/alice.txt (Lewis Carroll,
Alice's Adventures in Wonderland, 1865, in the public domain). Weights are dequantised by
transformers, arithmetic is fp32. Writes smollm2/expected_text.json.
"""

import json
import pathlib

import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / "smollm2"
TEXT = FOLDER / "alice.txt"
GGUF = FOLDER.parents[2] / "weights" / "smollm2-135m-instruct.gguf"
PROMPTS = [
    "The capital of France is",
    "<|im_start|>user\nWrite a sentence about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    ",
]
STEPS = 48


@torch.no_grad()
def main():
    source = {"pretrained_model_name_or_path": GGUF.parent, "gguf_file": GGUF.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    greedy = []
    for prompt in PROMPTS:
        tokens = tokenizer(prompt, return_tensors="pt").input_ids
        ids = tokens[0].tolist()
        margins, out, cache = [], [], None
        for _ in range(STEPS):
            result = model(tokens, past_key_values=cache, use_cache=True)
            cache, logits = result.past_key_values, result.logits[0, -1]
            best = logits.topk(2).values
            margins.append(((best[0] - best[1]) / (logits.max() - logits.min())).item())
            tokens = logits.argmax().reshape(1, 1)
            out.append(tokens.item())
        greedy.append(
            {
                "prompt": prompt,
                "prompt_tokens": ids,
                "greedy": out,
                "text": tokenizer.decode(out, skip_special_tokens=True),
                "smallest_margin": round(min(margins), 7),
            }
        )
    ids = tokenizer(TEXT.read_text(), return_tensors="pt").input_ids
    logits = model(ids).logits[0, :-1].double()
    loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item()
    expected = {
        "greedy": greedy,
        "text_tokens": ids.shape[1],
        "perplexity": torch.tensor(loss, dtype=torch.float64).exp().item(),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    (FOLDER / "expected_text.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
