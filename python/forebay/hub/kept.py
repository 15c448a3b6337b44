"""The rows and columns of its files that a configuration keeps: `columns` and `filters` in a dataset's card.

They mean the same as in `datasets`, whose Parquet builder takes them from the card. Arguments of the call replace them.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from forebay.exceptions import ColumnNotFoundError, DataError, QueryError, SettingError, VersionError

if TYPE_CHECKING:
    from forebay.dataset import Dataset


@dataclass(frozen=True)
class Kept:
    """The rows and columns that a card names; by default, all are kept."""

    columns: Any = None
    filters: Any = None
    what: str = ""
    """The card and configuration, for messages."""

    def rows_of(self, dataset: Dataset) -> Dataset:
        """Returns a dataset with the kept rows, filtered by the values in its files.

        Raises:
            DataError: the filters are invalid for these files.
            VersionError: pyarrow is missing.
        """
        if self.filters is None:
            return dataset
        if not isinstance(self.filters, list):
            form = 'a list of conditions such as `[size, "<", 3]`'
            raise self._wrong(f"filters: expected {form}, got {self.filters!r}", "filters")
        try:
            from forebay.hf.filters import HINT, to_exact_sql

            text, parameters = to_exact_sql(self.filters, dataset.schema, dataset._native.mixed_columns)
            return dataset.filter(text, params=parameters)
        except ImportError as error:
            raise VersionError(f"{self.what}: filters: they need pyarrow: `pip install pyarrow`") from error
        except (SettingError, QueryError, ColumnNotFoundError) as error:
            raise self._wrong(str(error).removesuffix(f"; {HINT}"), "filters") from error

    def columns_of(self, dataset: Dataset) -> list[str] | None:
        """Returns the kept columns, in the order of the files; None for all.

        Raises:
            DataError: `columns` is not a list of names, or one of them is not in the files.
        """
        if self.columns is None:
            return None
        found = dataset.column_names
        if not isinstance(self.columns, list) or not all(isinstance(name, str) for name in self.columns):
            raise self._wrong(f"columns: expected a list of names, got {self.columns!r}", "columns")
        for name in self.columns:
            if name not in found:
                near = get_close_matches(name, found, 3) or found
                raise self._wrong(f"columns: no column `{name}` in the files; they have {', '.join(near)}", "columns")
        return [name for name in found if name in self.columns]

    def _wrong(self, words: str, name: str) -> DataError:
        return DataError(f"{self.what}: {words}; `{name}` of the call take their place")
