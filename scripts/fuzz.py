"""Builds the fuzz targets, runs them, and keeps the inputs they find.

    python3 scripts/fuzz.py run --seconds 60            # every target for a minute
    python3 scripts/fuzz.py run pages sql --seconds 600
    python3 scripts/fuzz.py merge                       # reduce what was found to a small corpus in fuzz/corpus
    python3 scripts/fuzz.py asan                        # run the unit tests with AddressSanitizer
    python3 scripts/fuzz.py reproduce pages INPUT       # run one input and show where it fails

Compiler and dependencies are those of every other build; only our own crates are instrumented (`sanitized_rustc.sh`).
New inputs are written to `target/fuzz`. Failing inputs are written to `fuzz/artifacts`, and their paths are printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "fuzz" / "corpus"
ARTIFACTS = ROOT / "fuzz" / "artifacts"
TARGET_DIR = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# Inputs found while fuzzing; `merge` moves the useful ones to CORPUS.
FOUND = TARGET_DIR / "fuzz"

CARGO = ["cargo", "--locked"]
MAX_INPUT_BYTES = {"objects": 16384, "pages": 4096, "sql": 1024, "uris": 512}
# Limits of a target's committed corpus.
MAX_CORPUS_BYTES = 100_000
MAX_CORPUS_INPUTS = 300
# Hostile input may take memory in proportion to its size; SQL may take much more, for example with `repeat`.
MAX_MEMORY_MB = 2048
# Tests of code that handles untrusted bytes and raw memory.
ASAN_TESTS = ["alloc::", "decode::", "snapshot::", "selection::", "stream::", "forms::", "fuzz::", "plan::"]
ASAN_TESTS += ["source::uri", "source::cached", "past_caches::", "process::", "io::", "parts::"]


def targets() -> list[str]:
    """Returns the names of all targets."""
    return sorted(path.stem for path in (ROOT / "fuzz" / "fuzz_targets").glob("*.rs"))


def environment() -> dict[str, str]:
    """Returns the environment in which cargo instruments our crates."""
    wrapper = str(ROOT / "scripts" / "sanitized_rustc.sh")
    # Memory that lives as long as the process would be reported as leaks; Rust code has few real ones.
    return {**os.environ, "RUSTC_WORKSPACE_WRAPPER": wrapper, "ASAN_OPTIONS": "detect_leaks=0"}


def build() -> None:
    """Builds all targets."""
    command = ["build", "--release", "--workspace", "--features", "forebay-fuzz/libfuzzer", "--bins"]
    subprocess.run([*CARGO, *command], check=True, cwd=ROOT, env=environment())


def libfuzzer(target: str, *arguments: str | Path) -> int:
    """Runs a target's binary."""
    binary = TARGET_DIR / "release" / f"fuzz_{target}"
    return subprocess.run([binary, *arguments], check=False, cwd=ROOT, env=environment()).returncode


def run(target: str, seconds: int) -> bool:
    """Runs a target for some seconds and returns whether nothing failed."""
    found, artifacts = FOUND / target, ARTIFACTS / target
    for folder in (found, artifacts, CORPUS / target):
        folder.mkdir(parents=True, exist_ok=True)
    dictionary = ROOT / "fuzz" / "dictionaries" / f"{target}.dict"
    print(f"==> {target}: {seconds} s", flush=True)
    start = time.monotonic()
    code = libfuzzer(
        target,
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_BYTES.get(target, 4096)}",
        f"-rss_limit_mb={MAX_MEMORY_MB}",
        "-timeout=20",
        "-print_final_stats=1",
        "-verbosity=1",
        f"-artifact_prefix={artifacts}/",
        *([f"-dict={dictionary}"] if dictionary.exists() else []),
        found,
        CORPUS / target,
    )
    print(
        f"==> {target}: {'nothing failed' if code == 0 else 'FAILED'} in {time.monotonic() - start:.0f} s", flush=True
    )
    return code == 0


def merge(target: str) -> bool:
    """Reduces a target's corpus to the smallest inputs with the same coverage, within the limits of size and number."""
    (merged := FOUND / f"{target}-merged").mkdir(parents=True, exist_ok=True)
    for old in merged.iterdir():
        old.unlink()
    if libfuzzer(target, "-merge=1", "-verbosity=0", merged, FOUND / target, CORPUS / target) != 0:
        return False
    for old in (CORPUS / target).iterdir():
        old.unlink()
    left = MAX_CORPUS_BYTES
    inputs = sorted(merged.iterdir(), key=lambda path: (path.stat().st_size, path.name))
    # If there are too many, keep some of every size.
    for new in inputs[:: -(-len(inputs) // MAX_CORPUS_INPUTS) or 1]:
        left -= new.stat().st_size
        if left < 0:
            break
        new.rename(CORPUS / target / new.name[:16])
    print(f"==> {target}: {len(list((CORPUS / target).iterdir()))} inputs", flush=True)
    return True


def asan(filters: list[str]) -> bool:
    """Runs the unit tests of the core and of the extension's allocator with AddressSanitizer."""
    command = ["test", "--release", "--workspace", "--lib", "--test", "alloc", "--", *(filters or ASAN_TESTS)]
    return subprocess.run([*CARGO, *command], check=False, cwd=ROOT, env=environment()).returncode == 0


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "merge"):
        command = commands.add_parser(name)
        command.add_argument("targets", nargs="*", choices=[*targets(), []], metavar="TARGET", help="default: all")
        command.add_argument("--seconds", type=int, default=60, help="seconds for each target")
    commands.add_parser("asan").add_argument("filters", nargs="*", help="parts of test names")
    reproduce = commands.add_parser("reproduce")
    reproduce.add_argument("target", choices=targets())
    reproduce.add_argument("input", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "asan":
        return 0 if asan(arguments.filters) else 1
    build()
    if arguments.command == "reproduce":
        return libfuzzer(arguments.target, arguments.input)
    results = [
        run(target, arguments.seconds) if arguments.command == "run" else merge(target)
        for target in arguments.targets or targets()
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
