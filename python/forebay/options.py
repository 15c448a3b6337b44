"""Groups of settings, checked when they are made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from operator import index
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, get_args

from forebay import _lib
from forebay.access import is_number
from forebay.distributed import current_world
from forebay.exceptions import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

OnError = Literal["raise", "skip"]
"""What to do with rows that cannot be read; see `Dataset.to_torch`."""

Remainder = Literal["drop", "pad", "keep"]
"""What to do with the rows that are left when `world_size` does not divide them; see `Dataset.to_torch`."""

GIB = 1 << 30

MOST_COUNT = (1 << 63) - 1

MOST_SEED = (1 << 64) - 1

MOST_BATCH_ROWS = (1 << 31) - 1

DEFAULT_MEMORY_LIMIT = 2 * GIB
"""Bytes in flight, decoded and ready, in total; twice the default shuffle window."""

DEFAULT_SHUFFLE_BYTES = 1 * GIB
"""Decoded bytes of the shuffle windows of all lanes together, over all ranks."""

LEAST_MEMORY_LIMIT = 1 << 20

DEFAULT_MAX_SKIPPED = 0.01

AS_JSON = " as JSON"
"""Suffix for options that are passed on as JSON in addition to text, as file systems take more than text."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Memory, threads and error handling of a stream. Never changes the order of rows."""

    memory_limit: int = DEFAULT_MEMORY_LIMIT
    """Bytes in flight, decoded and ready, in total, in one process; at least 1 MiB."""
    num_threads: int | None = None
    """Threads that decode and gather, 1 to 1024; one per core by default."""
    on_error: OnError = "raise"
    """Whether rows that cannot be read end the stream or are left out."""
    max_skipped: int | float = DEFAULT_MAX_SKIPPED
    """The most rows of an epoch that may be left out: a number, or a fraction of them below 1."""

    def __post_init__(self) -> None:
        keep_count(self, "memory_limit", least=LEAST_MEMORY_LIMIT)
        check_choice("on_error", self.on_error, OnError)
        if isinstance(share := as_number(self.max_skipped), float):
            if not 0 <= share < 1:
                raise SettingError(f"max_skipped: expected a number of rows or a share below 1, got {share}")
            object.__setattr__(self, "max_skipped", share)
        else:
            keep_count(self, "max_skipped", least=0)
        if self.on_error == "raise" and self.max_skipped != DEFAULT_MAX_SKIPPED:
            raise SettingError(
                f"max_skipped: {self.max_skipped} is about rows that on_error='skip' leaves out, and without that the "
                "first is an error; pass both, or neither"
            )
        if self.num_threads is not None:
            keep_count(self, "num_threads", most=1024)

    def skippable(self, num_rows: int) -> int | None:
        """Returns how many of the `num_rows` of an epoch may be left out; None if the first such row is an error."""
        if self.on_error == "raise":
            return None
        return int(num_rows * self.max_skipped) if isinstance(self.max_skipped, float) else self.max_skipped


@dataclass(frozen=True, kw_only=True)
class ShuffleOptions:
    """How rows are shuffled. Part of the order: a state is valid only with the same values."""

    seed: int = 0
    """0 to 2^64 - 1."""
    shuffle_bytes: int = DEFAULT_SHUFFLE_BYTES
    """Decoded bytes of the windows of all lanes together, over all ranks."""
    num_lanes: int | None = None
    """Lanes that an epoch is dealt into, 1 to 2^20; derived from the footers by default."""
    window_rows: int | None = None
    """Rows in the window of a lane, 1 to 2^40; derived from the footers by default."""
    weights: str | None = None
    """SQL expression for the weight of a row; an epoch is then drawn with replacement."""
    num_samples: int | None = None
    """Rows to draw, 1 to 2^32 - 1; by default as many as there are."""
    weighed: _lib.Dataset | None = field(default=None, repr=False, compare=False)
    """The dataset whose columns `weights` names; set by `Dataset.shuffle`."""

    def __post_init__(self) -> None:
        keep_count(self, "seed", least=0, most=MOST_SEED)
        keep_count(self, "shuffle_bytes")
        if self.num_lanes is not None:
            keep_count(self, "num_lanes", most=1 << 20)
        if self.window_rows is not None:
            keep_count(self, "window_rows", most=1 << 40)
        if self.weights is not None:
            weights: object = self.weights
            if not isinstance(weights, str):
                got = type(weights).__name__
                query = "SELECT d.*, w.weight FROM dataset d JOIN w USING (id)"
                raise SettingError(
                    f'weights: expected SQL such as "1.0 + score", got {got}; numbers from elsewhere are a column of a '
                    f'table: `ds.sql("{query}", tables={{"w": table}})`'
                )
            check_text("weights", self.weights)
        if self.num_samples is not None:
            keep_count(self, "num_samples", most=(1 << 32) - 1)
            if self.weights is None:
                raise SettingError("num_samples: only an epoch that is drawn by `weights` has it; `take` takes rows")

    def epoch_rows(self, num_rows: int) -> int:
        """Returns the rows of an epoch of `num_rows` kept rows: these, or the number drawn from them."""
        return num_rows if self.num_samples is None else self.num_samples


StartMethod = Literal["spawn", "forkserver"]
"""How worker processes start; never by `fork`, which is unsafe in a process with threads."""


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """Settings for the workers of `Dataset.map`. Never change the content or order of batches."""

    prefetch: int = 4
    """Batches that each worker holds, finished or not, 1 to 1024. They come on top of `memory_limit`. With processes,
    `num_proc * (prefetch + 5)` of the files that the process of the loop may have open (`ulimit -n`) are in use, and up
    to 40 more."""
    timeout: float | None = None
    """The most seconds that the loop waits for a batch; unlimited by default. Counted once the loop waits and all
    workers have started, and anew after each batch that workers still finish for a loop that was left. Does not apply
    to `async for`; use `asyncio.timeout`."""
    start_method: StartMethod = "spawn"
    """How processes start."""
    worker_init_fn: Callable[[int], Any] | None = None
    """Called in each process with its number, before the first batch."""

    def __post_init__(self) -> None:
        keep_count(self, "prefetch", most=1024)
        if self.timeout is not None:
            seconds = as_number(self.timeout)
            if seconds is None or not seconds > 0:
                raise SettingError(f"timeout: expected seconds above 0, or None, got {self.timeout!r}")
            object.__setattr__(self, "timeout", seconds)
        method: object = self.start_method
        if not is_choice(method, StartMethod):
            is_fork = isinstance(method, str) and method == "fork"
            why = "; this process has threads, and a fork of it may wait for ever" if is_fork else ""
            raise SettingError(f"start_method: expected 'spawn' or 'forkserver', got {method!r}{why}")
        if self.worker_init_fn is not None and not callable(self.worker_init_fn):
            raise SettingError(f"worker_init_fn: expected a function, got {self.worker_init_fn!r}")


@dataclass(frozen=True, kw_only=True)
class ShareOptions:
    """Which part of an epoch a rank takes, in which batches."""

    batch_size: int
    rank: int
    world_size: int
    remainder: Remainder = "drop"
    drop_last: bool = False
    is_detected: bool = False
    steps_per_epoch: int | None = None
    read_once: bool = False
    group: tuple[int, int] | None = None
    """Rank and world size of the process, if several ranks have this share."""

    def __post_init__(self) -> None:
        keep_count(self, "batch_size", most=MOST_BATCH_ROWS)
        keep_count(self, "world_size", most=(1 << 31) - 1)
        keep_count(self, "rank", least=0, most=(1 << 31) - 1)
        if self.rank >= self.world_size:
            raise SettingError(f"rank: expected below the world size of {self.world_size}, got {self.rank}")
        check_flag("drop_last", self.drop_last)
        check_choice("remainder", self.remainder, Remainder)
        check_flag("read_once", self.read_once)
        if self.read_once and self.group is None:
            raise SettingError("read_once: every rank gets batches of its own; pass `mesh` or `replicate`")
        if self.steps_per_epoch is not None:
            keep_count(self, "steps_per_epoch")
            if self.remainder == "keep" and self.world_size > 1:
                raise SettingError(
                    "steps_per_epoch: with remainder 'keep' ranks may have other numbers of batches, so that a step "
                    "would be in different passes; use 'drop' or 'pad'"
                )

    @property
    def process(self) -> tuple[int, int]:
        """Rank and world size of the process."""
        return self.group or (self.rank, self.world_size)

    @property
    def has_replicas(self) -> bool:
        """Whether other ranks may have the same share."""
        return self.process[1] != self.world_size

    def check_world(self) -> None:
        """Refuses to iterate if the process group was initialised after the rank was looked up."""
        made = self.process
        if self.is_detected and current_world() not in (made, (0, 1)):
            rank, world_size = current_world()
            raise SettingError(
                f"rank: this stream was made as rank {made[0]} of {made[1]}, but the process is rank {rank} "
                f"of {world_size} now; make it after `init_process_group`, or pass `rank` and `world_size`"
            )


def check_text(name: str, value: object) -> str:
    """Returns a text. Refuses other types, and lone surrogates, which have no UTF-8."""
    if not isinstance(value, str):
        raise SettingError(f"{name}: expected text, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # Not the value: it may be a secret. Nor the cause, which holds it.
        where = f"character {error.start} of {len(value)}"
        raise SettingError(f"{name}: expected Unicode text, got half of a surrogate pair at {where}") from None
    return value


def check_options(storage_options: object) -> dict[str, str]:
    """Returns the options of a store as a dict of texts; refuses other types."""
    if storage_options is None:
        return {}
    if not isinstance(storage_options, Mapping):
        raise SettingError(f"storage_options: expected a dict of text, got {type(storage_options).__name__}")
    given = {str(key): value for key, value in storage_options.items()}
    typed = {key: _json(key, value) for key, value in given.items() if not isinstance(value, str)}
    # A structure has no other text, such as the key of a Google account; and what is None is not given.
    is_structure = {key: isinstance(value, dict | list | tuple) for key, value in given.items()}
    texts = {key: typed[key] if is_structure[key] else str(value) for key, value in given.items() if value is not None}
    texts |= {f"{key}{AS_JSON}": value for key, value in typed.items()}
    return {check_text("storage_options", key): check_text(key, value) for key, value in texts.items()}


def _json(name: str, value: object) -> str:
    try:
        return json.dumps(fspath(value) if isinstance(value, PathLike) else value)
    except (TypeError, ValueError):
        # Not the value: it may be a secret.
        what = f"expected text, a number, a truth value, or lists and dicts of them, got {type(value).__name__}"
        raise SettingError(f"storage_options: `{name}`: {what}") from None


def check_names(name: str, values: object) -> list[str]:
    """Returns one or several names as a list; refuses other types."""
    if isinstance(values, str):
        return [check_text(name, values)]
    # An array without dimensions only claims to be iterable.
    is_scalar = getattr(values, "shape", None) == ()
    if is_scalar or not isinstance(values, Iterable) or isinstance(values, bytes | Mapping):
        raise SettingError(f"{name}: expected a name or a list of names, got {values!r}")
    return [check_text(name, value) for value in values]


def check_named(name: str, values: object, what: str) -> Mapping[str, Any]:
    """Returns a dict of things by name, empty for None; refuses other types."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise SettingError(f"{name}: expected a dict of {what} by name, got {type(values).__name__}")
    return {check_text(name, key): value for key, value in values.items()}


def is_choice(value: object, choices: Any) -> bool:
    """Whether a value is among those of a `Literal` of texts and None. Arrays, which cannot be compared, are not."""
    return (value is None or isinstance(value, str)) and value in get_args(choices)


def check_choice(name: str, value: object, choices: Any) -> None:
    """Refuses a value that is not among those of a `Literal` of texts and None."""
    if not is_choice(value, choices):
        *others, last = (repr(choice) for choice in get_args(choices) if choice is not None)
        texts = f"{', '.join(others)} or {last}" if others else last
        or_none = " or None" if None in get_args(choices) else ""
        raise SettingError(f"{name}: expected {texts}{or_none}, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Refuses a value that is not True or False."""
    if not isinstance(value, bool):
        raise SettingError(f"{name}: expected True or False, got {value!r}")


def as_number(value: object) -> int | float | None:
    """Returns a number, also given as NumPy's, as Python's; None for other values, and for True and False."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def check_count(name: str, value: Any, *, least: int = 1, most: int = MOST_COUNT) -> int:
    """Returns an integer from `least` to `most`, also given as NumPy's; refuses other values."""
    if not is_number(value):
        raise SettingError(f"{name}: expected an integer, got {value!r}")
    count = index(value)
    if not least <= count <= most:
        raise SettingError(f"{name}: expected {least} to {most}, got {count}")
    return count


def check_bytes(name: str, value: int | str, *, least: int = 1) -> int:
    """Returns a number of bytes, `least` or more, also given as text such as `2 GiB`; refuses other values."""
    if not isinstance(value, str):
        return check_count(name, value, least=least)
    num_bytes = _lib.bytes_of(check_text(name, value))
    if num_bytes is None:
        raise SettingError(f"{name}: expected a number of bytes such as `1073741824` or `2 GiB`, got {value!r}")
    return check_count(name, num_bytes, least=least)


def keep_count(options: object, name: str, *, least: int = 1, most: int = MOST_COUNT) -> None:
    """Checks a count in frozen options, and makes it a Python integer."""
    object.__setattr__(options, name, check_count(name, getattr(options, name), least=least, most=most))
