"""kvcast forecasts time to first token, time per output token, cache and memory of language models,
and what key-value-cache methods change.

    >>> import kvcast
    >>> kvcast.estimate(model="llama-7b", hardware="a100-80gb", prompt_len=4096).ttft_s

Every function is a command of the program `kvcast`: keywords are its flags (`prompt_len=4096` is
`--prompt-len 4096`), and results have the keys that `--json` prints, in base units: seconds, bytes,
FLOPs (a multiply-add is 2), tokens. A wrong request raises `Error` with the line that the program
prints, a fault of a run `RunError`. Functions may be called from several threads at once.
"""

import functools
import hashlib
import json
import logging
import os
import re
import stat
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from kvcast._results import Graph, Operator, Result, Table

__all__ = [
    "Error", "Graph", "KvcastWarning", "Operator", "Result", "RunError", "Table", "calibrate",
    "choose_devices", "choose_frontier", "choose_keep_rate", "choose_mlkv", "choose_serving",
    "choose_slim", "command", "convert_kvp", "convert_mlkv", "convert_prune", "convert_quantize",
    "convert_slim", "engine_list", "engine_show", "estimate", "graph", "hardware_list",
    "hardware_show", "model_list", "model_show", "partition_lookup", "partition_search",
    "partition_table", "platform_list", "platform_show", "reproduce", "run", "simulate_collective",
    "simulate_prefill", "simulate_serving", "sweep", "train", "validate",
]


def _load():
    """The extension. GNU OpenMP reads from the environment, once, how long threads spin for work;
    its own default makes a shared machine slow (cli/main.cpp says more)."""
    limit = "GOMP_SPINCOUNT"
    is_ours = limit not in os.environ and "OMP_WAIT_POLICY" not in os.environ
    if is_ours:
        os.environ[limit] = "1000"
    try:
        from kvcast import _core
    finally:
        if is_ours:
            del os.environ[limit]
    return _core


_core = _load()
__version__ = _core.build_facts().split()[1]
# Standard error is no terminal in a notebook, but goes to the cell.
if "ipykernel" in sys.modules:
    os.environ.setdefault("KVCAST_PROGRESS", "1")
_data = Path(__file__).with_name("data")
_log = logging.getLogger("kvcast")
_takes_values = 2


class Error(ValueError):
    """The request is wrong: where, what was found, what would be right."""


class RunError(RuntimeError):
    """A right request failed while it ran: a full disk, an unreadable device."""


class KvcastWarning(UserWarning):
    """What the program prints as a warning."""


@functools.lru_cache(maxsize=None)
def _flags():
    return _core.flags()


def _is_list(value):
    if isinstance(value, (str, bytes, Mapping, os.PathLike)):
        return False
    return value.ndim > 0 if hasattr(value, "ndim") else isinstance(value, Iterable)


def _is_config(value):
    """Those of transformers 5 can be gone through like lists; a column of pandas has to_dict too."""
    return hasattr(value, "to_dict") and not isinstance(value, Mapping) and not hasattr(value, "ndim")


def _text(value):
    """A value as the command line has it; lists of lists are separated by semicolons."""
    if _is_list(value):
        parts = list(value)
        return (";" if any(_is_list(part) for part in parts) else ",").join(map(_text, parts))
    if isinstance(value, Mapping):
        return ",".join(_pairs(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if getattr(value, "ndim", None) == 0:  # a number of numpy's
        return _text(value.item())
    if isinstance(value, bytes):
        return os.fsdecode(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _pairs(mapping):
    """Entries of a config as JSON where text has no other form."""
    def text(value):
        return _json(value) if value is None or isinstance(value, Mapping) else _text(value)

    return [f"{key}={text(value)}" for key, value in mapping.items()]


def _json(value):
    def plain(other):
        if isinstance(other, Mapping):
            return dict(other)
        if hasattr(other, "tolist"):  # numpy's
            return other.tolist()
        return float(other) if hasattr(other, "__float__") else str(other)

    return json.dumps(value, default=plain)


@functools.lru_cache(maxsize=None)
def _folder_of_files():
    """This user's alone, and the same in each process; the system cleans it."""
    folder = Path(tempfile.gettempdir()) / f"kvcast-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            return Path(tempfile.mkdtemp(prefix="kvcast-"))  # for this process
        folder.chmod(0o700)
    return folder


class _Files:
    """Models and devices that are given as dicts, as files. Their paths follow from what is in them,
    so that a sweep goes on from the CSV that another process has begun."""

    def __init__(self):
        self._names = {}  # by path

    def path_of(self, keyword, value):
        """The value, or the path of a file with it."""
        if _is_config(value):
            value = value.to_dict()
        if not isinstance(value, Mapping):
            return value
        name = value.get("_name_or_path") or value.get("name") or value.get("model_type")
        name = str(name or keyword).rstrip("/").rsplit("/", 1)[-1]
        name = re.sub(r"[^A-Za-z0-9_.+-]+", "-", name).strip("-")[:100] or keyword
        content = _json(dict(value)).encode()
        place = _folder_of_files() / hashlib.sha256(content).hexdigest()[:16]
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{name}.json"
        if not path.exists():
            descriptor, whole = tempfile.mkstemp(dir=place)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(whole, path)
        others = sum(p != str(path) and Path(p).stem == name for p in self._names)
        self._names.setdefault(str(path), f"{name} ({others + 1})" if others else name)
        return path

    def in_words(self, line):
        """A line with the names of files only."""
        for path in self._names:
            line = line.replace(path, Path(path).name)
        return line

    def in_results(self, value):
        """Names in place of paths: of models and devices in what is returned."""
        if not self._names:
            return value
        if isinstance(value, str):
            for path, name in self._names.items():
                value = value.replace(path, name)
        elif isinstance(value, dict):
            for key, one in value.items():
                value[key] = self.in_results(one)
        elif isinstance(value, list):
            value[:] = map(self.in_results, value)
        elif isinstance(value, tuple):  # a column of words
            return value[0], [self.in_results(word) for word in value[1]]
        return value


def _words(command, positional, keywords, files):
    if not isinstance(command, str) or not command.split():
        raise Error(f"a command: got {command!r}, expected a name such as 'estimate'")
    for value in positional:
        if value is None or isinstance(value, bool):
            raise Error(f"{command}: got {value!r}, expected a text or a path")
    known = _flags().get(command, {})
    words = command.split() + [_text(files.path_of("model", value)) for value in positional]
    if "data" not in keywords and "KVCAST_DATA" not in os.environ and _data.is_dir():
        words.append(f"--data={_data}")
    if "--json" in known and "json" not in keywords:
        words.append("--json")
    for keyword, value in keywords.items():
        if getattr(value, "ndim", None) == 0:  # a number of numpy's
            value = value.item()
        if value is None or value is False:
            continue
        flag = "--" + keyword.strip("_").replace("_", "-")
        takes = known.get(flag)  # None: the program says that there is no such flag
        if takes == 0 and value is not True:
            raise Error(f"{flag}: got {value!r}, expected True or False")
        if value is True:
            if takes:
                raise Error(f"{flag}: got no value, expected one")
            words.append(flag)
            continue
        if keyword.endswith("prompt") and not isinstance(value, (str, bytes)):
            raise Error(f"{flag}: got {value!r}, expected a text")
        if keyword in ("model", "hardware", "base", "auxiliary", "platform"):
            if _is_list(value) and not _is_config(value):
                value = [files.path_of(keyword, one) for one in value]
            else:
                value = files.path_of(keyword, value)
        if takes == _takes_values and isinstance(value, Mapping):
            value = _pairs(value)
        values = [value]
        if takes == _takes_values and _is_list(value):
            values = list(value)
            if not values and not isinstance(keywords[keyword], Mapping):
                raise Error(f"{flag}: got an empty list, expected at least one value")
        words += [f"{flag}={_text(one)}" for one in values]
    return list(map(_encoded, words))


def _encoded(word):
    """Paths may be of other bytes than UTF-8."""
    try:
        return os.fsencode(word)
    except UnicodeEncodeError:
        raise Error(f"{word!r}: got text that has no UTF-8, expected some that has") from None


def _depth_of_caller():
    """As warnings.warn counts it where it is called: 1 is the caller of this function."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals is globals():
        depth, frame = depth + 1, frame.f_back
    return depth


def _call(command, positional=(), **keywords):
    """(the JSON or None, columns or None, text) of a command."""
    _check_fork(command, keywords)
    files = _Files()
    words = _words(command, positional, keywords, files)
    try:
        document, table, text, messages = _core.run(words, Result, Error, RunError)
    except (Error, RunError) as e:
        raise type(e)(files.in_words(str(e))) from None
    for line, is_warning in messages:
        if is_warning:
            warnings.warn(files.in_words(line), KvcastWarning, stacklevel=_depth_of_caller())
        else:
            _log.info("%s", files.in_words(line))
    return files.in_results(document), files.in_results(table), files.in_results(text)


_executes = {"run", "train", "validate", "validate quality", "validate kvp", "calibrate",
             "convert slim", "convert kvp"}
_has_executed = _is_forked = False


def _after_fork():
    global _is_forked
    _is_forked = _has_executed


os.register_at_fork(after_in_child=_after_fork)


def _check_fork(command, keywords):
    """A process that is forked has none of the threads that compute, and would wait for them."""
    global _has_executed
    takes_threads = "--threads" in _flags().get(command, {})
    if command not in _executes or takes_threads and str(keywords.get("threads")) == "1":
        return
    if _is_forked:
        raise RunError(f"{command}: this process was forked from one whose threads had computed; "
                       "expected multiprocessing.get_context('spawn')" +
                       (", or threads=1" if takes_threads else ""))
    _has_executed = True


def command(name, *positional, **flags):
    """Any command of the program: `command("estimate", model=..., hardware=...)`. Its JSON as a
    `Result` or a list of them; the text that it prints where it has no JSON."""
    document, _, text = _call(name, positional, **flags)
    return text if document is None else document


def estimate(model=None, hardware=None, **flags):
    """One request: `kvcast estimate`.

    model     a catalog name, a path, the content of a config.json, or a transformers config
    hardware  a catalog name, a path, or the content of a hardware file; without it this machine,
              once `calibrate` has run
    flags     method="plain", batch=1, prompt_len=1024 [tokens], output_len=128 [tokens],
              attention="tiled", engine="ideal", tp=1, pp=1, breakdown=True, ...;
              dtype: without it the type that the model is published in
    Returns   ttft_s, tpot_s [s]; prefill_flops, decode_flops_per_token [FLOP]; kv_cache_bytes,
              weight_bytes, peak_memory_bytes [bytes]; fits; bound; ttft_speedup, ...
    With train=True, of one step of training: step_s [s], tokens_per_s, mfu, peak_memory_bytes, ...
    """
    return command("estimate", model=model, hardware=hardware, **flags)


def sweep(model=None, hardware=None, **flags):
    """The same over a grid: `kvcast sweep`. An axis is a list or the program's own text:
    `prompt_len="1k..128k:x2"`, `set={"num_key_value_heads": [1, 8]}`.

    Returns a `Table` with a row for each point, in the order and with the columns of the program's
    CSV. With csv=FILE the rows go to the file and a summary is returned; with dry_run=True the
    number of points.
    """
    flags.pop("json", None)
    flags["csv"] = None if flags.get("csv") is False else flags.get("csv")
    is_summary = flags["csv"] is not None or bool(flags.get("dry_run"))
    document, columns, _ = _call(
        "sweep", model=model, hardware=hardware, json=is_summary or None, **flags
    )
    return document if columns is None else Table(columns)


def simulate_prefill(model=None, hardware=None, **flags):
    """One prompt on several devices: `kvcast simulate prefill`. flags: tp, pp, ep, dp or
    method="kvr:p=4", platform, and those of `estimate`; or schedule="tsp" or "kvr", devices,
    partition="even", "search" or tokens of each device, link_gb_per_s [1e9 bytes/s],
    link_latency_s [s]. prompt_len, ... Returns ttft_s, makespan_s, finish_s [s, by device],
    partition_tokens, message_bytes, messages, events."""
    return command("simulate prefill", model=model, hardware=hardware, **flags)


def simulate_serving(model=None, hardware=None, **flags):
    """A queue of requests: `kvcast simulate serving`. flags: requests=FILE, or arrivals=
    "poisson:rate=1", prompt_lens, output_lens [tokens]; engine, scheduler, slo={"ttft": s, "tpot":
    s}. Returns requests, finished, duration_s [s], request_throughput [1/s],
    output_token_throughput [tokens/s], ttft_s, tpot_s, itl_s, e2e_s [s; mean, p50, p90, p95, p99],
    goodput_requests_per_s, ..."""
    return command("simulate serving", model=model, hardware=hardware, **flags)


def simulate_collective(**flags):
    """An exchange of messages among devices: `kvcast simulate collective`. flags:
    operation="all_reduce", devices, platform, bytes [a list, or text such as "1 MiB"], library.
    Returns rows: bytes, time_s, speed_of_light_s [s], algorithm, measured, bus_bytes_per_s
    [bytes/s]."""
    return command("simulate collective", **flags)


def partition_search(model=None, hardware=None, **flags):
    """The best split of a prompt over devices: `kvcast partition search`. Returns partition_tokens,
    partition_boundaries [tokens], ttft_s, lower_bound_s [s], evaluations."""
    return command("partition search", model=model, hardware=hardware, **flags)


def partition_table(model=None, hardware=None, **flags):
    """Such splits over prompt lengths: `kvcast partition table`. Returns settings and entries: context
    [tokens], devices, partition_tokens [tokens of each device], ttft_s [s], ..."""
    return command("partition table", model=model, hardware=hardware, **flags)


def partition_lookup(*positional, **flags):
    """A split interpolated from a table: `kvcast partition lookup`. flags: table=FILE of
    `partition_table`, devices, prompt_len [tokens], verify=True. Returns partition_tokens,
    partition_boundaries [tokens], ttft_s, lower_bound_s [s], ..."""
    return command("partition lookup", *positional, **flags)


def choose_slim(model=None, hardware=None, **flags):
    """Slim attention's options, ranked: `kvcast choose slim`. Returns rows: method, tpot_s, ttft_s [s],
    tpot_speedup, kv_cache_bytes, peak_memory_bytes [bytes], fits, ..."""
    return command("choose slim", model=model, hardware=hardware, **flags)


def choose_mlkv(model=None, hardware=None, **flags):
    """MLKV's layers and heads, ranked: `kvcast choose mlkv`. Returns rows: kv_layers, kv_heads,
    kv_cache_bytes, peak_memory_bytes [bytes], largest_batch, tpot_s [s], ..."""
    return command("choose mlkv", model=model, hardware=hardware, **flags)


def choose_keep_rate(model=None, hardware=None, **flags):
    """How much of the prompt to keep: `kvcast choose keep-rate`. flags: speculator=MODEL, and keep or
    target_speedup. Returns choice and rows: keep, kept_tokens, ttft_s [s], ttft_speedup, overhead_s
    [s], kv_cache_bytes [bytes], fits."""
    return command("choose keep-rate", model=model, hardware=hardware, **flags)


def choose_frontier(model=None, hardware=None, **flags):
    """The choices of a sweep that nothing else beats: `kvcast choose frontier`. Axes as in `sweep`;
    goals=["ttft_s", "peak_memory_bytes"], limits={"ttft_s": 2}. Returns rows, with the columns
    of `sweep` and on_front, and those that are rejected."""
    return command("choose frontier", model=model, hardware=hardware, **flags)


def choose_devices(model=None, hardware=None, **flags):
    """How many devices and which parallelism: `kvcast choose devices`. Returns devices and rows:
    devices, ttft_s [s], ttft_speedup, peak_memory_bytes [bytes], fits, partition_tokens [tokens of
    each device], ..."""
    return command("choose devices", model=model, hardware=hardware, **flags)


def choose_serving(model=None, hardware=None, **flags):
    """A server's options under an objective: `kvcast choose serving`. slo={"ttft": s, "tpot": s}.
    Returns rows: server, scheduler, devices, max_rate [requests/s], ttft_mean_s, tpot_mean_s [s],
    on_front, ..."""
    return command("choose serving", model=model, hardware=hardware, **flags)


def convert_slim(source, output, **flags):
    """A checkpoint for Slim attention: `kvcast convert slim IN OUT`. flags: option="auto",
    max_error=0.01, calibration_prompt=TEXT, ... Returns layers (chosen, relative_error), logit_error,
    kv_cache_ratio, ..."""
    return command("convert slim", source, output, **flags)


def convert_mlkv(source, output, **flags):
    """A checkpoint with shared KV heads: `kvcast convert mlkv IN OUT`. flags: kv_layers, kv_heads,
    merge="mean", widen="preserve". Returns owners [the layers that keep keys and values],
    merged_layers, parameters_after, kv_cache_ratio, ..."""
    return command("convert mlkv", source, output, **flags)


def convert_prune(source, output, **flags):
    """A checkpoint with fewer layers: `kvcast convert prune IN OUT`. flags: keep=0.5 [share of the
    layers] or [0, 1, 5]. Returns kept_layers, parameters_after, kv_cache_ratio, ..."""
    return command("convert prune", source, output, **flags)


def convert_quantize(source, output, **flags):
    """A checkpoint in another element type: `kvcast convert quantize IN OUT`. flags: type="q8_0",
    "q4_0", "q4_k_m", "bf16" or "fp16"; allow_requantize. Returns bytes_before, bytes_after [bytes],
    types (from, to, tensors, mean_squared_error), ..."""
    return command("convert quantize", source, output, **flags)


def convert_kvp(*positional, **flags):
    """A checkpoint for KV Prediction: `kvcast convert kvp OUT`. flags: base, auxiliary, and fit=FILE or
    identity=True; window=512 [tokens], ... Returns layer_map, fitted_tokens, layers and positions
    (errors of held-out keys and values), parameters, ..."""
    return command("convert kvp", *positional, **flags)


def validate(**flags):
    """Forecasts against measurements: `kvcast validate`. flags: measurements=FILE, or measure=True.
    Returns rows (predicted, measured [s or bytes], relative_error) and their summary (mape,
    worst)."""
    return command("validate", **flags)


def calibrate(**flags):
    """A hardware file of this machine by micro-benchmarks: `kvcast calibrate`. Without
    output=FILE.json it becomes the default of hardware. flags: quick, rounds, threads, force.
    Returns the tables that the program prints, as text with units."""
    return command("calibrate", **flags)


def reproduce(*tables, **flags):
    """The papers' tables beside what kvcast computes: `kvcast reproduce`. Returns rows (source,
    cell, published, ours, relative_error) and a summary."""
    return command("reproduce", *tables, **flags)


def model_show(model, **flags):
    """One model: `kvcast model show`. Returns parameters, hidden_size, num_hidden_layers,
    kv_cache_bytes_per_token [bytes], weight_bytes [bytes], ..."""
    return command("model show", model, **flags)


def model_list():
    """The catalog's models, a row each: `kvcast model list`. Returns name,
    parameters, hidden_size, num_hidden_layers, kv_cache_bytes_per_token [bytes], ... of each."""
    return command("model list")


def hardware_show(hardware, **flags):
    """One device: `kvcast hardware show`. Returns values with their sources: peak_flops_per_second
    [FLOP/s], memory_bandwidth_bytes_per_s [bytes/s], memory_capacity_bytes [bytes], ..."""
    return command("hardware show", hardware, **flags)


def hardware_list():
    """The catalog's devices, a row each: `kvcast hardware list`. Returns name,
    peak_flops_per_second [FLOP/s], memory_capacity_bytes [bytes], ... of each."""
    return command("hardware list")


def engine_show(engine, **flags):
    """One engine: `kvcast engine show`. Returns version, attention, launches [the operators that
    one kernel computes], times of the host and rules of the scheduler: text with units; sources."""
    return command("engine show", engine, **flags)


def engine_list():
    """The engines, a row each: `kvcast engine list`. Returns name, description, versions and
    attention of each."""
    return command("engine list")


def platform_show(platform, **flags):
    """One machine or cluster: `kvcast platform show`. Returns devices,
    topology, bandwidth and latency of its links, and libraries: text with units, and sources."""
    return command("platform show", platform, **flags)


def platform_list():
    """The machines and clusters, a row each: `kvcast platform list`. Returns name, hardware,
    nodes, devices_per_node, topology, ... of each."""
    return command("platform list")


def train(**flags):
    """Trains on this CPU: `kvcast train`. flags: model, text=FILE, output=FOLDER, steps, batch,
    seq_len [tokens], ... Returns steps, loss, validation_loss [nats], tokens_per_s, step_s [s]."""
    return command("train", **flags)


def run(model=None, prompt=None, tokens=None, logits=None, **flags):
    """Runs a checkpoint on this CPU: `kvcast run`.

    model    a folder with config.json and safetensors, or a GGUF file
    prompt   text, or
    tokens   token ids, or a list of them for each sequence
    logits   True: returned as an array; a path: written there
    flags    output_len=128 [tokens], method="plain", count=True, threads=N, ...
    Returns  generated_tokens, text; ttft_s, tpot_s [s]; kv_cache_bytes [bytes]; analytic_flops,
             counted_flops [FLOP]; logits: float32 (float64 with dtype="fp64") [positions, vocab]
             of the prompt, a batch before them if there are several sequences;
             peak_memory_bytes is that of the whole Python process
    """
    flags.pop("json", None)
    if getattr(logits, "ndim", None) == 0:  # a number of numpy's
        logits = logits.item()
    if logits is not True:
        return command("run", model=model, prompt=prompt, tokens=tokens, logits=logits, **flags)
    with tempfile.TemporaryDirectory(prefix="kvcast-") as folder:
        file = os.path.join(folder, "logits.safetensors")
        result = command("run", model=model, prompt=prompt, tokens=tokens, logits=file, **flags)
        result["logits"] = _read_logits(file)
    return result


def _read_logits(file):
    """The tensor `logits` of a safetensors file: 8 bytes of the header's length, a JSON header, the
    numbers."""
    import numpy

    content = Path(file).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    info = json.loads(content[8:begin])["logits"]
    dtype = {"F32": "<f4", "F64": "<f8"}[info["dtype"]]
    first, last = info["data_offsets"]
    numbers = numpy.frombuffer(content, dtype, (last - first) // int(dtype[-1]), begin + first)
    return numbers.reshape(info["shape"])


def graph(model, pass_="prefill", **flags):
    """The recorded operators of a pass: `kvcast model show --operators`. pass_: "prefill", "decode"
    (the first step) or "training"; flags: method, attention, dtype, batch, prompt_len [tokens], ...
    Returns a `Graph` of operators with their FLOPs and bytes at these sizes. Seconds on
    a device: the rows of `estimate(..., breakdown=True)`."""
    flags.pop("json", None)
    flags["operators"] = True
    document = command("model show", model, pass_=pass_, **flags)
    return Graph(document["name"], pass_, [Operator(row) for row in document["operators"]])
