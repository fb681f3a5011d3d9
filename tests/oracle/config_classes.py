"""Writes config_classes.json: the keys and defaults of the configuration classes of transformers whose models kvcast reads.

    python3 tests/oracle/config_classes.py

A test reads each of them: a key that kvcast's reader neither knows nor ignores on purpose is noticed there.
"""

import json
import pathlib

import transformers

HERE = pathlib.Path(__file__).parent

# transformers has no class for the others that kvcast reads: OpenELM and the MLKV form of GPT-NeoX.
MODEL_TYPES = """llama mistral qwen2 qwen3 olmo olmo2 exaone4 smollm3 granite cohere cohere2 starcoder2 nemotron stablelm phi phi3
gemma gemma2 gemma3_text gemma3n_text gpt_neox falcon gpt2 opt t5 whisper mixtral qwen3_moe olmoe granitemoe gpt_oss llama4_text glm4_moe
deepseek_v2 deepseek_v3 minicpm3""".split()


def main():
    classes = {}
    for model_type in MODEL_TYPES:
        config = transformers.AutoConfig.for_model(model_type)
        classes[model_type] = config.to_dict()
    document = {"transformers": transformers.__version__, "classes": classes}
    text = json.dumps(document, indent=1, sort_keys=True)
    (HERE / "config_classes.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
