"""Measures Forebay beside other readers and writes what came out into docs/benchmarks.md."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import harness
import tokens

HERE = Path(__file__).resolve().parent
REPORT = HERE.parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- python: begin -->", "<!-- python: end -->"


def import_seconds(module: str) -> float:
    """Returns what importing a module adds to starting the interpreter, the median of five."""

    def run(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - started

    return statistics.median(run(f"import {module}") - run("pass") for _ in range(5))


def main() -> None:
    """Runs the benchmarks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=160_000, help="rows of the token corpus, 8 KiB each when decoded")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each reader; the median counts")
    parser.add_argument("--max-seconds", type=float, default=30.0, help="after which a slow reader is cut short")
    parser.add_argument("--only", nargs="+", choices=list(tokens.READERS), default=list(tokens.READERS))
    arguments = parser.parse_args()

    startup = import_seconds("forebay")
    folder = harness.CACHE / f"tokens-{arguments.rows}"
    print(f"writing {arguments.rows:,} rows into {folder}", flush=True)
    tokens.write(folder, arguments.rows)
    tokens.convert_to_lance(folder)
    results = harness.compare(
        HERE / "tokens.py", arguments.only, folder, rounds=arguments.rounds, max_seconds=arguments.max_seconds
    )
    stored = sum(path.stat().st_size for path in folder.glob("*.parquet"))
    decoded = arguments.rows * tokens.ROW_TOKENS * 4
    report = "\n\n".join(
        [
            f"## Tokens to torch\n\n{arguments.rows:,} rows of `list<int32>[{tokens.ROW_TOKENS}]`, "
            f"{decoded / 1e9:.2f} GB decoded, {stored / 1e9:.2f} GB in {tokens.NUM_OBJECTS} objects (zstd, "
            f" row groups of {tokens.ROW_GROUP_ROWS} rows, page index), batches of {tokens.BATCH_SIZE}, "
            f"local disk, warm page cache. Medians of {arguments.rounds} rounds, each reader in a process of its own.",
            harness.table(results, reference=arguments.only[0]),
            f"`import forebay`: {startup * 1000:.0f} ms.",
            harness.machine(["torch", "pyarrow", "datasets", "duckdb", "pylance"]),
        ]
    )
    print(f"\n{report}")
    if arguments.only == list(tokens.READERS):
        replace_section(REPORT, report)


def replace_section(path: Path, text: str) -> None:
    """Replaces what stands between the two marks of a page, which are put at its end where it has none."""
    page = path.read_text() if path.exists() else "# Benchmarks\n\nWritten by `make bench`.\n"
    if BEGIN not in page:
        page += f"\n{BEGIN}\n{END}\n"
    before, _, rest = page.partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
