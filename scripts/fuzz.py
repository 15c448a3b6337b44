"""Builds the fuzz targets, runs them, and keeps what they find.

    python3 scripts/fuzz.py run --seconds 60            # every target for a minute
    python3 scripts/fuzz.py run pages sql --seconds 600
    python3 scripts/fuzz.py merge                       # put into fuzz/corpus what reaches something new
    python3 scripts/fuzz.py asan                        # the unit tests with AddressSanitizer
    python3 scripts/fuzz.py reproduce pages INPUT       # run one input, and say where it fails

The compiler is the one of every other build, and the dependencies are its; only our crates are instrumented
(`sanitized_rustc.sh`). What is found on the way is in `target/fuzz`; an input that fails is in `fuzz/artifacts`, and
its path is printed.
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
# What is found, apart from what is kept.
FOUND = TARGET_DIR / "fuzz"

CARGO = ["cargo", "--locked"]
MAX_INPUT_BYTES = {"objects": 16384, "pages": 4096, "sql": 1024, "uris": 512}
# Of a target's committed corpus.
MAX_CORPUS_BYTES = 100_000
MAX_CORPUS_INPUTS = 300
# Hostile input takes memory in proportion to itself; SQL may ask for much, as `repeat` does.
MAX_MEMORY_MB = 2048
# Tests of what holds foreign bytes and raw memory.
ASAN_TESTS = ["alloc::", "decode::", "dataset::", "selection::", "stream::", "forms::", "fuzz::", "plan::"]
ASAN_TESTS += ["source::uri", "source::cached", "past_caches::", "process::", "io::", "parts::"]


def targets() -> list[str]:
    """Returns the names of all targets."""
    return sorted(path.stem for path in (ROOT / "fuzz" / "fuzz_targets").glob("*.rs"))


def environment() -> dict[str, str]:
    """Returns the environment that has cargo instrument our crates."""
    wrapper = str(ROOT / "scripts" / "sanitized_rustc.sh")
    # What lives as long as the process is no leak, and Rust code has few others.
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
    """Runs a target for some seconds, and returns whether nothing failed."""
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
    """Puts into a target's corpus the smallest inputs that together reach all that was reached, as far as they fit."""
    (merged := FOUND / f"{target}-merged").mkdir(parents=True, exist_ok=True)
    for old in merged.iterdir():
        old.unlink()
    if libfuzzer(target, "-merge=1", "-verbosity=0", merged, FOUND / target, CORPUS / target) != 0:
        return False
    for old in (CORPUS / target).iterdir():
        old.unlink()
    left = MAX_CORPUS_BYTES
    inputs = sorted(merged.iterdir(), key=lambda path: (path.stat().st_size, path.name))
    # Of too many, some of every size.
    for new in inputs[:: -(-len(inputs) // MAX_CORPUS_INPUTS) or 1]:
        left -= new.stat().st_size
        if left < 0:
            break
        new.rename(CORPUS / target / new.name[:16])
    print(f"==> {target}: {len(list((CORPUS / target).iterdir()))} inputs", flush=True)
    return True


def asan(filters: list[str]) -> bool:
    """Runs unit tests of the core, and those of the extension's allocator, with AddressSanitizer."""
    command = ["test", "--release", "--workspace", "--lib", "--test", "alloc", "--", *(filters or ASAN_TESTS)]
    return subprocess.run([*CARGO, *command], check=False, cwd=ROOT, env=environment()).returncode == 0


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "merge"):
        command = commands.add_parser(name)
        command.add_argument("targets", nargs="*", choices=[*targets(), []], metavar="TARGET", help="default: all")
        command.add_argument("--seconds", type=int, default=60, help="for each target")
    commands.add_parser("asan").add_argument("filters", nargs="*", help="of the tests' names")
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
