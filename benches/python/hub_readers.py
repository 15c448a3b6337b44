"""Reads tokens and text of a Hugging Face Hub into torch: Forebay beside `datasets`, on a Hub of this machine.

    python benches/python/hub_readers.py [--rows 20000] [--latency 0.05] [--json]

The Hub is that of the tests, in a process of its own. Each reader runs in an interpreter of its own, from opening to
the last batch of one epoch in order, without imports, in batches of 256 rows; `datasets` as its documentation
has it, in a `DataLoader` without workers. Bytes and requests are counted by the Hub.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TESTS = Path(__file__).resolve().parents[2] / "tests" / "python"
BATCH_ROWS = 256
NUM_FILES = 4
ROW_GROUP_ROWS = 1000
CASES = ("tokens", "text")
READERS = ("forebay", "datasets")


def files(case: str, num_rows: int) -> dict[str, bytes]:
    """Makes the Parquet files of a case."""
    random = np.random.default_rng(0)
    found = {}
    for number in range(NUM_FILES):
        rows = num_rows // NUM_FILES
        if case == "tokens":
            values = pa.array(random.integers(0, 50_000, rows * 512, dtype=np.int32))
            column: Any = pa.ListArray.from_arrays(pa.array(np.arange(0, rows * 512 + 1, 512, dtype=np.int32)), values)
        else:
            words = np.array([f"word{number}" for number in range(5000)])
            column = pa.array([" ".join(words[random.integers(0, 5000, 150)]) for _ in range(rows)])
        sink = io.BytesIO()
        pq.write_table(pa.table({case: column}), sink, row_group_size=ROW_GROUP_ROWS, compression="zstd")
        found[f"data/train-{number:05}-of-{NUM_FILES:05}.parquet"] = sink.getvalue()
    return found


def serve(num_rows: int, latency: float) -> None:
    """Is the Hub: says where it is, and then, for each line that it is told, what it was asked since the last one."""
    sys.path.insert(0, str(TESTS))
    hub_of_tests = importlib.import_module("hub")

    with hub_of_tests.Hub() as hub:
        for case in CASES:
            hub.create(f"bench/{case}", files(case, num_rows))
        hub.latency = latency
        print(hub.url, flush=True)
        for _ in sys.stdin:
            counts = {kind: hub.count(kind) for kind in ("api", "resolve", "cdn")}
            print(json.dumps({**counts, "bytes": hub.num_bytes()}), flush=True)
            hub.clear()


def read(reader: str, case: str) -> dict[str, float]:
    """Reads an epoch, and returns rows, seconds to the first batch and in all."""
    import torch.utils.data

    batches: Any
    if reader == "forebay":
        import forebay as fb

        start = time.perf_counter()
        batches = fb.load_dataset(f"bench/{case}", split="train").to_torch(BATCH_ROWS)
    else:
        import datasets

        start = time.perf_counter()
        dataset = datasets.load_dataset(f"bench/{case}", split="train", streaming=True)
        batches = torch.utils.data.DataLoader(dataset.with_format("torch"), batch_size=BATCH_ROWS)
    num_rows, first = 0, 0.0
    for batch in batches:
        first = first or time.perf_counter() - start
        num_rows += len(batch[case])
    return {"rows": num_rows, "first_batch": first, "seconds": time.perf_counter() - start}


def measure(num_rows: int, latency: float) -> list[dict[str, Any]]:
    """Runs all readers on all cases, each in its own interpreter."""
    program = [sys.executable, __file__]
    found = []
    with tempfile.TemporaryDirectory() as home:
        command = [*program, "--serve", "--rows", str(num_rows), "--latency", str(latency)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            said, told = server.stdout, server.stdin
            if said is None or told is None:
                raise RuntimeError("the Hub has no pipes")
            url = said.readline().strip()
            hub = {"HF_ENDPOINT": url, "HF_HOME": home, "HF_HUB_DISABLE_XET": "1", "FOREBAY_CACHE": "0"}
            for case in CASES:
                for reader in READERS:
                    run = [*program, "--read", reader, case]
                    done = subprocess.run(run, env=os.environ | hub, capture_output=True, text=True, check=True)
                    told.write("\n")
                    told.flush()
                    counts = json.loads(said.readline())
                    measured = json.loads(done.stdout.splitlines()[-1])
                    found.append({"case": case, "reader": reader, "latency": latency, **measured, **counts})
            told.close()
    return found


def main() -> None:
    """Measures, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.rows, arguments.latency)
    elif arguments.read:
        print(json.dumps(read(*arguments.read)))
    else:
        found = measure(arguments.rows, arguments.latency)
        if arguments.json:
            print(json.dumps(found))
            return
        print(f"{'case':8}{'reader':10}{'rows/s':>10}{'first batch':>13}{'MB':>8}{'Hub':>6}{'CDN':>6}")
        for row in found:
            rate, asked = row["rows"] / row["seconds"], row["api"] + row["resolve"]
            size = row["bytes"] / 1e6
            named = f"{row['case']:8}{row['reader']:10}{rate:>10,.0f}{row['first_batch']:>11.2f} s"
            print(f"{named}{size:>8.1f}{asked:>6}{row['cdn']:>6}")


if __name__ == "__main__":
    main()
