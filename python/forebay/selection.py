"""`Selection`: a set of rows of a dataset, to save, combine, sample and use elsewhere."""

from __future__ import annotations

from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from forebay import _lib
from forebay.exceptions import SettingError
from forebay.options import MOST_SEED, as_number, check_count, check_options, check_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Uri = str | PathLike[str]


class Selection:
    """A set of rows of one version of a dataset. Immutable; made by `Dataset.selection`.

    It takes one bit per row where rows are scattered, and a few bytes per run of rows where they are not. It is only
    valid for the same version of the same objects, opened by any path or URI.

    Example:
        >>> rust = ds.filter("language = 'rust'").selection()
        >>> large = ds.filter("size > 1500").selection()
        >>> rust & large
        Selection(167 of 1,000 rows)
        >>> len(ds.select(rust - large))
        167
    """

    def __init__(self, native: _lib.Selection) -> None:
        if not isinstance(native, _lib.Selection):
            raise TypeError("Selection: selections are made by `ds.selection()` and `forebay.Selection.load(uri)`")
        self._native = native

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self._native.num_rows

    def __len__(self) -> int:
        return self._native.num_rows

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the objects that hold the rows, as in states."""
        return self._native.fingerprint

    @property
    def query(self) -> list[str] | None:
        """The query that selected the rows; None for results of `&`, `|`, `-`, `^`, `sample` or `split`."""
        return self._native.query

    @property
    def part(self) -> tuple[int, int] | None:
        """Index and number of parts if it is the selection of a `Dataset.shard`; see `merge`."""
        return self._native.part

    def _combined(
        self, other: object, combine: Callable[[_lib.Selection, _lib.Selection], _lib.Selection]
    ) -> Selection:
        return Selection(combine(self._native, other._native)) if isinstance(other, Selection) else NotImplemented

    def __and__(self, other: Selection) -> Selection:
        """Rows in both selections."""
        return self._combined(other, _lib.Selection.and_)

    def __or__(self, other: Selection) -> Selection:
        """Rows in either selection."""
        return self._combined(other, _lib.Selection.or_)

    def __sub__(self, other: Selection) -> Selection:
        """Rows that are not in the other selection."""
        return self._combined(other, _lib.Selection.minus)

    def __xor__(self, other: Selection) -> Selection:
        """Rows in exactly one of the selections."""
        return self._combined(other, _lib.Selection.xor)

    def __eq__(self, other: object) -> bool:
        return self._native.equals(other._native) if isinstance(other, Selection) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equality compares rows, of which there may be many

    def sample(self, n: int, seed: int = 0) -> Selection:
        """Returns exactly `n` of the rows; every subset of that size is equally likely.

        The same seed gives the same rows, on every machine and in every release.

        Raises:
            SettingError: there are fewer than `n` rows.

        Example:
            >>> ds.selection().sample(100, seed=7)
            Selection(100 of 1,000 rows)
        """
        n = check_count("n", n, least=0)
        seed = check_count("seed", seed, least=0, most=MOST_SEED)
        return Selection(self._native.sample(n, seed))

    def split(self, fractions: Sequence[float], seed: int = 0) -> list[Selection]:
        """Divides the rows at random into disjoint parts, such as training and validation rows.

        Args:
            fractions: The fraction of rows in each part; they add up to 1. Sizes are exact; rows left by rounding go
                to the parts from which rounding took most.
            seed: The same seed gives the same parts, on every machine and in every release.

        Raises:
            SettingError: the fractions do not add up to 1.

        Example:
            >>> train, validation = ds.selection().split([0.9, 0.1], seed=7)
            >>> len(train), len(validation), len(train & validation)
            (900, 100, 0)
        """
        seed = check_count("seed", seed, least=0, most=MOST_SEED)
        try:
            numbers = [_fraction(fraction) for fraction in fractions]
        except (TypeError, OverflowError):
            what = f"expected numbers from 0 to 1, such as [0.9, 0.1], got {fractions!r}"
            raise SettingError(f"fractions: {what}") from None
        return [Selection(part) for part in self._native.split(numbers, seed)]

    @staticmethod
    def merge(parts: Iterable[Selection]) -> Selection:
        """Joins the selections of all shards, `Dataset.shard(i, n)` for every `i`, into that of the whole dataset.

        Raises:
            SelectionError: a part is missing, is given twice, or is of another dataset or query.

        Example:
            >>> wanted = ds.filter("size % 10 = 3")
            >>> parts = [wanted.shard(i, 4).selection() for i in range(4)]
            >>> Selection.merge(parts) == wanted.selection()
            True
        """
        try:
            given = list(parts)
        except TypeError:
            raise SettingError(f"parts: expected selections, got {parts!r}") from None
        for part in given:
            if not isinstance(part, Selection):
                raise SettingError(f"parts: expected selections, got {part!r}")
        return Selection(_lib.Selection.merge([part._native for part in given]))

    def save(self, uri: Uri, *, storage_options: Mapping[str, Any] | None = None) -> None:
        """Writes the selection to one object, atomically.

        Args:
            uri: A path, or a URI in any writable store.
            storage_options: As in `load_dataset`.

        Raises:
            StoreError: the store refuses to write it.

        Example:
            >>> path = corpus / "rust.selection"
            >>> ds.filter("language = 'rust'").selection().save(path)
            >>> len(ds.select(Selection.load(path)))
            334
        """
        self._native.save(*_place(uri, storage_options))

    @staticmethod
    def load(uri: Uri, *, storage_options: Mapping[str, Any] | None = None) -> Selection:
        """Reads a selection written by `save`.

        Raises:
            NotFoundError: there is no such object.
            SelectionError: the object is not a selection, or is damaged.
        """
        return Selection(_lib.Selection.load(*_place(uri, storage_options)))

    def __repr__(self) -> str:
        part = "" if self.part is None else f", part {self.part[0]} of {self.part[1]}"
        return f"Selection({self.num_rows:,} of {self._native.num_rows_total:,} rows{part})"


def _place(uri: Uri, storage_options: Mapping[str, Any] | None) -> tuple[str, dict[str, str]]:
    if not isinstance(uri, str | PathLike):
        raise SettingError(f"uri: expected a path or a URI, got {uri!r}")
    return check_text("uri", fspath(uri)), check_options(storage_options)


def _fraction(value: object) -> float:
    """Returns a number as a float, as the core takes it."""
    number = as_number(value)
    if number is None:
        raise TypeError
    return float(number)
