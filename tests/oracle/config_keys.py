#!/usr/bin/env python3
"""How transformers and kvcast read config.json: families times keys.

Each row changes one small checkpoint's config.json. transformers computes the logits of a prompt
from it, then kvcast does. The answers are

  transformers  same: the key changes nothing; other: logits moved; refused: it raised an error
  kvcast        equal: the logits of transformers, 1e-4 of their range; refused: exit status 2;
                WRONG: other logits, with the difference as a share of their range

Rows that need other weights than the case's own are checked here alone. Of the others
config_keys.json holds the logits, and tests/execute/config_keys_test.cpp compares.
config_keys.csv is the table, cases times keys: how many values are honoured (logits moved, and are
equal), ignored by both, or refused by kvcast.

Usage: config_keys.py KVCAST [CASE ...]      (none: all cases, and both files are written)
"""

import csv
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
GONE = "GONE"  # a key that is taken out
TOLERANCE = 1e-4
CASES = [
    "llama_mha",
    "mistral",
    "qwen2",
    "qwen2_windowed",
    "olmo",
    "phi3",
    "phi3_longrope",
    "gemma",
    "gemma2",
    "gpt_neox",
    "falcon_7b",
    "falcon_rw",
    "falcon_40b",
    "gpt2",
    "opt",
    "t5",
    "t5_gated",
    "whisper",
    "smollm3_windowed",
    "cohere2",
    "glm4",
    "deepseek_v3",
    "granitemoehybrid",
    "nemotron_h_moe",
]
HEADS = {"gpt_neox": "embed_out.weight", "whisper": "proj_out.weight"}


def rope_values(half):
    """Values of rope_scaling and rope_parameters; `half`: frequencies of a head."""
    llama3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    short, long = [1 + 0.3 * i for i in range(half)], [1 + 0.9 * i for i in range(half)]
    longrope = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    return [
        None,
        {},
        {"rope_type": "default"},
        {"type": "default"},
        {"rope_theta": 100.0},
        {"factor": 2.0},
        {"rope_type": "default", "rope_theta": 100.0},
        {"rope_type": "default", "partial_rotary_factor": 0.5},
        {"rope_type": "linear", "factor": 2.0},
        {"type": "linear", "factor": 2.0},
        {"rope_type": "linear", "type": "default", "factor": 2.0},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0},
        {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
        {"rope_type": "linear"},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        {"rope_type": "proportional", "partial_rotary_factor": 0.5},
        {"rope_type": "mystery"},
        {**llama3, "original_max_position_embeddings": 8, "rope_theta": 500.0},
        {**llama3, "original_max_position_embeddings": 8},
        {**llama3},
        {**longrope, "original_max_position_embeddings": 64},
        {**longrope, "type": "su", "original_max_position_embeddings": 64},
        {**longrope, "original_max_position_embeddings": 64, "factor": 8.0},
        {**longrope, "original_max_position_embeddings": 64, "attention_factor": 1.7},
        {
            **longrope,
            "original_max_position_embeddings": 64,
            "factor": 8.0,
            "attention_factor": 0.6,
        },
        {**longrope},
        {
            "full_attention": {"rope_type": "default", "rope_theta": 100.0},
            "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
        },
    ]


def changes(config, half):
    """Of every key one value or more, and keys together that speak of one thing."""
    single = {
        "tie_word_embeddings": [True, False, GONE],
        "attention_bias": [True, False],
        "mlp_bias": [True],
        "bias": [True, False],
        "enable_bias": [False],
        "rms_norm_eps": [0.1, GONE],
        "layer_norm_eps": [0.1, GONE],
        "layer_norm_epsilon": [0.1, GONE],
        "layer_norm_elementwise_affine": [False],
        "hidden_act": [
            "relu",
            "gelu",
            "gelu_new",
            "gelu_fast",
            "gelu_pytorch_tanh",
            "silu",
            "quick_gelu",
            "tanh",
            "relu2",
            "swish",
            "gelu_python",
            GONE,
        ],
        "hidden_activation": ["relu", "gelu", "silu", None, GONE],
        "activation_function": ["relu", "gelu", "gelu_new", "silu", GONE],
        "activation": ["relu", "silu", "gelu_new", GONE],
        "dense_act_fn": ["relu", "silu", "gelu"],
        "is_gated_act": [True, False],
        "feed_forward_proj": [
            "relu",
            "gelu",
            "silu",
            "gated-gelu",
            "gated-silu",
            "gated-relu",
            "gelu_new",
            GONE,
        ],
        "scale_decoder_outputs": [True, False],
        "scale_embedding": [True],
        "rope_theta": [100.0, 100, GONE],
        "rotary_emb_base": [100.0, GONE],
        "rotary_pct": [0.5, 1.0, GONE],
        "partial_rotary_factor": [0.5, None],
        "rope_interleaved": [True],
        "original_max_position_embeddings": [8, 32],
        "max_position_embeddings": [64, GONE],
        "sliding_window": [4, None, GONE],
        "use_sliding_window": [True, False],
        "max_window_layers": [0, 1, GONE],
        "sliding_window_pattern": [1],
        "is_causal": [False],
        "use_bidirectional_attention": [True, False],
        "is_decoder": [True, False],
        "head_dim": [10],
        "num_key_value_heads": [1, GONE, None],
        "num_kv_heads": [1, GONE],
        "attn_logit_softcapping": [2.0, None, GONE],
        "final_logit_softcapping": [2.0, None, GONE],
        "query_pre_attn_scalar": [4, GONE],
        "scale_attn_weights": [False],
        "scale_attn_by_inverse_layer_idx": [True],
        "reorder_and_upcast_attn": [True],
        "num_attention_heads": [2],
        "num_hidden_layers": [1],
        "n_head": [2],
        "n_layer": [1],
        "n_ctx": [64],
        "n_inner": [None],
        "n_embed": [16],
        "ffn_hidden_size": [None],
        "do_layer_norm_before": [False],
        "_remove_final_layer_norm": [True],
        "word_embed_proj_dim": [None, 10],
        "use_parallel_residual": [False],
        "parallel_attn": [False],
        "new_decoder_architecture": [True, False],
        "multi_query": [True, False],
        "alibi": [True],
        "num_ln_in_parallel_attn": [1, 2],
        "relative_attention_num_buckets": [8, GONE],
        "relative_attention_max_distance": [16],
        "num_decoder_layers": [1, None],
        "num_local_experts": [2],
        "num_experts": [2],
        "pretraining_tp": [2],
        "clip_qkv": [0.5],
        "use_qk_norm": [True],
        "residual_multiplier": [0.5],
        "embedding_multiplier": [2.0],
        "attention_multiplier": [0.5],
        "logits_scaling": [2.0],
        "logit_scale": [0.5],
        "add_cross_attention": [True],
        "use_cache": [False],
        "attention_dropout": [0.5],
        "resid_pdrop": [0.5],
        "torch_dtype": ["bfloat16"],
        "pad_token_id": [3],
        "architectures": [["Other"]],
        "quantization_config": [{"quant_method": "awq", "bits": 4}, None],
        "layerdrop": [0.5],
        "norm_topk_prob": [True, False, None],
        "rope_interleave": [False, None],
        "mamba_conv_bias": [None],
        "time_step_limit": [[0.05, 0.4]],
        "time_step_min": [0.3, GONE],
    }
    layers = next((config[k] for k in ("num_hidden_layers", "n_layer") if k in config), 2)
    kinds = ["sliding_attention", "full_attention"]
    types = {"layer_types": [kinds[i % 2] for i in range(layers)]}
    every_full = {"layer_types": ["full_attention"] * layers}
    linear = {"rope_type": "linear", "factor": 2.0}
    llama3 = rope_values(half)[19]
    no_default = {"rope_scaling": GONE, "rope_parameters": GONE}
    together = [
        types,
        every_full,
        {"layer_types": ["linear_attention"] * layers},
        {**types, "sliding_window": 4},
        {**every_full, "sliding_window": 4},
        {**types, "sliding_window": 4, "use_sliding_window": True},
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": GONE},
        {"use_sliding_window": True, "sliding_window": GONE, "max_window_layers": 0},
        {"use_sliding_window": False, "sliding_window": 4},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}, "rope_scaling": linear},
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": linear},
        {"rope_parameters": linear, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 100.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}, "rope_theta": 100.0},
        {"rope_scaling": {**linear, "rope_theta": 300.0}, "rope_theta": 100.0},
        {"rope_scaling": llama3, "original_max_position_embeddings": 32},
        {"rope_parameters": llama3, "original_max_position_embeddings": 32, "rope_scaling": GONE},
        {"partial_rotary_factor": 0.5, "rope_parameters": {"rope_type": "default"}},
        {"partial_rotary_factor": 0.5, "rope_scaling": linear},
        {"partial_rotary_factor": 0.5, **no_default},
        {"rotary_pct": 0.5, "rope_parameters": {"rope_type": "default"}},
        {
            "rotary_pct": 1.0,
            "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5},
        },
        {"rotary_emb_base": 100, "rope_parameters": {"rope_type": "default"}},
        {"rotary_emb_base": 100, "rope_theta": 300, **no_default},
        {"rotary_pct": GONE, "partial_rotary_factor": 0.5},
        {**no_default, "rope_theta": GONE},
        {"hidden_act": "relu", "hidden_activation": "silu"},
        {"hidden_act": "gelu", "hidden_activation": None},
        {"num_attention_heads": 2, "n_head": 4},
        {"hidden_size": 12, "n_embd": 24},
        {"feed_forward_proj": "relu", "dense_act_fn": "silu"},
        {"tie_word_embeddings": False, "scale_decoder_outputs": True},
        {"tie_word_embeddings": True, "scale_decoder_outputs": False},
        {"tie_word_embeddings": GONE, "scale_decoder_outputs": False},
        {"num_local_experts": 1},
        {"HEAD": True},
        {"HEAD": True, "tie_word_embeddings": True},
        {"HEAD": True, "tie_word_embeddings": False},
        {"HEAD": True, "tie_word_embeddings": GONE},
    ]
    for key, values in single.items():
        for value in values:
            yield {key: value}
    for value in rope_values(half):
        yield {"rope_scaling": value}
        yield {"rope_parameters": value}
        yield {"rope_parameters": value, "rope_scaling": GONE, "rope_theta": GONE}
    yield from together


def apply(config, change):
    config = dict(config)
    for key, value in change.items():
        if value == GONE:
            config.pop(key, None)
        elif key != "HEAD":
            config[key] = value
    return config


def frequencies(config):
    """Of a head, half of its rotated dims."""
    heads = config.get("num_attention_heads", config.get("n_head", 1))
    dim = config.get("head_dim", config.get("hidden_size", 16) // heads)
    return int(dim * config.get("rotary_pct", config.get("partial_rotary_factor", 1))) // 2


def model_class(name):
    """As users load a checkpoint: AutoModel reads some configs as another family's."""
    if name.startswith("t5"):
        return transformers.AutoModelForSeq2SeqLM
    if name == "whisper":
        return transformers.AutoModelForSpeechSeq2Seq
    return transformers.AutoModelForCausalLM


def with_own_head(name, tensors):
    """A head that differs from the embedding, whatever tie_word_embeddings says."""
    head = HEADS.get(name, "lm_head.weight")
    embedding = next(
        t
        for k, t in tensors.items()
        if k.endswith(
            (
                "embed_tokens.weight",
                "wte.weight",
                "word_embeddings.weight",
                "embed_in.weight",
                "embeddings.weight",
                "shared.weight",
            )
        )
    )
    noise = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(5))
    return {**tensors, head: (0.3 * noise).to(embedding.dtype)}


class Case:
    def __init__(self, name, kvcast):
        self.name, self.kvcast = name, kvcast
        self.folder = HERE / name
        self.config = json.loads((self.folder / "config.json").read_text())
        notes = json.loads((self.folder / "expected.json").read_text())
        self.prompt = notes["prompt"][0]
        self.inputs, self.flags = {}, []
        if "encoder_tokens" in notes:
            tokens = notes["encoder_tokens"][0]
            self.inputs["input_ids"] = torch.tensor([tokens])
            self.flags = ["--encoder-tokens", ",".join(map(str, tokens))]
        if (self.folder / "features.safetensors").exists():
            features = self.folder / "features.safetensors"
            self.inputs["input_features"] = load_file(features)["features"][None]
            self.flags = ["--features", str(features)]
        self.plain = self.transformers(self.folder)[0]

    def transformers(self, folder):
        """Logits [prompt, vocab], and whether the weights are the file's; or the error's first line."""
        attention = (
            "sdpa" if json.loads((folder / "config.json").read_text()).get("alibi") else "eager"
        )
        try:
            model, info = model_class(self.name).from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation=attention,
                experts_implementation="eager",  # grouped_mm refuses rows of odd length
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
            model.eval()
            key = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
            with torch.no_grad():
                logits = model(
                    **{key: torch.tensor([self.prompt])}, **self.inputs, use_cache=False
                ).logits[0]
        except Exception as error:  # of any kind: it is transformers' refusal
            return (
                str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            ), False
        return logits, not info["missing_keys"] and not info["mismatched_keys"]

    def kvcast_logits(self, folder):
        """Logits, or the message of a refusal."""
        out = folder / "logits.safetensors"
        command = [
            self.kvcast,
            "run",
            "--model",
            str(folder),
            "--tokens",
            ",".join(map(str, self.prompt)),
            *self.flags,
            "--output-len",
            "1",
            "--threads",
            "1",
            "--logits",
            str(out),
            "-q",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            message = done.stderr.strip().splitlines()[-1].replace(str(folder), "DIR")
            return message if done.returncode == 2 else f"WRONG status {done.returncode}: {message}"
        return load_file(out)["logits"].float()

    def new_weights(self, folder):
        """Random weights of the shapes that the changed config asks for."""
        config = transformers.AutoConfig.from_pretrained(folder)
        model = model_class(self.name).from_config(config)
        generator = torch.Generator().manual_seed(1)
        for name, tensor in model.named_parameters():
            if "encoder.embed_positions" not in name:
                tensor.data = 0.3 * torch.randn(tensor.shape, generator=generator)
        kept = (folder / "config.json").read_text()
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder)
        (folder / "config.json").write_text(kept)

    def row(self, change):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            for file in self.folder.glob("*.safetensors"):
                if file.name.startswith("model"):
                    shutil.copy(file, folder / file.name)
            config = apply(self.config, change)
            (folder / "config.json").write_text(json.dumps(config))
            if "HEAD" in change:
                path = folder / "model.safetensors"
                save_file(
                    with_own_head(self.name, load_file(path)), path, metadata={"format": "pt"}
                )
            truth, same_weights = self.transformers(folder)
            own = "HEAD" in change
            if not isinstance(truth, str) and not same_weights:
                own = True
                try:
                    self.new_weights(folder)
                    truth, complete = self.transformers(folder)
                    assert complete or isinstance(truth, str)
                except Exception as error:
                    truth = f"no weights: {type(error).__name__} {error}".splitlines()[0]
            answer = self.kvcast_logits(folder)
        read = {"case": self.name, "change": change, "own_weights": own}
        if isinstance(truth, str):
            kvcast = (
                "refused" if isinstance(answer, str) and not answer.startswith("WRONG") else "runs"
            )
            return {
                **read,
                "transformers": "refused",
                "kvcast": kvcast,
                "note": answer if isinstance(answer, str) else truth[:100],
            }
        scale = (truth.max() - truth.min()).item()
        moved = (
            own
            or (truth.shape != self.plain.shape)
            or (truth - self.plain).abs().max().item() > TOLERANCE * scale
        )
        read["transformers"] = "other" if moved else "same"
        read["logits"] = [float(f"{x:.6g}") for x in truth[-1, :4].tolist()]
        if isinstance(answer, str):
            read["kvcast"] = "WRONG" if answer.startswith("WRONG") else "refused"
            return {**read, "note": answer}
        if answer.shape != truth.shape:
            return {
                **read,
                "kvcast": "WRONG",
                "note": f"logits {list(answer.shape)}, not {list(truth.shape)}",
            }
        difference = (answer - truth).abs().max().item() / scale
        right = difference < TOLERANCE
        return {
            **read,
            "kvcast": "equal" if right else "WRONG",
            "note": "" if right else f"{100 * difference:.2g} %",
        }


def outcome(row):
    if row["kvcast"] == "equal":
        return "honoured" if row["transformers"] == "other" else "ignored"
    return row["kvcast"]


def write(rows):
    cells = {}
    for row in rows:
        cell = cells.setdefault(" + ".join(row["change"]), {}).setdefault(row["case"], {})
        cell[outcome(row)] = cell.get(outcome(row), 0) + 1
    with open(HERE / "config_keys.csv", "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["keys", *CASES])
        for keys, of_case in cells.items():
            out.writerow(
                [keys, *(", ".join(f"{n} {what}" for what, n in of_case[c].items()) for c in CASES)]
            )
    lines = []
    for name in CASES:
        held = [row for row in rows if row["case"] == name and not row["own_weights"]]
        honoured = [[row["change"], row["logits"]] for row in held if outcome(row) == "honoured"]
        refused = [row["change"] for row in held if row["kvcast"] == "refused"]
        lists = {"honoured": honoured, "refused": refused}
        texts = [
            json.dumps(what) + ": [\n" + ",\n".join(json.dumps(x) for x in list_) + "]"
            for what, list_ in lists.items()
        ]
        lines.append(json.dumps(name) + ": {" + ",\n".join(texts) + "}")
    (HERE / "config_keys.json").write_text("{" + ",\n".join(lines) + "}\n")


def main():
    transformers.utils.logging.set_verbosity(50)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    kvcast, names = sys.argv[1], sys.argv[2:]
    rows = []
    for name in names or CASES:
        case = Case(name, kvcast)
        of_case = [case.row(change) for change in changes(case.config, frequencies(case.config))]
        rows += of_case
        count = lambda answer: sum(row["kvcast"] == answer for row in of_case)
        print(
            f"{name}: {len(of_case)} rows, {count('equal')} equal, {count('refused')} refused, "
            f"{count('runs')} run where transformers refuses, {count('WRONG')} wrong",
            flush=True,
        )
        for row in of_case:
            if row["kvcast"] == "WRONG":
                print(f"  {json.dumps(row['change'])}: {row['note']}")
    if not names:
        write(rows)


if __name__ == "__main__":
    main()
