"""`Selection`: which rows of a dataset, as a thing to keep, combine, sample and carry elsewhere."""

from __future__ import annotations

from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from forebay import _lib
from forebay.exceptions import SettingError
from forebay.options import check_count, check_options, check_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Uri = str | PathLike[str]


class Selection:
    """Which rows of which version of a dataset. Immutable; made by `Dataset.selection`.

    It takes a bit for each row where rows are scattered, and a few bytes for each run of them where they are not. It
    fits the same version of the same objects only, by whatever path or URI they were opened.

    Example:
        >>> rust = ds.filter("language = 'rust'").selection()
        >>> large = ds.filter("size > 1500").selection()
        >>> rust & large
        Selection(167 of 1,000 rows)
        >>> len(ds.select(rust - large))
        167
    """

    def __init__(self, native: _lib.Selection) -> None:
        self._native = native

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self._native.num_rows

    def __len__(self) -> int:
        return self._native.num_rows

    @property
    def fingerprint(self) -> str:
        """The identity of the objects that its rows are of, as in states."""
        return self._native.fingerprint

    @property
    def query(self) -> list[str] | None:
        """What selected the rows; None where it is the result of `&`, `|`, `-`, `^`, `sample` or `split`."""
        return self._native.query

    @property
    def part(self) -> tuple[int, int] | None:
        """Number and number of parts where it is that of a `Dataset.shard`; see `merge`."""
        return self._native.part

    def _combined(
        self, other: object, combine: Callable[[_lib.Selection, _lib.Selection], _lib.Selection]
    ) -> Selection:
        return Selection(combine(self._native, other._native)) if isinstance(other, Selection) else NotImplemented

    def __and__(self, other: Selection) -> Selection:
        """Rows that are in both."""
        return self._combined(other, _lib.Selection.and_)

    def __or__(self, other: Selection) -> Selection:
        """Rows that are in either."""
        return self._combined(other, _lib.Selection.or_)

    def __sub__(self, other: Selection) -> Selection:
        """Rows that are not in the other."""
        return self._combined(other, _lib.Selection.minus)

    def __xor__(self, other: Selection) -> Selection:
        """Rows that are in one of them."""
        return self._combined(other, _lib.Selection.xor)

    def __eq__(self, other: object) -> bool:
        return self._native.equals(other._native) if isinstance(other, Selection) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal in its rows, of which there may be many

    def sample(self, n: int, seed: int = 0) -> Selection:
        """Returns exactly `n` of the rows, every subset of as many equally likely.

        The same rows for the same seed, on every machine and in every release.

        Raises:
            SettingError: there are fewer rows.

        Example:
            >>> ds.selection().sample(100, seed=7)
            Selection(100 of 1,000 rows)
        """
        n = check_count("n", n, least=0)
        seed = check_count("seed", seed, least=0, most=(1 << 64) - 1)
        return Selection(self._native.sample(n, seed))

    def split(self, fractions: Sequence[float], seed: int = 0) -> list[Selection]:
        """Deals all rows out at random, none of them twice: training and validation rows, for one.

        Args:
            fractions: Of the rows, which add up to 1. Sizes are exact; rows that rounding leaves go where most
                was cut off.
            seed: The same parts for the same seed, on every machine and in every release.

        Raises:
            SettingError: the fractions do not add up to 1.

        Example:
            >>> train, validation = ds.selection().split([0.9, 0.1], seed=7)
            >>> len(train), len(validation), len(train & validation)
            (900, 100, 0)
        """
        seed = check_count("seed", seed, least=0, most=(1 << 64) - 1)
        try:
            numbers = [_fraction(fraction) for fraction in fractions]
        except (TypeError, OverflowError):
            what = f"expected numbers from 0 to 1, such as [0.9, 0.1], got {fractions!r}"
            raise SettingError(f"fractions: {what}") from None
        return [Selection(part) for part in self._native.split(numbers, seed)]

    @staticmethod
    def merge(parts: Iterable[Selection]) -> Selection:
        """Returns the whole of which `parts` are all parts: what `Dataset.shard(i, n)` selected, for every `i`.

        Raises:
            SelectionError: a part is missing, is there twice, or is of another dataset or query.

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
        """Writes the selection to one object, whole or not at all.

        Args:
            uri: A path, or a URI of any store that can be written to.
            storage_options: As in `load_dataset`.

        Raises:
            StoreError: the store refuses it.

        Example:
            >>> path = corpus / "rust.selection"
            >>> ds.filter("language = 'rust'").selection().save(path)
            >>> len(ds.select(Selection.load(path)))
            334
        """
        self._native.save(*_place(uri, storage_options))

    @staticmethod
    def load(uri: Uri, *, storage_options: Mapping[str, Any] | None = None) -> Selection:
        """Reads a selection that `save` wrote.

        Raises:
            NotFoundError: nothing is there.
            SelectionError: it is not a selection, or is damaged.
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
    """Returns a number as the core takes it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)
