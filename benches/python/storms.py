"""Reads through a storm of refusals and through a slow tail: `python benches/python/storms.py` prints the cost.

*storm*: in the middle of an epoch, the store answers 503 to everything for a minute. The epoch must continue
afterwards, and must not flood the store: it may make at most as many requests as were in flight at the start of the
storm, plus one per second, plus 1.1 times those of an epoch without a storm. *tail*: one request in a hundred takes a
hundred times as long as the others, and epochs must be at least 0.9 times as fast as without. The reader is a separate
process, and its batches pass through two more, of `Dataset.map`; none of them may end. The exit status is 1 if a check
fails.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from harness import ROOT

sys.path.append(str(ROOT / "tests" / "python"))
from fault_proxy import Fault, FaultProxy
from hub_data import ids_file
from upstreams import Objects

if TYPE_CHECKING:
    from types import TracebackType

NUM_OBJECTS, ROWS_OF_AN_OBJECT = 20_000, 10
NUM_ROWS = NUM_OBJECTS * ROWS_OF_AN_OBJECT
NUM_WORKERS = 2
STORM_SECONDS = 60.0
MOST_REQUESTS = 1.1
"""As a multiple of the requests of an epoch without a storm."""
LATENCY, TAIL_CHANCE, TAIL_TIMES = 0.05, 0.01, 100
LEAST_RATE = 0.9
NUM_ROUNDS = 3


def add_worker(batch: dict[str, Any]) -> dict[str, Any]:
    """Adds the id of the process that a batch passes through."""
    return {"worker": [os.getpid()] * len(batch["id"])}


def read(url: str) -> None:
    """Reads an epoch for each line of input, and prints the result."""
    import forebay as fb

    sources = [f"{url}/part-{number}.parquet" for number in range(NUM_OBJECTS)]
    ds = fb.load_dataset(sources, split="train").shuffle(1)
    stream = ds.map(add_worker, batched=True, num_proc=NUM_WORKERS).to_torch(500)
    print(json.dumps({}), flush=True)
    for _ in sys.stdin:
        start, num_rows, total = time.monotonic(), 0, 0
        workers: set[int] = set()
        for batch in stream:
            num_rows, total = num_rows + len(batch["id"]), total + int(batch["id"].sum())
            workers |= set(batch["worker"])
        is_exact = num_rows == NUM_ROWS and total == NUM_ROWS * (NUM_ROWS - 1) // 2
        seconds = time.monotonic() - start
        found = {"seconds": seconds, "is_exact": is_exact, "workers": sorted(workers), "stats": stream.stats()}
        print(json.dumps(found), flush=True)


class Reader:
    """The reader's process, and the proxy that it reads from."""

    def __enter__(self) -> Reader:
        step = ROWS_OF_AN_OBJECT
        objects = {f"part-{n}.parquet": ids_file(n * step, (n + 1) * step) for n in range(NUM_OBJECTS)}
        self.proxy = FaultProxy(Objects(objects)).__enter__()
        command = [sys.executable, __file__, "--read", self.proxy.url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate()
        self.proxy.__exit__(kind, error, traceback)

    def epoch(self, *faults: Fault) -> dict[str, Any]:
        """Returns the result of an epoch through faults."""
        self.proxy.clear()
        self.proxy.faults = list(faults)
        if self._process.stdin is not None:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            sys.exit("the reader ended")
        found: dict[str, Any] = json.loads(line)
        return found


def storm(reader: Reader) -> bool:
    """Reads an epoch without a storm and one with it; returns whether all checks passed."""
    proxy, usual = reader.proxy, Fault(latency=LATENCY, times=None)
    reader.epoch(usual)
    clean = reader.epoch(usual)
    ideal = proxy.count()
    refused = Fault(status=503, times=None, seconds=STORM_SECONDS, skip=ideal // 3)
    found = reader.epoch(refused, usual)
    begin = min(asked.started for asked in proxy.log if asked.status == 503)
    under_way = sum(asked.started <= begin < asked.ended for asked in proxy.log)
    num_requests, most = proxy.count(), under_way + STORM_SECONDS + 1 + MOST_REQUESTS * ideal
    is_alive = found["workers"] == clean["workers"] and len(clean["workers"]) == NUM_WORKERS
    print(
        f"storm of {STORM_SECONDS:.0f} s: {'every row' if found['is_exact'] else 'NOT every row'}, "
        f"{found['seconds']:.1f} s instead of {clean['seconds']:.1f} s; {num_requests:,} requests, {ideal:,} without "
        f"and {under_way} under way when it began, so {most:,.0f} at most; {proxy.count(status=503)} refused; "
        f"workers {'live' if is_alive else 'DIED'}",
        flush=True,
    )
    return bool(found["is_exact"] and is_alive and num_requests <= most)


def tail(reader: Reader) -> bool:
    """Reads epochs with and without a slow tail, in turn; returns whether those with it are fast enough."""
    usual = Fault(latency=LATENCY, times=None)
    reader.epoch(usual)
    rates: list[float] = []
    hedges: list[int] = []
    for _ in range(NUM_ROUNDS):
        clean = reader.epoch(usual)
        found = reader.epoch(Fault(latency=LATENCY * TAIL_TIMES, chance=TAIL_CHANCE, times=None), usual)
        if not (clean["is_exact"] and found["is_exact"]):
            return False
        rates.append(clean["seconds"] / found["seconds"])
        hedges.append(found["stats"]["hedges"])
        print(f"tail: {clean['seconds']:.2f} s, with it {found['seconds']:.2f} s", flush=True)
    rate = statistics.median(rates)
    print(
        f"tail of {TAIL_CHANCE:.0%} of requests, {LATENCY * TAIL_TIMES:.0f} s instead of {LATENCY * 1000:.0f} ms: "
        f"{rate:.2f} of the rate without it ({min(rates):.2f} to {max(rates):.2f}), "
        f"{statistics.median(hedges):.0f} of {NUM_OBJECTS:,} requests made twice",
        flush=True,
    )
    return rate >= LEAST_RATE


PARTS = {"storm": storm, "tail": tail}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(PARTS), help="run only one of the parts")
    parser.add_argument("--read", metavar="URL", help="used internally")
    arguments = parser.parse_args()
    if arguments.read:
        read(arguments.read)
        return
    with Reader() as reader:
        are_kept = [part(reader) for name, part in PARTS.items() if arguments.only in (None, name)]
    sys.exit(0 if all(are_kept) else 1)


if __name__ == "__main__":
    main()
