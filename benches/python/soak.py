"""Reads for a while through faults and kills: `make soak MINUTES=30`.

Two readers read epoch after epoch of the same objects, through a proxy whose faults change all the time. One is killed
at random and resumes from its last state in a new process, with another batch size; the other keeps running and is
monitored. Every row of every epoch is accounted for, by its number and by bytes derived from it. The memory,
descriptors and threads of the running one must not grow, and neither may be silent for long. The exit status is 1 if
any check fails, or if too little has happened to judge.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import faulthandler
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fault_readers import KEY, NUM_ROWS, SECRET, payload, write_parquet
from faults import DATA, SLOW_DOWN, proxied, put, served

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "soak"
BATCH_SIZES = (64, 100, 256)
SECONDS_OF_FAULTS = 5.0
MEBIBYTE = 1 << 20
MOST_SLOPE = 1.0
"""Mebibytes per minute."""
MOST_MORE = 3
"""Descriptors and threads; a few more connections may be open by chance."""
LEAST_MINUTES = 10.0
"""Shorter runs do not judge growth, because allocators warm up, nor how much has happened."""
LEAST_SAMPLES = 4
RETRY_SECONDS = 120
LINE_SECONDS = RETRY_SECONDS + 60.0
"""A reader that prints nothing for longer hangs, because by then it should have given up by itself."""

KINDS: list[dict[str, Any]] = [
    {"status": 503, "body": SLOW_DOWN, "chance": 0.2},
    {"status": 503, "body": SLOW_DOWN, "seconds": 2},
    {"status": 429, "headers": {"Retry-After": "1"}, "times": 5},
    {"status": 500, "chance": 0.1},
    {"cut_after": 20_000, "ending": "reset", "chance": 0.2},
    {"cut_after": 20_000, "chance": 0.2},
    {"cut_after": -1, "ending": "reset", "chance": 0.2},
    {"cut_after": 10_000, "ending": "stall", "times": 2},
    {"latency": 0.02, "jitter": 0.3, "chance": 0.3},
    {"bytes_per_second": 2e6},
    {"outage": 1.0, "times": 1},
    {"edit": "shortened", "times": 1},
    {"edit": "shifted_range", "times": 1},
]


def work(endpoint: str, epoch: int, state: dict[str, Any] | None, seed: int) -> None:
    """Reads epochs for ever; prints the rows of every batch, the state after it, and the resources of the process."""
    import pyarrow as pa

    import forebay as fb

    options = {"aws_endpoint_url": endpoint, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    options |= {"read_timeout": "2s", "retry_for": f"{RETRY_SECONDS}s"}
    faulthandler.register(signal.SIGUSR1)
    generator = random.Random(seed)  # noqa: S311
    while True:
        ds = fb.load_dataset(f"s3://{BUCKET}/parquet/", split="train", storage_options=options).shuffle(seed=3)
        # Little read-ahead, so that faults can still hit the epoch after its first batches.
        stream = ds.batches(generator.choice(BATCH_SIZES), memory_limit=8 * MEBIBYTE)
        stream.set_epoch(epoch)
        if state is not None:
            stream.load_state_dict(state)
        for batch in stream:
            rows = pa.record_batch(batch)
            ids = rows["id"].to_pylist()
            wrong = [row for row, got in zip(ids, rows["payload"].to_pylist(), strict=True) if got != payload(row)]
            said = {"epoch": epoch, "ids": ids, "wrong": wrong, "state": stream.state_dict()}
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()
        sys.stdout.write(json.dumps({"done": epoch} | held()) + "\n")
        sys.stdout.flush()
        epoch, state = epoch + 1, None


def held() -> dict[str, int]:
    """Returns the memory, descriptors and threads of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss": pages * os.sysconf("SC_PAGE_SIZE"),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


@dataclass
class Reader:
    """One reader, in one process after another."""

    name: str
    endpoint: str
    seed: int
    has_kills: bool
    num_kills: int = 0
    num_epochs: int = 0
    failures: list[str] = field(default_factory=list)
    samples: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    def run(self, until: float) -> None:
        """Reads until a deadline, and then to the end of the current epoch."""
        generator = random.Random(self.seed)  # noqa: S311
        came: collections.Counter[int] = collections.Counter()
        epoch, state = 0, None
        while time.monotonic() < until and not self.failures:
            for said in self._lines(epoch, state, generator):
                if "done" in said:
                    self._account(epoch, came)
                    came.clear()
                    epoch, state = epoch + 1, None
                    self.samples.append((time.monotonic(), said))
                    if time.monotonic() > until or self.failures:
                        break
                else:
                    came.update(said["ids"])
                    state = said["state"]
                    if said["wrong"]:
                        self.failures.append(f"epoch {epoch}: rows {said['wrong'][:5]} have wrong bytes")

    def _lines(self, epoch: int, state: dict[str, Any] | None, generator: random.Random) -> Iterator[dict[str, Any]]:
        """Yields what a process prints until it is killed; only complete lines count, as only saved states would."""
        arguments = ["work", self.endpoint, str(epoch), json.dumps(state), str(generator.getrandbits(32))]
        left = generator.randrange(20, 200) if self.has_kills else None
        command = [sys.executable, __file__, *arguments]
        # A file for stderr, because a pipe that nobody reads would block the writer.
        with (
            tempfile.TemporaryFile() as complaints,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints) as process,
        ):
            try:
                for line in lines_of(process, LINE_SECONDS):
                    yield json.loads(line)
                    left = None if left is None else left - 1
                    if left == 0:
                        self.num_kills += 1
                        return
                self.failures.append(f"epoch {epoch}: it ended: {end_of(complaints)}")
            except TimeoutError as error:
                # It prints the stacks of its threads.
                process.send_signal(signal.SIGUSR1)
                time.sleep(1)
                self.failures.append(f"after {self.num_epochs} epochs: it hangs, {error}: {end_of(complaints)}")
            finally:
                process.send_signal(signal.SIGKILL)

    def _account(self, epoch: int, came: collections.Counter[int]) -> None:
        known = collections.Counter(range(NUM_ROWS))
        self.num_epochs += 1
        if came != known:
            lost, doubled = (known - came).total(), (came - known).total()
            self.failures.append(f"epoch {epoch}: {lost} rows lost, {doubled} doubled")

    def report(self, minutes: float) -> list[str]:
        """Returns the lines of the report, and records failures."""
        said = [f"{self.name}: {self.num_epochs} epochs of {NUM_ROWS:,} rows exact, {self.num_kills} kills"]
        # The first third is warm-up.
        steady = self.samples[len(self.samples) // 3 :]
        wrong = [] if self.num_epochs else ["no epoch came to its end"]
        if self.has_kills:
            wrong += [] if self.num_kills else ["it was never killed"]
        elif len(steady) < LEAST_SAMPLES:
            wrong += [f"only {len(steady)} samples tell of its memory"]
        else:
            said += self._what_is_held(steady, wrong)
        self.failures += wrong if minutes >= LEAST_MINUTES else []
        return said

    def _what_is_held(self, steady: list[tuple[float, dict[str, int]]], wrong: list[str]) -> list[str]:
        """Returns lines about memory, descriptors and threads, and adds to `wrong` what grows."""
        slope = slope_of([(when / 60, held["rss"] / MEBIBYTE) for when, held in steady])
        said = [f"{self.name}: RSS {steady[-1][1]['rss'] / MEBIBYTE:.0f} MiB, {slope:+.2f} MiB a minute"]
        if slope > MOST_SLOPE:
            wrong.append(f"memory grows by {slope:.2f} MiB a minute")
        for what in ("descriptors", "threads"):
            first, last = (max(held[what] for _, held in part) for part in halves(steady))
            said.append(f"{self.name}: at most {first} {what}, later {last}")
            if last > first + MOST_MORE:
                wrong.append(f"{what} grow from {first} to {last}")
        return said


def lines_of(process: subprocess.Popen[bytes], seconds: float) -> Iterator[bytes]:
    """Yields the complete lines that a process writes; raises `TimeoutError` if none comes within `seconds`."""
    if process.stdout is None:
        return
    begun, deadline = b"", time.monotonic() + seconds
    while select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
        read = os.read(process.stdout.fileno(), 1 << 16)
        if not read:
            return
        *whole, begun = (begun + read).split(b"\n")
        yield from whole
        deadline = time.monotonic() + seconds if whole else deadline
    raise TimeoutError(f"it said nothing for {seconds:g} s")


def end_of(complaints: IO[bytes]) -> str:
    """Returns the end of a process's stderr."""
    complaints.seek(0)
    return complaints.read()[-2000:].decode(errors="replace")


def halves(values: list[Any]) -> tuple[list[Any], list[Any]]:
    """Returns the first and the second half."""
    return values[: len(values) // 2], values[len(values) // 2 :]


def slope_of(points: list[tuple[float, float]]) -> float:
    """Returns the slope of the least-squares line."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def soak(minutes: float, seed: int) -> int:
    """Runs both readers and returns the exit status."""
    generator = random.Random(seed)  # noqa: S311
    folder = DATA / "parquet"
    if not folder.exists():
        write_parquet(folder)
    num_faults = 0
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(served())
        put(f"{server}/{BUCKET}", b"")
        for path in folder.iterdir():
            put(f"{server}/{BUCKET}/parquet/{path.name}", path.read_bytes())
        endpoint, set_faults = stack.enter_context(proxied(server, [], seed))
        until = time.monotonic() + minutes * 60
        readers = [Reader("alive", endpoint, seed + 1, False), Reader("killed", endpoint, seed + 2, True)]
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor())
        running = [pool.submit(reader.run, until) for reader in readers]
        while not all(future.done() for future in running):
            # No faults at the end, so that the last epochs finish.
            chosen = generator.sample(KINDS, 3) if time.monotonic() < until else []
            num_faults += set_faults([{"times": None, **fault} for fault in chosen])["faults"]
            time.sleep(SECONDS_OF_FAULTS)
        for future in running:
            future.result()
    print(f"soak: {minutes:g} minutes, seed {seed}, {num_faults:,} requests went wrong")
    for reader in readers:
        print("\n".join(reader.report(minutes)))
    failures = [f"{reader.name}: {failure}" for reader in readers for failure in reader.failures]
    print("\n".join(f"FAILED {failure}" for failure in failures) or "soak: all rows exact")
    return 1 if failures or not num_faults else 0


def main() -> int:
    """Runs the command line."""
    if sys.argv[1:2] == ["work"]:
        endpoint, epoch, state, seed = sys.argv[2:]
        work(endpoint, int(epoch), json.loads(state), int(seed))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    return soak(arguments.minutes, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
