"""What the functions return is what the program prints."""

import json
import warnings

import pytest

import kvcast

LLAMA = dict(model="llama-7b", hardware="a100-80gb")
CONFIGURATIONS = [
    LLAMA,
    dict(LLAMA, prompt_len=4096, batch=8, output_len=256),
    dict(LLAMA, attention="eager", elementwise="eager"),
    dict(LLAMA, dtype="fp32"),
    dict(LLAMA, cache_dtype="fp8", weight_dtype="int8"),
    dict(LLAMA, mode="speed-of-light"),
    dict(LLAMA, engine="vllm"),
    dict(LLAMA, engine="pytorch", batch=4),
    dict(LLAMA, tp=4),
    dict(LLAMA, pp=2, batch=4),
    dict(LLAMA, method="random-prune:keep=0.5"),
    dict(LLAMA, method="slim:option=kcache"),
    dict(LLAMA, method="kvr:p=4", prompt_len=8192, breakdown=True),
    dict(LLAMA, breakdown=True),
    dict(LLAMA, set={"num_key_value_heads": 8}),
    dict(LLAMA, set={"num_key_value_heads": 8, "num_hidden_layers": 16}),
    dict(model="llama-3.1-8b", hardware="h100-sxm", prompt_len=100_000),
    dict(model="whisper-large-v3", hardware="h100-sxm", encoder_tokens=1500),
    dict(model="openelm-1.1b", hardware="m2-pro-cpu", batch=2),
    dict(LLAMA, train=True, dtype="bf16", seq_len=2048, batch=4, recompute="full"),
]


def words_of(keywords):
    """Written anew: not the package's own translation."""
    words = []
    for key, value in keywords.items():
        flag = "--" + key.replace("_", "-")
        if value is True:
            words += [flag]
        elif isinstance(value, dict):
            for pair in value.items():
                words += [flag, "%s=%s" % pair]
        else:
            words += [flag, str(value)]
    return words


@pytest.mark.parametrize("keywords", CONFIGURATIONS, ids=lambda k: " ".join(words_of(k)[4:]) or "-")
def test_an_estimate_is_the_program_s_json(program, keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kvcast.KvcastWarning)
        result = kvcast.estimate(**keywords)
    expected = program.json("estimate", *words_of(keywords))
    assert result.to_dict() == expected
    # Types too: 1 == 1.0 == True in Python.
    assert json.dumps(result) == json.dumps(expected)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: kvcast.model_show("llama-7b", dtype="fp32"), "model show llama-7b --dtype fp32"),
        (lambda: kvcast.hardware_show("h100-sxm"), "hardware show h100-sxm"),
        (lambda: kvcast.hardware_list(), "hardware list"),
        (lambda: kvcast.engine_list(), "engine list"),
        (lambda: kvcast.engine_show("vllm"), "engine show vllm"),
        (lambda: kvcast.platform_list(), "platform list"),
        (lambda: kvcast.platform_show("hgx-h100"), "platform show hgx-h100"),
        (
            lambda: kvcast.simulate_prefill(
                **LLAMA, schedule="kvr", devices=4, partition=[1000, 400, 350, 298],
                prompt_len=2048, link_gb_per_s=50
            ),
            "simulate prefill --model llama-7b --hardware a100-80gb --schedule kvr --devices 4 "
            "--partition 1000,400,350,298 --prompt-len 2048 --link-gb-per-s 50",
        ),
        (
            lambda: kvcast.partition_search(**LLAMA, devices=3, prompt_len=3000),
            "partition search --model llama-7b --hardware a100-80gb --devices 3 "
            "--prompt-len 3000",
        ),
        (
            lambda: kvcast.simulate_serving(
                **LLAMA, engine="vllm", arrivals="poisson:rate=2", seed=7, num_requests=50,
                prompt_lens=500, output_lens=20, slo={"ttft": 1, "tpot": 0.1}
            ),
            "simulate serving --model llama-7b --hardware a100-80gb --engine vllm --arrivals "
            "poisson:rate=2 --seed 7 --num-requests 50 --prompt-lens 500 --output-lens 20 --slo "
            "ttft=1,tpot=0.1",
        ),
        (lambda: kvcast.choose_slim(**LLAMA), "choose slim --model llama-7b --hardware a100-80gb"),
        (lambda: kvcast.reproduce("kvr-table3-base"), "reproduce kvr-table3-base"),
    ],
)
def test_other_commands_are_the_program_s_json(program, call, words):
    assert json.dumps(call()) == json.dumps(program.json(*words.split()))


def test_keys_are_attributes_at_every_depth():
    result = kvcast.estimate(**LLAMA, breakdown=True)
    assert result.ttft_s == result["ttft_s"] > 0
    assert result.breakdown[0].flops == result["breakdown"][0]["flops"]
    assert type(result.to_dict()["breakdown"][0]) is dict
    assert "ttft_s" in dir(result) and "ttft_s" in repr(result)
    with pytest.raises(AttributeError, match="no key 'tftt_s'"):
        result.tftt_s


def test_a_config_may_be_a_dict_or_have_to_dict(program):
    path = "tests/oracle/llama_mha/config.json"
    config = json.load(open(path))

    class Config:
        def to_dict(self):
            return dict(config, _name_or_path="someone/llama_mha")

        def __iter__(self):  # as those of transformers 5
            return iter(config)

    expected = program.json("estimate", "--model", path, "--hardware", "a100-80gb")
    by_dict = kvcast.estimate(model=config, hardware="a100-80gb").to_dict()
    by_object = kvcast.estimate(model=Config(), hardware="a100-80gb").to_dict()
    assert by_object["model"] == "llama_mha"
    for result in (by_dict, by_object):
        for other in (result, expected):
            other.pop("model", None)
            other.pop("warnings", None)  # they say the name too
        assert result == expected
    assert kvcast.model_show(Config()).hidden_size == config["hidden_size"]


def test_a_device_may_be_a_dict(program):
    device = json.load(open("data/hardware/a100-80gb.json"))
    half = json.loads(json.dumps(device))
    half["name"] = "half-an-a100"
    assert kvcast.estimate(model="llama-7b", hardware=device).ttft_s == (
        program.json("estimate", "--model", "llama-7b", "--hardware", "a100-80gb")["ttft_s"]
    )
    assert kvcast.estimate(model="llama-7b", hardware=half).hardware == "half-an-a100"
    with pytest.raises(kvcast.Error) as e:
        kvcast.estimate(model="llama-7b", hardware=dict(device, name=7))
    assert "/tmp" not in str(e.value) and "/name" in str(e.value)


def test_a_graph_has_the_work_of_the_estimate():
    """The prefill's FLOPs and bytes are those of its operators."""
    estimate = kvcast.estimate(**LLAMA, batch=2, prompt_len=300)
    graph = kvcast.graph("llama-7b", batch=2, prompt_len=300)
    assert graph.flops == estimate.prefill_flops
    assert graph.bytes == estimate.prefill_bytes
    query = next(o for o in graph if o.label == "query" and o.layer == 3)
    # A product of 600 rows of 4096 with 4096 x 4096: 2 m n k.
    assert query.flops == 2 * 600 * 4096 * 4096
    assert query.outputs[0].shape[-1] == 4096
    names = {t.name for o in graph for t in o.outputs}
    assert any(t.name in names for t in query.inputs)
    step = kvcast.graph("llama-7b", pass_="decode", prompt_len=300)
    assert 1 < graph.flops / step.flops and len(step) > 100


def test_run_generates_and_returns_logits(program, tmp_path):
    tokens = [1, 2, 3, 4, 5]
    result = kvcast.run(model="tests/oracle/llama_mha", tokens=tokens, output_len=4, logits=True)
    printed = program.json("run", "--model", "tests/oracle/llama_mha", "--tokens", "1,2,3,4,5",
                           "--output-len", "4")
    assert result.generated_tokens == printed["generated_tokens"]
    vocab = json.load(open("tests/oracle/llama_mha/config.json"))["vocab_size"]
    assert result.logits.shape == (5, vocab) and result.logits.dtype == "float32"
    assert result.logits[-1].argmax() == result.generated_tokens[0]
    both = kvcast.run(model="tests/oracle/llama_mha", tokens=[tokens, [5, 4, 3, 2, 1]],
                      output_len=4, logits=True)
    assert both.generated_tokens[0] == result.generated_tokens
    assert both.logits.shape == (2, 5, vocab)
