"""Measures opening a dataset of many small files: cold, from the footer cache, and from a manifest.

    python benches/python/opening.py [--files 10000] [--json]

Each way runs several times, in its own interpreter; the best time counts. The files are on local disk, so only the work
is measured; over a network the latency of each request is added.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

NUM_RUNS = 3
ROWS_PER_FILE = 1000
ROW_GROUP_ROWS = 250


def write(folder: Path, num_files: int) -> None:
    """Writes identical files of ten columns and four row groups."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "id": range(ROWS_PER_FILE),
            "lang": ["de", "en"] * (ROWS_PER_FILE // 2),
            "score": [row / 7 for row in range(ROWS_PER_FILE)],
            "text": [f"row {row}" for row in range(ROWS_PER_FILE)],
            **{f"number_{column}": [row * column for row in range(ROWS_PER_FILE)] for column in range(6)},
        }
    )
    first = folder / "part-0.parquet"
    pq.write_table(table, first, row_group_size=ROW_GROUP_ROWS, write_page_index=True)
    body = first.read_bytes()
    for number in range(1, num_files):
        (folder / f"part-{number}.parquet").write_bytes(body)
    for path in folder.iterdir():
        # Files that were just changed are not cached.
        os.utime(path, (1, 1))


def opened(source: str) -> dict[str, float]:
    """Opens a source in this process; returns the seconds, the CPU seconds, and the memory used afterwards."""
    import forebay as fb

    held_before = resident_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    ds = fb.load_dataset(source, split="train")
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    held = resident_bytes() - held_before
    return {"rows": ds.num_rows, "seconds": seconds, "cpu_seconds": cpu, "mib": held / 2**20}


def resident_bytes() -> int:
    """Returns the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def run(source: str | Path, cache: Path | None) -> dict[str, float]:
    """Opens a source in a new interpreter, with or without a cache."""
    environment = os.environ | {"FOREBAY_CACHE": "0" if cache is None else str(cache)}
    command = [sys.executable, __file__, "--open", str(source)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(folder: Path, scratch: Path) -> dict[str, dict[str, float]]:
    """Returns the best of several runs of each way."""
    import forebay as fb

    manifest = scratch / "files.forebay"
    fb.load_dataset(folder, split="train").save_manifest(manifest)
    cache = scratch / "cache"
    run(folder, cache)
    ways = {
        "cold, no cache": (folder, None),
        "cold, cache written": (folder, cache),
        "warm": (folder, cache),
        "manifest": (manifest, None),
    }
    found = {}
    for name, (source, folder_of_cache) in ways.items():
        runs = []
        for _ in range(NUM_RUNS):
            if "written" in name:
                shutil.rmtree(cache)
            runs.append(run(source, folder_of_cache))
        found[name] = min(runs, key=lambda one: one["seconds"])
    sizes = {"cache": cache, "manifest": manifest}
    for name, path in sizes.items():
        paths = [path] if path.is_file() else [below for below in path.rglob("*") if below.is_file()]
        found[f"size of the {name}"] = {"mib": sum(below.stat().st_size for below in paths) / 2**20}
    return found


def main() -> None:
    """Measures and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--open", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.open:
        print(json.dumps(opened(arguments.open)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "files"
        write(folder, arguments.files)
        found = measure(folder, Path(scratch))
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for name, numbers in found.items():
        print(f"{name:22}", ", ".join(f"{value:,.2f} {what}" for what, value in numbers.items()))


if __name__ == "__main__":
    main()
