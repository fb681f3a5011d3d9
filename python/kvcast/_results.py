"""What the functions of kvcast return."""

import numpy


class Result(dict):
    """A JSON object: keys are attributes too, `r.ttft_s` is `r["ttft_s"]`. Objects and lists of
    objects inside are alike."""

    __slots__ = ()

    def __getattr__(self, key):
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"no key '{key}'; there are {', '.join(self)}") from None

    def __dir__(self):
        return [*super().__dir__(), *self]

    def to_dict(self):
        """Plain dicts and lists."""
        return {key: _plain(value) for key, value in self.items()}

    def __repr__(self):
        width = max(map(len, self), default=0)
        lines = [f"  {key:<{width}}  {_short(value)}" for key, value in self.items()]
        return "\n".join([f"{type(self).__name__}:", *lines])


def _plain(value):
    if isinstance(value, Result):
        return value.to_dict()
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _short(value, most=70):
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return _cut(f"[{len(value)} rows: {', '.join(value[0])}]", most)
    if isinstance(value, numpy.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    return _cut(repr(_plain(value)), most)


def _cut(text, most):
    return text if len(text) <= most else text[: most - 3] + "..."


class Table:
    """Rows of a sweep as columns.

    `table["ttft_s"]` is a numpy array with an entry for each row: float64 for numbers, NaN where
    the program's CSV has an empty cell; objects for words (str, or bool for `fits`), None where it
    has one. Arrays of numbers are the sweep's own memory; those of words are made when they are
    first asked for.
    """

    def __init__(self, columns):
        self._columns = columns  # name: float64 array, or (indices, words)
        self._objects = {}  # arrays of words that were asked for
        self.columns = list(columns)
        first = next(iter(columns.values()), ())
        self._len = len(first[0] if isinstance(first, tuple) else first)

    def __len__(self):
        return self._len

    def __iter__(self):
        """Names of columns, as a dict has them."""
        return iter(self.columns)

    def keys(self):
        return list(self.columns)

    def __array__(self, *_, **__):
        """pandas.DataFrame(table) would make one column of the names."""
        raise TypeError("a Table: got a use as one array, expected table[name], to_pandas() or to_polars()")

    def __contains__(self, name):
        return name in self._columns

    def __getitem__(self, name):
        column = self._columns[name]
        if not isinstance(column, tuple):
            return column
        if name not in self._objects:
            codes, words = column
            if name == "fits":
                words = [word == "true" for word in words]
            choices = numpy.empty(len(words) + 1, dtype=object)
            choices[: len(words)] = words  # the last one, of index -1, stays None
            self._objects[name] = choices[codes]
        return self._objects[name]

    @property
    def columns_dict(self):
        """{name: array}; `pandas.DataFrame(table.columns_dict, copy=False)` copies no numbers."""
        return {name: self[name] for name in self.columns}

    def row(self, index):
        """One row as a `Result`, numbers as float."""
        cells = {name: self[name][index] for name in self.columns}
        return Result({k: v.item() if hasattr(v, "item") else v for k, v in cells.items()})

    def to_pandas(self):
        """A pandas.DataFrame; numbers are not copied, words become categories, `fits` a boolean that
        may be missing."""
        import pandas

        frame = {}
        for name in self.columns:
            column = self._columns[name]
            # Reasons in `error` may be there twice.
            if isinstance(column, tuple) and name not in ("fits", "error"):
                frame[name] = pandas.Categorical.from_codes(column[0], categories=column[1])
            else:
                frame[name] = self[name]
        if "fits" in frame:
            frame["fits"] = pandas.array(frame["fits"], dtype="boolean")
        return pandas.DataFrame(frame, copy=False)

    def to_polars(self):
        """A polars.DataFrame."""
        import polars

        def series(name, column):
            if not isinstance(column, tuple):
                return polars.Series(name, column)
            codes, words = column
            choices = polars.Series(name, [*words, None], dtype=polars.String)
            chosen = choices.gather(numpy.where(codes < 0, len(words), codes))
            return chosen == "true" if name == "fits" else chosen

        return polars.DataFrame([series(n, c) for n, c in self._columns.items()])

    def __arrow_c_stream__(self, requested_schema=None):
        """For polars.DataFrame(table), pyarrow.table(table) and others; by polars or pyarrow."""
        try:
            frame = self.to_polars()
        except ImportError:
            import pyarrow

            frame = pyarrow.Table.from_pandas(self.to_pandas(), preserve_index=False)
        return frame.__arrow_c_stream__(requested_schema)

    def __dataframe__(self, *args, **kwargs):
        return self.to_pandas().__dataframe__(*args, **kwargs)

    def __repr__(self):
        shown = [n for n in ("model", "hardware", "method", "batch", "prompt_len", "ttft_s", "tpot_s",
                             "peak_memory_bytes", "error") if n in self._columns]
        rows = [shown] + [[_cell(self[n][i]) for n in shown] for i in range(min(len(self), 6))]
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows]
        lines += ["..."] if len(self) > 6 else []
        return "\n".join([*lines, f"{len(self)} rows x {len(self.columns)} columns"])


def _cell(value):
    if value is None or value != value:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e7 else f"{value:.4g}"


class Operator(Result):
    """name, label, layer (None outside layers), phase; flops [FLOP], bytes [bytes read and written];
    inputs, outputs: tensors with name, shape, dtype and storage. "#12" is the name of an
    intermediate result."""

    __slots__ = ()


class Graph:
    """The operators of a pass in an order in which they can run."""

    def __init__(self, model, pass_name, operators):
        self.model = model
        self.pass_name = pass_name
        self.operators = operators

    def __len__(self):
        return len(self.operators)

    def __iter__(self):
        return iter(self.operators)

    def __getitem__(self, index):
        return self.operators[index]

    @property
    def flops(self):
        """Of all operators, FLOP."""
        return sum(o.flops for o in self.operators)

    @property
    def bytes(self):
        """Of all operators, bytes."""
        return sum(o.bytes for o in self.operators)

    def __repr__(self):
        return (f"Graph: {self.pass_name} of {self.model}, {len(self)} operators, "
                f"{self.flops:.4g} FLOP, {self.bytes:.4g} bytes")
