"""A sweep's table is the program's CSV."""

import csv
import io
import math

import numpy
import pytest

import kvcast

WORDS = {"model", "hardware", "engine", "method", "attention", "elementwise", "weight_dtype",
         "activation_dtype", "cache_dtype", "mode", "sequence_parallel", "platform", "set", "bound",
         "ttft_bound", "tpot_bound", "error", "scheduler", "recompute"}


def same_as_csv(table, text):
    rows = list(csv.reader(io.StringIO(text)))
    assert table.columns == rows[0]
    assert len(table) == len(rows) - 1 > 0
    for i, name in enumerate(rows[0]):
        column = table[name]
        assert isinstance(column, numpy.ndarray) and len(column) == len(table)
        cells = [row[i] for row in rows[1:]]
        if name == "fits":
            assert list(column) == [{"true": True, "false": False, "": None}[c] for c in cells]
        elif name in WORDS:
            assert list(column) == [c or None for c in cells], name
        else:
            assert column.dtype == numpy.float64, name
            for value, cell in zip(column, cells):
                assert math.isnan(value) if cell == "" else value == float(cell), (name, cell)


GRIDS = [
    (dict(model="llama-7b", hardware="a100-80gb", prompt_len="1k..16k:x2", batch=[1, 3]),
     "--model llama-7b --hardware a100-80gb --prompt-len 1k..16k:x2 --batch 1,3"),
    # Methods with commas, several devices, words with quotes in the CSV.
    (dict(model=["llama-7b", "pythia-1.4b"], hardware=["a100-80gb", "h100-sxm"],
          method=["plain", "random-prune:keep=0.5", "lazyllm:begin=0.9,end=0.5"], tp=[1, 2],
          prompt_len=[512, 700], set={"num_hidden_layers": [8, 12]}),
     "--model llama-7b,pythia-1.4b --hardware a100-80gb,h100-sxm --method "
     "plain;random-prune:keep=0.5;lazyllm:begin=0.9,end=0.5 --tp 1,2 --prompt-len 512,700 --set "
     "num_hidden_layers=8,12"),
    # Rows with a reason: 7 devices do not divide the heads; counts overflow.
    (dict(model="llama-7b", hardware="h200", tp=[1, 7], batch=[1, 10**12], engine="vllm",
          prompt_len=[1000, 5000]),
     "--model llama-7b --hardware h200 --tp 1,7 --batch 1,1000000000000 --engine vllm "
     "--prompt-len 1000,5000"),
    (dict(model="llama-7b", hardware="a100-80gb", prompt_len="1..5000", shard="2/3", threads=2),
     "--model llama-7b --hardware a100-80gb --prompt-len 1..5000 --shard 2/3"),
    (dict(model="llama-7b", hardware="a100-80gb", train=True, batch=[1, 2],
          recompute=["none", "full"], dtype="bf16", seq_len=1024),
     "--model llama-7b --hardware a100-80gb --train --batch 1,2 --recompute none,full --dtype bf16 "
     "--seq-len 1024"),
    (dict(model="llama-7b", hardware="a100-80gb", serving=True, engine="vllm", prompt_lens=500,
          output_lens=20, num_requests=30, arrivals="poisson:rate=1", rate=[1, 4]),
     "--model llama-7b --hardware a100-80gb --serving --engine vllm --prompt-lens 500 "
     "--output-lens 20 --num-requests 30 --arrivals poisson:rate=1 --rate 1,4"),
]


@pytest.mark.parametrize("keywords, words", GRIDS, ids=[str(i) for i in range(len(GRIDS))])
def test_a_sweep_is_the_program_s_csv(program, keywords, words):
    done = program("sweep", "--quiet", *words.split())
    assert done.returncode == 0, done.stderr
    same_as_csv(kvcast.sweep(**keywords, quiet=True), done.stdout)


def test_errors_are_in_their_rows():
    table = kvcast.sweep(model="llama-7b", hardware="h200", tp=[1, 7], quiet=True)
    assert list(table["fits"]) == [True, None]
    assert table["error"][0] is None and "7" in table["error"][1]
    assert table.row(0).ttft_s == table["ttft_s"][0]
    assert "2 rows" in repr(table)


def test_with_csv_the_rows_are_in_the_file(tmp_path):
    file = tmp_path / "rows.csv"
    summary = kvcast.sweep(model="llama-7b", hardware="h200", batch=[1, 2], csv=file)
    assert summary.rows_written == 2
    assert len(file.read_text().splitlines()) == 3
    assert kvcast.sweep(model="llama-7b", hardware="h200", batch=[1, 2], dry_run=True).points == 2


def test_pandas_takes_the_numbers_as_they_are():
    pandas = pytest.importorskip("pandas")
    table = kvcast.sweep(model="llama-7b", hardware="h200", batch="1..64:x2", quiet=True)
    frame = table.to_pandas()
    assert numpy.shares_memory(frame["ttft_s"].to_numpy(), table["ttft_s"])
    assert list(frame["model"]) == ["llama-7b"] * 7 and frame["fits"].dtype == "boolean"
    plain = pandas.DataFrame(table.columns_dict, copy=False)
    with pytest.raises(TypeError, match="to_pandas"):
        pandas.DataFrame(table)
    assert numpy.shares_memory(plain["tpot_s"].to_numpy(), table["tpot_s"])


def test_polars_has_the_same_values():
    pytest.importorskip("polars")
    table = kvcast.sweep(model="llama-7b", hardware="h200", batch="1..64:x2", quiet=True)
    frame = table.to_polars()
    assert frame["ttft_s"].to_list() == list(table["ttft_s"])
    assert frame["model"].to_list() == ["llama-7b"] * 7


def test_frames_do_not_depend_on_what_was_looked_at():
    pytest.importorskip("pandas")
    table = kvcast.sweep(model="llama-7b", hardware="h200", batch=[1, 8], quiet=True)
    before = table.to_pandas()["hardware"].dtype
    repr(table), table["hardware"]
    assert table.to_pandas()["hardware"].dtype == before == "category"


def test_frames_with_and_without_errors_have_the_same_types():
    polars = pytest.importorskip("polars")
    good = kvcast.sweep(model="llama-7b", hardware="h200", quiet=True)
    both = kvcast.sweep(model="llama-7b", hardware="h200", tp=[1, 3], quiet=True)
    assert polars.concat([good.to_polars(), both.to_polars()]).height == 3
    assert polars.DataFrame(both)["fits"].to_list() == [True, None]
    assert good.to_pandas()["fits"].dtype == both.to_pandas()["fits"].dtype
