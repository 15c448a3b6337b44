"""Text and HTML for datasets and streams."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay import _lib
    from forebay.dataset import Dataset
    from forebay.loader import Stream
    from forebay.options import ShuffleOptions

MAX_COLUMNS = 20
"""The most columns listed by name."""

MAX_TEXT = 1000
"""The most characters shown of a filter; some filters are lists of a hundred thousand numbers."""


def dataset_text(dataset: Dataset) -> str:
    """Returns the number of kept rows, and the columns and their types."""
    lines = [f"Dataset({_summary(dataset)})", *_column_lines(dataset._native)]
    return "\n".join(lines + [f"  {line}" for line in _query(dataset)])


def result_text(columns: _lib.Dataset | _lib.Rows) -> str:
    """Returns how the rows of a query are read, and their columns and types."""
    how = "rows to be read once, by `pyarrow.table(result)`, `polars.DataFrame(result)`, ..."
    return "\n".join([f"QueryResult({how})", *_column_lines(columns)])


def dataset_html(dataset: Dataset) -> str:
    """Returns the same as a table."""
    columns = _columns(dataset._native)
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(kind)}</td></tr>" for name, kind in columns)
    query = "".join(f"<br><code>{escape(line)}</code>" for line in _query(dataset))
    head = "<thead><tr><th>column</th><th>type</th></tr></thead>"
    return f"<table>{head}<tbody>{rows}</tbody></table><p>Dataset: {escape(_summary(dataset))}{query}</p>"


def stream_html(stream: Stream[Any], text: str) -> str:
    """Returns the text of a stream, followed by its dataset."""
    return f"<p><code>{escape(text)}</code></p>{dataset_html(stream._dataset)}"


def _column_lines(native: _lib.Dataset | _lib.Rows) -> list[str]:
    columns = _columns(native)
    width = max((len(name) for name, _ in columns), default=0)
    return [f"  {name:{width}}  {kind}" for name, kind in columns]


def _columns(native: _lib.Dataset | _lib.Rows) -> list[tuple[str, str]]:
    columns = list(zip(native.column_names, native.column_types, strict=True))
    hidden = len(columns) - MAX_COLUMNS
    return columns if hidden <= 1 else [*columns[:MAX_COLUMNS], ("...", f"{hidden} more columns")]


def _summary(dataset: Dataset) -> str:
    native = dataset._native
    known, total = native.num_rows_known, native.num_rows_total
    rows = f"{total:,} rows" if known == total else f"{'?' if known is None else f'{known:,}'} of {total:,} rows"
    objects = "1 object" if native.num_objects == 1 else f"{native.num_objects:,} objects"
    columns = "1 column" if len(dataset.column_names) == 1 else f"{len(dataset.column_names):,} columns"
    return f"{rows}, {columns}, {objects}"


def _shuffle(shuffle: ShuffleOptions) -> str:
    drawn = "" if shuffle.weights is None else f", weights={shuffle.weights!r}"
    number = "" if shuffle.num_samples is None else f", num_samples={shuffle.num_samples}"
    return f"shuffle(seed={shuffle.seed}{drawn}{number})"


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def _query(dataset: Dataset) -> list[str]:
    lines = [f"filter({_shortened(text)!r})" for text in dataset._native.filters]
    lines += [f"select({_shortened(text)})" for text in dataset._native.restrictions]
    if dataset._shuffle is not None:
        lines.append(_shuffle(dataset._shuffle))
    if dataset._num_passes != 1:
        lines.append(f"repeat({'' if dataset._num_passes is None else dataset._num_passes})")
    if dataset._format is not None:
        lines.append(repr(dataset._format))
    return lines
