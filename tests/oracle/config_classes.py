"""Writes config_classes.json: the keys and defaults of the configuration classes of transformers whose models kvcast reads.

    python3 tests/oracle/config_classes.py

A test reads each of them: a key that kvcast's reader neither knows nor ignores on purpose is noticed there.
"""

import json
import math
import pathlib

import transformers

HERE = pathlib.Path(__file__).parent

# transformers has no class for the others that kvcast reads: OpenELM and the MLKV form of GPT-NeoX.
MODEL_TYPES = """llama mistral ministral ministral3 qwen2 qwen3 olmo olmo2 exaone4 smollm3 granite cohere cohere2 starcoder2 nemotron stablelm phi phi3
gemma gemma2 gemma3_text gemma3n_text gpt_neox falcon gpt2 opt t5 whisper mixtral qwen3_moe olmoe granitemoe gpt_oss llama4_text
glm4_moe deepseek_v2 deepseek_v3 deepseek_v32 minicpm3 qwen2_moe minimax_m2 dots1 olmo3 glm glm4 seed_oss ernie4_5 arcee
granitemoehybrid falcon_h1 qwen3_next qwen3_5_text qwen3_5_moe_text nemotron_h jamba lfm2
ernie4_5_moe hunyuan_v1_dense hunyuan_v1_moe phimoe glm4_moe_lite internlm3 exaone cwm helium apertus jais2 vaultgemma
granite_swa granitemoeshared granitemoe_swa flex_olmo qwen3_vl_moe_text
glm_moe_dsa mistral4 sarvam_mla exaone_moe solar_open afmoe hy_v3 sarvam_moe lfm2_moe""".split()

# Models whose text model is nested in them, and the classes of such text models that are none of the above.
WRAPPERS = """gemma3 mistral3 llama4 kimi_k25 llava llava_next llava_onevision vipllava video_llava internvl aya_vision
cohere2_vision qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe gemma3n qwen3_5 qwen3_5_moe""".split()


def as_saved(value):
    """As transformers saves a number that JSON has no word for."""
    if isinstance(value, dict):
        return {key: as_saved(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_saved(v) for v in value]
    return {"__float__": "Infinity"} if value == math.inf else value


def main():
    of = transformers.AutoConfig.for_model
    classes = {model_type: of(model_type).to_dict() for model_type in MODEL_TYPES}
    wrappers = {}
    common = transformers.PreTrainedConfig().to_dict()
    is_own = lambda key, value: key == "model_type" or key not in common or value != common[key]
    for model_type in WRAPPERS:
        config = of(model_type).to_dict()
        text = {k: v for k, v in config["text_config"].items() if is_own(k, v)}
        config = {k: v for k, v in config.items() if is_own(k, v)}
        wrappers[model_type] = {**config, "text_config": text, "vision_config": {}}
    document = {"transformers": transformers.__version__, "classes": classes, "wrappers": wrappers}
    text = json.dumps(as_saved(document), indent=1, sort_keys=True)
    (HERE / "config_classes.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
