"""`Explanation`: what a pass over a dataset takes, as a dict that prints as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Explanation(dict[str, Any]):
    """What a pass over a dataset takes; a dict that prints as text."""

    def __str__(self) -> str:
        lines = [
            ("rows", f"{self['rows_kept']:,} of {self['rows_total']:,} kept"),
            ("row groups", self._row_groups()),
            ("opening", self._opening()),
            ("selection", self._selection()),
            ("payload", self._payload()),
            ("depth", self._depth()),
            *(("store", _store(url, known)) for url, known in self["stores"].items()),
            ("order", self._order()),
            *(("measured", line) for line in _measured(self.get("measured"))),
        ]
        return "\n".join(f"{name:<12}{text}" for name, text in lines)

    def _row_groups(self) -> str:
        parts = [f"{self['row_groups_whole']:,} whole", f"{self['row_groups_partial']:,} partial"]
        if "row_groups_pruned" in self:
            parts = [
                f"{self['row_groups_pruned']:,} pruned by statistics",
                *parts,
                f"{self['row_groups_empty']:,} read without a match",
            ]
        if self["row_groups_outside"]:
            parts.append(f"{self['row_groups_outside']:,} outside")
        return f"{self['row_groups_total']:,} in {_count(self['objects'], 'object')}: {', '.join(parts)}"

    def _opening(self) -> str:
        footers, seconds = self["stages"].get("footers"), self["seconds"]
        asked = "no requests" if footers is None else f"{_asked(footers)} for footers"
        listing = f", of which {_seconds(seconds['listing'])} for listing" if "listing" in seconds else ""
        return f"{asked}; {_seconds(seconds['opening'])}{listing}"

    def _selection(self) -> str:
        stages, seconds = self["stages"], self["seconds"]
        if "selection" not in seconds:
            return "kept from an earlier run" if self["selection_cached"] else "made elsewhere"
        num_requests, took = self["selection_requests"], _seconds(seconds["selection"])
        asked = f"{_bytes(self['selection_bytes'])} in {_count(num_requests, 'request')}"
        if "pruning" not in seconds:
            return f"{asked}, by a query; {took}"
        took += f", of which {_seconds(seconds['pruning'])} for statistics"
        if not num_requests:
            return f"no requests; {took}"
        over_read = sum(_over_read(stages[name]) for name in ("indexes", "predicates") if name in stages)
        return f"{asked}, of which {_bytes(over_read)} in gaps; {took}"

    def _payload(self) -> str:
        wanted, fetched = self["payload_bytes"], self["payload_bytes_fetched"]
        asked = f"{_bytes(fetched)} in {_count(self['payload_requests'], 'request')}"
        return f"{asked}, of which {_bytes(fetched - wanted)} in gaps; for an unshuffled pass"

    def _depth(self) -> str:
        stages = [f"{counted['depth']} for {name}" for name, counted in self["stages"].items()]
        if self["payload_requests"]:
            stages.append("1 for the payload")
        return f"{_count(self['depth'], 'round trip')} in sequence{': ' if stages else ''}{', '.join(stages)}"

    def _order(self) -> str:
        order = self["order"]
        if not order:
            return "that of the query" if self["order_of_query"] else "unshuffled"
        return f"seed {order['seed']}, {order['num_lanes']:,} lanes, windows of {order['window_rows']:,} rows"


def _store(url: str, known: Mapping[str, Any]) -> str:
    parts = [f"{_count(known['concurrency'], 'request')} at a time", f"gaps up to {_bytes(known['gap_bytes'])}"]
    if "seconds_to_first_byte" in known:
        parts.append(f"first byte after {_seconds(known['seconds_to_first_byte'])}")
    if "bytes_per_second" in known:
        parts.append(f"{_bytes(known['bytes_per_second'])} per second and connection")
    if "adapter" in known:
        parts.append(f"through {known['adapter']}, which is slower")
    return f"{url}: {', '.join(parts)}"


def _measured(measured: Mapping[str, Any] | None) -> Iterator[str]:
    if measured is None:
        return
    in_gaps, retries = _bytes(_over_read(measured)), _count(measured["retries"], "retry", "retries")
    yield f"{_count(measured['rows'], 'row')}, {_asked(measured)}, of which {in_gaps} in gaps; {retries}"
    names = ("fetching", "decoding", "gathering")
    stages = ", ".join(f"{_seconds(measured[f'seconds_{name}'])} {name}" for name in names)
    yield f"{_seconds(measured['seconds'])} in total: {stages}; at most {_bytes(measured['peak_memory_bytes'])} held"


def _asked(counted: Mapping[str, Any]) -> str:
    return f"{_bytes(counted['bytes_fetched'])} in {_count(counted['requests'], 'request')}"


def _count(number: int, thing: str, things: str = "") -> str:
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def _over_read(counted: Mapping[str, Any]) -> int:
    return max(0, int(counted["bytes_fetched"] - counted["bytes_wanted"]))


def _seconds(seconds: float) -> str:
    return f"{seconds:,.3f} s"


def _bytes(count: float) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"
