"""Tells in one sentence what a loop waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

WORTH_MENTIONING = 0.02
"""A loop that waited for less than this fraction of its time is not held up."""

READ_TOO_OFTEN = 2
"""If rows were read this many times on average, that is the bottleneck, whatever the loop waited for."""

MIB = 1 << 20

_AGAIN = {
    "throttled": "that it refused (429, 503)",
    "failed": "that failed",
    "broken": "that broke off",
    "stalled": "that stalled",
}
"""Reasons of retries, by the suffix of their count's name."""


def sentence(stats: Mapping[str, float], memory_limit: int) -> str:
    """Returns what held up a loop according to the statistics of its stream, and what would help."""
    if not stats or not stats["batches"]:
        return "nothing yet: no batch has been delivered"
    waited, elapsed = stats["seconds_waited"], max(stats["seconds"], 1e-9)
    if waited < WORTH_MENTIONING * elapsed:
        return f"the loop itself: it waited for {waited / elapsed:.1%} of {elapsed:.1f} s; batches were ready"
    causes = {name: stats[f"seconds_waited_for_{name}"] for name in ("store", "memory", "decoding", "gathering")}
    cause = max(causes, key=causes.__getitem__)
    # With functions, the rest of the waiting was for the stream, which has counted its causes.
    for_functions = stats.get("seconds_waited_for_functions", 0.0) / waited
    part = causes[cause] / max(sum(causes.values()), 1e-9) * (1 - for_functions)
    how_long = f"the loop waited for {waited / elapsed:.0%} of {elapsed:.1f} s"
    if for_functions > part:
        return f"{_functions(for_functions)}; {how_long}"
    num_times = 1 + stats["rows_evicted"] / max(stats["rows"], 1)
    if cause != "memory" and num_times >= READ_TOO_OFTEN:
        return f"{_reading_again(num_times, stats, memory_limit)}; {how_long}"
    return f"{_WORDS[cause](part, stats, memory_limit)}; {how_long}"


def _functions(part: float) -> str:
    return (
        f"functions: {part:.0%} of waiting was for those of `map` or `collate_fn`; run them in more processes "
        "(`num_proc`, `num_workers`) where there are cores, or make them cheaper"
    )


def _store(part: float, stats: Mapping[str, float], memory_limit: int) -> str:
    speed = stats["bytes_fetched"] / MIB / max(stats["seconds_fetching"], 1e-9)
    is_full = stats["peak_memory_bytes"] > 0.9 * memory_limit
    helps = "raise memory_limit, so that more is asked for at once, or" if is_full else "select fewer columns, or"
    helps = f"{helps} move closer"
    again = {words: stats[f"retries_{kind}"] for kind, words in _AGAIN.items() if stats[f"retries_{kind}"]}
    if again:
        said = ", ".join(f"{count:,} {words}" for words, count in again.items())
        num_requests = stats["requests"] + sum(again.values())
        helps = f"made again: {said}, of {num_requests:,} requests; {helps}"
    if stats["retries_throttled"] > sum(again.values()) / 2:
        helps = f"{helps}, or ask it for less at once, by fewer processes"
    return f"the store: {part:.0%} of waiting was for bytes, which came at {_rate(speed)}; {helps}"


def _rate(speed: float) -> str:
    return f"{speed:,.0f} MiB/s" if speed >= 1 else f"{speed * 1024:,.0f} KiB/s"


def _memory(part: float, stats: Mapping[str, float], memory_limit: int) -> str:
    again = f", and {stats['rows_evicted']:,.0f} rows were read again" if stats["rows_evicted"] else ""
    return (
        f"memory: {part:.0%} of waiting was for room within {memory_limit / MIB:,.0f} MiB{again}; raise memory_limit "
        "or lower shuffle_bytes"
    )


def _reading_again(num_times: float, stats: Mapping[str, float], memory_limit: int) -> str:
    return (
        f"memory: rows were read {num_times:,.1f} times, {stats['rows_evicted']:,.0f} of them again for lack of room "
        f"within {memory_limit / MIB:,.0f} MiB; raise memory_limit or lower shuffle_bytes"
    )


def _decoding(part: float, stats: Mapping[str, float], _: int) -> str:
    speed = stats["bytes_decoded"] / MIB / max(stats["seconds_decoding"], 1e-9)
    return (
        f"decoding: {part:.0%} of waiting was for it, at {speed:,.0f} MiB/s a core; raise num_threads where there are "
        "cores, select fewer columns, or write files with a lighter codec"
    )


def _gathering(part: float, _: Mapping[str, float], __: int) -> str:
    return (
        f"gathering: {part:.0%} of waiting was for rows to be copied into batches; raise num_threads where there are "
        "cores, or select fewer columns"
    )


_WORDS = {"store": _store, "memory": _memory, "decoding": _decoding, "gathering": _gathering}
