"""Errors, warnings, threads, Ctrl-C and what a call costs."""

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
from pathlib import Path

import numpy
import pytest

import kvcast

LLAMA = dict(model="llama-7b", hardware="a100-80gb")


@pytest.mark.parametrize(
    "keywords, words",
    [
        (dict(LLAMA, prompt_leng=3), "--model llama-7b --hardware a100-80gb --prompt-leng 3"),
        (dict(LLAMA, prompt_len="x"), "--model llama-7b --hardware a100-80gb --prompt-len x"),
        (dict(LLAMA, method="slmi"), "--model llama-7b --hardware a100-80gb --method slmi"),
        (dict(model="lama-7b", hardware="h200"), "--model lama-7b --hardware h200"),
        (dict(model="llama-7b"), "--model llama-7b"),
        (dict(LLAMA, dtype=["fp16", "fp32"]),
         "--model llama-7b --hardware a100-80gb --dtype fp16,fp32"),
    ],
)
def test_a_wrong_request_is_the_program_s_line(program, keywords, words):
    done = program("estimate", *words.split())
    assert done.returncode == 2 and done.stdout == ""
    with pytest.raises(ValueError) as e:
        kvcast.estimate(**keywords)
    assert type(e.value) is kvcast.Error
    assert "kvcast: " + str(e.value) + "\n" == done.stderr


def test_a_fault_of_a_run_is_a_run_error(program):
    words = ["sweep", "--model", "llama-7b", "--hardware", "h200", "--csv", "/dev/full"]
    done = program(*words)
    assert done.returncode == 1
    with pytest.raises(RuntimeError) as e:
        kvcast.sweep(model="llama-7b", hardware="h200", csv="/dev/full")
    assert type(e.value) is kvcast.RunError
    assert "kvcast: " + str(e.value) == done.stderr.splitlines()[-1]


def test_warnings_are_python_s():
    with pytest.warns(kvcast.KvcastWarning, match="context"):
        kvcast.estimate(**LLAMA, prompt_len=100_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kvcast.estimate(**LLAMA, prompt_len=100_000, quiet=True)


def test_nothing_is_printed(capfd):
    kvcast.estimate(**LLAMA, breakdown=True)
    kvcast.sweep(**LLAMA, batch=[1, 2])
    with pytest.raises(kvcast.Error):
        kvcast.estimate(model="no", hardware="no")
    assert capfd.readouterr() == ("", "")


def test_an_output_is_written_and_an_input_is_refused_as_output(tmp_path):
    """The rules of one call's flags are not those of the next, whose flags lie where they lay."""
    for i in range(20):
        kvcast.estimate(**LLAMA, quiet=True)
        kvcast.model_show("llama-7b", graph=tmp_path / f"{i}.dot")
        kvcast.sweep(**LLAMA, csv=tmp_path / f"{i}.csv")
    assert len(list(tmp_path.iterdir())) == 40
    with pytest.raises(kvcast.Error, match="another file|writes too|in the catalog|is read"):
        kvcast.model_show("data/models/llama-7b.json", graph="data/models/llama-7b.json")


def test_threads_get_their_own_answers():
    lengths = [100 * (i + 1) for i in range(12)]
    alone = [kvcast.estimate(**LLAMA, prompt_len=n).to_dict() for n in lengths]
    found = {}
    failures = []

    def work(first):
        try:
            for n in lengths[first::3] * 3:
                found.setdefault(n, []).append(kvcast.estimate(**LLAMA, prompt_len=n).to_dict())
                with pytest.raises(kvcast.Error, match=f'"x{n}"'):
                    kvcast.estimate(**LLAMA, prompt_len=f"x{n}")
        except BaseException as e:  # a failure on a thread is nobody's otherwise
            failures.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    for n, expected in zip(lengths, alone):
        assert found[n] == [expected] * 3


def test_other_threads_go_on_while_a_call_works():
    """The interpreter's lock is not held: a thread counts while the sweep runs."""
    done = threading.Event()

    def sweep():
        kvcast.sweep(**LLAMA, prompt_len="1..3000", batch="1..100", threads=1, quiet=True)
        done.set()

    thread = threading.Thread(target=sweep)
    thread.start()
    turns = 0
    while not done.is_set():
        turns += 1
        time.sleep(0.001)
    thread.join()
    assert turns > 20


@pytest.mark.parametrize(
    "call",
    [
        "kvcast.sweep(model='llama-7b', hardware='a100-80gb', prompt_len='10000..12000', "
        "method='kvr:p=8,partition=search')",
        "kvcast.simulate_serving(model='llama-7b', hardware='a100-80gb', engine='vllm', "
        "arrivals='poisson:rate=2', num_requests=10**7, prompt_lens=500, output_lens=200)",
    ],
)
def test_ctrl_c_ends_a_call_and_the_next_one_works(call):
    code = (
        "import kvcast, sys\n"
        "print('ready', flush=True)\n"
        f"try:\n    {call}\nexcept KeyboardInterrupt:\n    print('stopped', flush=True)\n"
        "print(kvcast.estimate(model='llama-7b', hardware='a100-80gb').fits)\n"
        "print(len(kvcast.sweep(model='llama-7b', hardware='a100-80gb', quiet=True)))\n"
        "print(kvcast.simulate_prefill(model='llama-7b', hardware='a100-80gb', devices=2,"
        " link_gb_per_s=50, schedule='kvr').ttft_s > 0)\n"
    )
    # A shell's background jobs ignore Ctrl-C.
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert child.stdout.readline() == "ready\n"
    time.sleep(1.5)
    child.send_signal(signal.SIGINT)
    started = time.monotonic()
    output, _ = child.communicate(timeout=60)
    assert output.split() == ["stopped", "True", "1", "True"]
    assert time.monotonic() - started < 20


def test_a_call_costs_little_more_than_its_work():
    """A request that is refused before any work: building the flags, parsing, translating."""
    def refused():
        with pytest.raises(kvcast.Error):
            kvcast.hardware_show("h200", nothing=1)

    refused()
    best = min(_seconds(refused) for _ in range(200))
    print(f"a call: {1e6 * best:.0f} us")
    assert best < 0.005


def _seconds(work):
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


FUNCTIONS = [name for name in kvcast.__all__ if inspect.isfunction(getattr(kvcast, name))]


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "command"])
def test_docstrings_say_what_is_returned(name):
    assert "Returns" in getattr(kvcast, name).__doc__


def test_an_empty_value_takes_no_other_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for keywords in (dict(csv="", batch=[1, 2]), dict(csv=[], batch=2), dict(spec="", batch=2)):
        with pytest.raises(kvcast.Error, match="got an empty text"):
            kvcast.sweep(**LLAMA, quiet=True, **keywords)
    with pytest.raises(kvcast.Error, match="--prompt-len: got no value"):
        kvcast.estimate(**LLAMA, prompt_len=True, output_len=5)
    with pytest.raises(kvcast.Error, match="--csv: got no value"):
        kvcast.sweep(**LLAMA, csv=True, spec=True)
    with pytest.raises(kvcast.Error, match="--breakdown: got 'yes', expected True or False"):
        kvcast.estimate(**LLAMA, breakdown="yes")
    assert os.listdir(tmp_path) == []


def test_an_empty_axis_is_no_default():
    for keywords in (dict(batch=[]), dict(prompt_len=numpy.array([])), dict(hardware=[])):
        with pytest.raises(kvcast.Error, match="got an empty list, expected at least one value"):
            kvcast.sweep(**{**LLAMA, **keywords}, quiet=True)
    assert kvcast.estimate(**LLAMA, set={}).ttft_s > 0


def test_axes_may_be_anything_that_is_gone_through_once():
    rows = [dict.fromkeys([1, 2]).keys(), (n for n in (1, 2)), frozenset([1, 2]), numpy.array([1, 2])]
    for batch in rows:
        assert list(kvcast.sweep(**LLAMA, batch=batch, quiet=True)["batch"]) == [1, 2]


def test_configs_as_dicts_have_names_and_no_paths(tmp_path):
    config = {"model_type": "llama", "vocab_size": 320, "hidden_size": numpy.int64(64),
              "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    wider = types.MappingProxyType(dict(config, intermediate_size=256))
    table = kvcast.sweep(model=[config, wider], hardware="h200", quiet=True)
    assert list(table["model"]) == ["llama", "llama (2)"]
    front = kvcast.choose_frontier(model=[config, wider], hardware="h200", quiet=True)
    assert "/" not in repr(front.to_dict())
    with pytest.raises(kvcast.Error) as e:
        kvcast.estimate(model=dict(config, hidden_size="wide", name="a, b"), hardware="h200")
    assert str(e.value).startswith("a-b.json: /hidden_size: ")
    # The same dict is the same file, for whoever looks it up or goes on.
    file = tmp_path / "table.json"
    kvcast.partition_table(model=config, hardware="h200", devices=2, prompt_len=[64, 128], output=file,
                           quiet=True)
    found = kvcast.partition_lookup(table=file, model=config, devices=2, prompt_len=100, quiet=True)
    assert sum(found.partition_tokens) == 100


def test_a_forked_process_does_not_wait_for_threads_that_it_lacks():
    code = ("import os, kvcast\n"
            "keywords = dict(model='tests/oracle/llama_mha', tokens=[1, 2], output_len=2)\n"
            "kvcast.run(**keywords, threads=2)\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    kvcast.run(**keywords, threads=1)\n"
            "    try:\n"
            "        kvcast.run(**keywords, threads=2)\n"
            "    except kvcast.RunError as e:\n"
            "        os._exit(0 if 'forked' in str(e) else 1)\n"
            "    os._exit(2)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n", done.stderr


@pytest.mark.parametrize(
    "call, line",
    [
        (lambda: kvcast.command(""), "a command: got '', expected a name such as 'estimate'"),
        (lambda: kvcast.command(" "), "a command: got ' ', expected a name such as 'estimate'"),
        (lambda: kvcast.command(None), "a command: got None, expected a name such as 'estimate'"),
        (lambda: kvcast.convert_prune("m", None, keep=1),
         "convert prune: got None, expected a text or a path"),
        (lambda: kvcast.run("m", prompt=["Hi", "you"]),
         "--prompt: got ['Hi', 'you'], expected a text"),
    ],
)
def test_what_is_no_text_is_refused(call, line):
    with pytest.raises(kvcast.Error) as e:
        call()
    assert str(e.value) == line


def test_bytes_are_the_text_that_they_hold():
    assert kvcast.model_show(b"llama-7b").name == "llama-7b"


def test_text_without_utf_8_is_refused_in_a_line():
    with pytest.raises(kvcast.Error, match="no such|cannot be opened|unknown model") as e:
        kvcast.estimate(model=os.fsdecode(b"m\xff"), hardware="h200")
    assert "\n" not in str(e.value)
    with pytest.raises(kvcast.Error, match="UTF-8"):
        kvcast.estimate(model="\ud800", hardware="h200")


def test_stubs_name_what_there_is():
    stub = (Path(kvcast.__file__).with_suffix(".pyi")).read_text()
    for name in kvcast.__all__:
        assert f"def {name}(" in stub or f"class {name}(" in stub or f" as {name}\n" in stub, name
    assert kvcast.__version__[0].isdigit()


def test_a_notebook_shows_progress_which_a_pipe_does_not():
    code = """
import sys, types
if sys.argv[1] == "notebook":
    sys.modules["ipykernel"] = types.ModuleType("ipykernel")
import kvcast
kvcast.simulate_serving(model="llama-3.1-8b", hardware="h100-sxm", engine="vllm",
                        arrivals="poisson:rate=8", prompt_lens=1000, output_lens=20, num_requests=50)
kvcast.simulate_serving(model="llama-3.1-8b", hardware="h100-sxm", engine="vllm", slo={"ttft": 1},
                        arrivals="poisson:rate=8", prompt_lens=1000, output_lens=20, num_requests=50,
                        find_max_rate=True)
"""
    environment = {k: v for k, v in os.environ.items() if k != "KVCAST_PROGRESS"}
    shown = {}
    for where in ("notebook", "pipe"):
        ran = subprocess.run([sys.executable, "-c", code, where], env=environment, check=True,
                             capture_output=True, text=True)
        shown[where] = ran.stderr
    assert "1 done" in shown["notebook"]
    assert "rates tried: 1" in shown["notebook"]
    assert "tried" not in shown["pipe"] and "done" not in shown["pipe"]
