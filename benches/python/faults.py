"""Tests readers under faults: `make bench-faults` writes the results into `docs/reliability.md`.

Every reader gets the same rows from the same S3 server, through its own fault proxy (`tests/python/fault_proxy.py`), in
its own process, with a time limit. What matters is whether every row arrives once and intact, not how fast.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fault_readers import READERS, WRITERS
from harness import HERE, ROOT, FailedError

sys.path.insert(0, str(ROOT / "scripts"))
import s3_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    SetFaults = Callable[[list[dict[str, Any]]], dict[str, int]]

PROXY = ROOT / "tests" / "python" / "fault_proxy.py"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- written by make bench-faults: begin -->\n", "<!-- end -->\n"
DATA = ROOT / ".cache" / "faults"
"""The rows in every format, and the results so far."""

BUCKET = "faults"
SEED = 1
"""A seed by which the very first request gets the fault, because some readers make few requests."""
LIMIT_SECONDS = 180
NUM_AT_ONCE = 3
ENVIRONMENTS = {"mosaicml": ".venv-mosaicml", "mds": ".venv-mosaicml"}
PLACES = {"lance": "/lance/rows.lance/data", "litdata": ".bin", "mosaicml": ".mds"}
"""Text in the paths of objects that hold rows, for readers that do not read Parquet."""

SLOW_DOWN = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
FAULTS: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "503 SlowDown for one request in three": [{"status": 503, "chance": 0.3, "times": None}],
    "503 SlowDown for all, 10 s long": [{"status": 503, "times": None, "seconds": 10, "skip": 3}],
    "429 with `Retry-After: 2`, ten times": [{"status": 429, "headers": {"Retry-After": "2"}, "times": 10}],
    "500, ten times": [{"status": 500, "times": 10, "skip": 3}],
    "no connections for 5 s": [{"outage": 5.0, "skip": 3}],
    "bodies reset in the middle, one in three": [
        {"cut_after": 20_000, "ending": "reset", "chance": 0.3, "times": None}
    ],
    "bodies cut in the middle, one in three": [{"cut_after": 20_000, "chance": 0.3, "times": None}],
    "one body that stalls": [{"cut_after": 20_000, "ending": "stall", "skip": 3}],
    "one body too short, its length agrees": [{"edit": "shortened", "skip": 3}],
    "one answer of another place (`Content-Range`)": [{"edit": "shifted_range", "skip": 3}],
    "one range ignored: the whole object": [{"hide": ["range"], "skip": 3}],
    "a flipped bit in one body of three": [{"edit": "flipped_bit", "chance": 0.3, "times": None}],
}
REPLACED = "half of the objects replaced in mid-epoch"


@dataclass(frozen=True)
class Place:
    """The server, and the folder of replacement objects."""

    endpoint: str
    replacement: Path


@contextlib.contextmanager
def proxied(endpoint: str, faults: list[dict[str, Any]], seed: int = 0) -> Iterator[tuple[str, SetFaults]]:
    """Yields the URL of a proxy, and a function that sets new faults and returns the counts since the last call."""
    command = [sys.executable, str(PROXY), endpoint, json.dumps(faults), str(seed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise FailedError("the proxy has no pipes")
        asked, answered = process.stdin, process.stdout

        def set_faults(others: list[dict[str, Any]]) -> dict[str, int]:
            asked.write(json.dumps(others) + "\n")
            asked.flush()
            counts: dict[str, int] = json.loads(answered.readline())
            return counts

        yield answered.readline().strip(), set_faults
        asked.close()


@contextlib.contextmanager
def served() -> Iterator[str]:
    """Yields the endpoint of an S3 server: the one already running, or else a new one."""
    endpoint = os.environ.get(s3_server.ENDPOINT_VARIABLE)
    if endpoint:
        yield endpoint
        return
    server = s3_server.start()
    try:
        yield server.endpoint
    finally:
        server.stop()


def python_of(name: str) -> str:
    """Returns the interpreter of the environment that has a library."""
    environment = ENVIRONMENTS.get(name)
    return sys.executable if environment is None else str(ROOT / environment / "bin" / "python")


def run(reader: str, fault: str, place: Place) -> str:
    """Reads an epoch and returns the result in words."""
    where = PLACES.get(reader, ".parquet")
    faults = [{"where": where, **each} for each in FAULTS.get(fault, [])]
    bucket, replacement = BUCKET, []
    if fault == REPLACED:
        # A slow link, so that something is left to read when the objects change.
        faults = [{"where": where, "times": None, "bytes_per_second": 4e6}]
        bucket, replacement = f"{BUCKET}-{reader}", [place.endpoint, str(place.replacement)]
    scratch = tempfile.mkdtemp(prefix="forebay-faults-")
    quiet = {"HF_HOME": scratch, "HF_HUB_DISABLE_TELEMETRY": "1", "TMPDIR": scratch, "AWS_REGION": "us-east-1"}
    with proxied(place.endpoint, faults, SEED) as (url, set_faults), contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        process = subprocess.Popen(
            [python_of(reader), "fault_readers.py", "read", reader, url, bucket, *replacement],
            cwd=HERE,
            env=os.environ | quiet,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            printed, complaints = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"**hung**: not done after {LIMIT_SECONDS} s"
        finally:
            # Workers that it left behind, and the process itself if it hangs.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        num_faults = set_faults([])["faults"]
    if process.returncode or not printed.strip():
        return f"**crashed**: status {process.returncode} {complaints.strip()[-200:]!r}"
    if faults and not num_faults:
        return "not touched"
    return told(json.loads(printed.splitlines()[-1]))


def told(result: dict[str, Any]) -> str:
    """Returns a reader's result in words."""
    if "error" in result:
        print(f"      {result['error']}: {result['said']}", flush=True)
        return f"error: `{result['error']}`"
    words = {"lost": "rows lost", "doubled": "rows doubled", "wrong": "rows with wrong bytes", "others": "other rows"}
    found = [f"{result[name]:,} {said}" for name, said in words.items() if result[name]]
    return f"**{', '.join(found)}**" if found else "exact"


def write_objects(folder: Path, endpoint: str) -> Place:
    """Writes the rows in every format and uploads them."""
    for kind in WRITERS:
        target = folder / kind
        if target.exists():
            continue
        part = target.with_name(f"{kind}.part")
        shutil.rmtree(part, ignore_errors=True)
        done = subprocess.run(
            [python_of(kind), "fault_readers.py", "write", kind, str(part)], cwd=HERE, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{kind} is not written: {done.stderr[-2000:]}")
        part.rename(target)
    buckets = {BUCKET: WRITERS} | {f"{BUCKET}-{reader}": ["parquet"] for reader in READERS if reader not in PLACES}
    for bucket, kinds in buckets.items():
        put(f"{endpoint}/{bucket}", b"")
        for kind in kinds:
            for path in (path for path in (folder / kind).rglob("*") if path.is_file()):
                put(f"{endpoint}/{bucket}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return Place(endpoint, folder / "replacement")


def put(url: str, body: bytes) -> None:
    """Writes an object or creates a bucket; this server needs no credentials."""
    with urllib.request.urlopen(urllib.request.Request(url, body, method="PUT")):  # noqa: S310
        pass


def page(results: dict[str, dict[str, str]]) -> str:
    """Returns the table."""
    lines = [f"| fault | {' | '.join(READERS)} |", f"| --- |{' --- |' * len(READERS)}"]
    for fault in [*FAULTS, REPLACED]:
        cells = [results.get(fault, {}).get(reader, "not run") for reader in READERS]
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--readers", nargs="*", default=list(READERS), choices=list(READERS))
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of faults")
    parser.add_argument("--at-once", type=int, default=NUM_AT_ONCE, help="readers that run at the same time")
    parser.add_argument("--write-docs", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    faults = [
        name for name in [*FAULTS, REPLACED] if not arguments.only or any(part in name for part in arguments.only)
    ]
    DATA.mkdir(parents=True, exist_ok=True)
    known = DATA / "results.json"
    results: dict[str, dict[str, str]] = json.loads(known.read_text()) if known.exists() else {}
    with served() as endpoint, concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
        place = write_objects(DATA, endpoint)
        asked = {
            pool.submit(run, reader, fault, place): (reader, fault)
            for reader in arguments.readers
            for fault in faults
            if fault != REPLACED or reader not in PLACES
        }
        for done in concurrent.futures.as_completed(asked):
            reader, fault = asked[done]
            # Another run may have written results meanwhile.
            results = json.loads(known.read_text()) if known.exists() else {}
            results.setdefault(fault, {})[reader] = done.result()
            known.write_text(json.dumps(results, indent=1))
            print(f"{fault:45}  {reader:10}  {done.result()}", flush=True)
    written = page(results)
    print(written)
    if arguments.write_docs:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{written}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
