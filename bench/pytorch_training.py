#!/usr/bin/env python3
"""Seconds of a training step of PyTorch: the peer of train_bench --pytorch.

pytorch_training.py CONFIG.json BATCH SEQ_LEN THREADS: a causal model of transformers with random
fp32 weights, sdpa attention and fused AdamW; prints the seconds of the second step.
"""

import sys
import time

import torch
import transformers


def main(config_file: str, batch: int, seq_len: int, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    config = transformers.AutoConfig.from_pretrained(config_file)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(config.vocab_size, (batch, seq_len))
    for _ in range(2):
        start = time.perf_counter()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.perf_counter() - start
    print(seconds)


main(sys.argv[1], *map(int, sys.argv[2:]))
