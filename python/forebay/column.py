"""`Column`: one column of a dataset, read when its values are asked for."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from forebay.filters import identifier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.dataset import Dataset


class Column:
    """The values of one column, as in `datasets`. Returned by `ds["name"]`; reads no other column.

    Iterating it streams all values in the dataset's order, also a shuffled one. `column[key]` reads rows by number: it
    takes the keys of [Dataset](#Dataset.__getitem__), and the names of fields of structs. `numpy.asarray`,
    `pyarrow.chunked_array` and `polars.Series` take a column as a whole, without Python objects.

    Example:
        >>> size = ds["size"]
        >>> size[:3], len(size), 12 in size
        ([0, 3, 6], 1000, True)
        >>> sum(size)
        1498500
    """

    def __init__(self, dataset: Dataset, name: str) -> None:
        self._dataset = dataset.select_columns(name)
        self._name = name

    def __iter__(self) -> Iterator[Any]:
        """Yields the value of each row, in the dataset's format."""
        return map(itemgetter(self._name), self._dataset)

    def __getitem__(self, key: Any) -> Any:
        """Returns the value of one row, those of several, or the column of a field: `ds["meta"]["source"]`.

        Only the field's bytes are read.

        Raises:
            RowIndexError: a row number is out of range.
            SettingError: the dataset is shuffled, or the key has none of these forms.
            QueryError: the key is a text, and not the name of a field.
            ForebayError: as in `Dataset.__getitem__`.
        """
        if isinstance(key, str):
            field = "'" + key.replace("'", "''") + "'"
            query = f"SELECT {identifier(self._name)}[{field}] AS {identifier(key)} FROM dataset"  # noqa: S608 - quoted
            return Column(self._dataset.sql(query), key)
        return self._dataset[key][self._name]

    def __len__(self) -> int:
        return len(self._dataset)

    def __eq__(self, other: object) -> bool:
        """Whether the values are those of a list or of another column, as in `datasets`; reads them all."""
        return list(self) == list(other) if isinstance(other, Column | list) else NotImplemented

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # as of lists: reading them all is no hash

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Returns all values as a NumPy array, as pyarrow converts them."""
        import numpy as np

        # What was read just now belongs to nobody else: neither value of `copy` asks for more.
        return np.asarray(self._chunks().to_numpy(), dtype=dtype)

    def __arrow_array__(self, type: Any = None) -> Any:
        """Returns all values as a `pyarrow.ChunkedArray`, for `pyarrow.table({"name": column})`."""
        return self._chunks() if type is None else self._chunks().cast(type)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Exports all values as an Arrow stream of arrays."""
        return self._chunks().__arrow_c_stream__(requested_schema)

    def _chunks(self) -> Any:
        import pyarrow as pa

        return pa.table(self._dataset).column(self._name)

    def __repr__(self) -> str:
        return f"Column({self._name!r}) of {self._dataset!r}"
