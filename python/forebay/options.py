"""Settings that travel together, checked when they are made."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from forebay.distributed import current_world
from forebay.exceptions import SettingError

Remainder = Literal["drop", "pad", "keep"]
"""What becomes of the rows that `world_size` does not divide; see `Dataset.to_torch`."""

GIB = 1 << 30

DEFAULT_MEMORY_LIMIT = 2 * GIB
"""Bytes in flight, decoded and ready, all together; twice the default shuffle window."""

DEFAULT_SHUFFLE_BYTES = 1 * GIB
"""Decoded bytes of the shuffle windows of all lanes together, over all ranks."""

LEAST_MEMORY_LIMIT = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Memory and threads of a stream. Never changes rows or their order."""

    memory_limit: int = DEFAULT_MEMORY_LIMIT
    """Bytes in flight, decoded and ready, all together, of one process; at least 1 MiB."""
    num_threads: int | None = None
    """Threads that decode and gather, 1 to 1024; one for each core by default."""

    def __post_init__(self) -> None:
        check_count("memory_limit", self.memory_limit, least=LEAST_MEMORY_LIMIT)
        if self.num_threads is not None:
            check_count("num_threads", self.num_threads, most=1024)


@dataclass(frozen=True, kw_only=True)
class ShuffleOptions:
    """How rows are mixed. Part of the order: a state is valid only with the same values."""

    seed: int = 0
    """0 to 2^64 - 1."""
    shuffle_bytes: int = DEFAULT_SHUFFLE_BYTES
    """Decoded bytes of the windows of all lanes together, over all ranks."""
    num_lanes: int | None = None
    """Lanes that an epoch is dealt into, 1 to 2^20; derived from the footers by default."""
    window_rows: int | None = None
    """Rows of a lane's window, 1 to 2^40; derived from the footers by default."""

    def __post_init__(self) -> None:
        check_count("seed", self.seed, least=0, most=(1 << 64) - 1)
        check_count("shuffle_bytes", self.shuffle_bytes)
        if self.num_lanes is not None:
            check_count("num_lanes", self.num_lanes, most=1 << 20)
        if self.window_rows is not None:
            check_count("window_rows", self.window_rows, most=1 << 40)


@dataclass(frozen=True, kw_only=True)
class ShareOptions:
    """Which part of an epoch a rank takes, in which batches."""

    batch_size: int
    rank: int
    world_size: int
    remainder: Remainder = "drop"
    drop_last: bool = False
    is_detected: bool = False

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size, most=(1 << 31) - 1)
        check_count("world_size", self.world_size, most=(1 << 31) - 1)
        check_count("rank", self.rank, least=0, most=(1 << 31) - 1)
        if self.rank >= self.world_size:
            raise SettingError(f"rank: expected below the world size of {self.world_size}, got {self.rank}")
        check_flag("drop_last", self.drop_last)
        if self.remainder not in get_args(Remainder):
            raise SettingError(f"remainder: expected 'drop', 'pad' or 'keep', got {self.remainder!r}")

    def check_world(self) -> None:
        """Refuses to iterate when the process group was initialised after the rank was looked up."""
        if self.is_detected and current_world() not in ((self.rank, self.world_size), (0, 1)):
            rank, world_size = current_world()
            raise SettingError(
                f"rank: this stream was made as rank {self.rank} of {self.world_size}, but the process is rank {rank} "
                f"of {world_size} now; make it after `init_process_group`, or pass `rank` and `world_size`"
            )


def check_text(name: str, value: object) -> str:
    """Refuses what is not text, and text that no file holds: halves of surrogate pairs have no UTF-8."""
    if not isinstance(value, str):
        raise SettingError(f"{name}: expected text, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # Not the value: it may be a secret. Neither is it in the cause, which would take it along.
        where = f"character {error.start} of {len(value)}"
        raise SettingError(f"{name}: expected Unicode text, got half of a surrogate pair at {where}") from None
    return value


def check_options(storage_options: object) -> dict[str, str]:
    """Returns the options of a store as a dict of texts; refuses what is none."""
    if storage_options is None:
        return {}
    if not isinstance(storage_options, Mapping):
        raise SettingError(f"storage_options: expected a dict of text, got {type(storage_options).__name__}")
    given = {str(key): str(value) for key, value in storage_options.items()}
    return {check_text("storage_options", key): check_text(key, value) for key, value in given.items()}


def check_names(name: str, values: object) -> list[str]:
    """Returns a name, or several, as a list; refuses what is neither."""
    if isinstance(values, str):
        return [check_text(name, values)]
    if not isinstance(values, Iterable) or isinstance(values, bytes | Mapping):
        raise SettingError(f"{name}: expected a name or a list of names, got {values!r}")
    return [check_text(name, value) for value in values]


def check_flag(name: str, value: object) -> None:
    """Refuses what is not True or False."""
    if not isinstance(value, bool):
        raise SettingError(f"{name}: expected True or False, got {value!r}")


def check_count(name: str, value: object, *, least: int = 1, most: int = (1 << 63) - 1) -> None:
    """Refuses what is not an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingError(f"{name}: expected an integer, got {value!r}")
    if not least <= value <= most:
        raise SettingError(f"{name}: expected {least} to {most}, got {value}")
