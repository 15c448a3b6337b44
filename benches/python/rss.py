"""Plots the memory of an epoch over time into `docs/rss.svg`: resident memory, and the stream's own count.

For each memory limit, a separate process reads a shuffled epoch of `tokens-indexed` (see data.py) whose windows take
half of the limit. Resident memory excludes what the process held with the data set opened and one batch read.

    python benches/python/rss.py [--data FOLDER] [--limits 256 1024]
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import data
from harness import MIB, ROOT

PICTURE = ROOT / "docs" / "rss.svg"
REPEATS = 4
BATCH_SIZE = 256
SEED = 7
SECONDS_BETWEEN = 0.05

WIDTH, HEIGHT = 720, 220
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 34, 40
MAX_POINTS = 300


@dataclass(frozen=True)
class Sample:
    """One sample of the process."""

    seconds: float
    resident_mib: float
    counted_mib: float


def resident_bytes() -> int:
    """Returns the resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("no VmRSS in /proc/self/status: this needs Linux")


def probe(folder: str, limit: int) -> list[tuple[float, float, float]]:
    """Reads an epoch in this process and returns the samples."""
    import forebay as fb

    dataset = fb.load_dataset(folder, split="train", columns=["tokens"])
    for _ in dataset.to_torch(BATCH_SIZE, memory_limit=limit):
        break
    stream = dataset.shuffle(seed=SEED, shuffle_bytes=limit // 2).to_torch(BATCH_SIZE, memory_limit=limit)
    gc.collect()
    before = resident_bytes()
    samples: list[tuple[float, float, float]] = []
    is_over = threading.Event()
    started = time.perf_counter()

    def look() -> None:
        while not is_over.wait(SECONDS_BETWEEN):
            counted = stream.stats().get("memory_bytes", 0.0)
            seen = (time.perf_counter() - started, (resident_bytes() - before) / MIB, counted / MIB)
            samples.append(seen)

    watcher = threading.Thread(target=look)
    watcher.start()
    for batch in stream:
        del batch
    is_over.set()
    watcher.join()
    return samples


def panel(samples: list[Sample], limit_mib: int, top: int) -> list[str]:
    """Draws the epoch of one limit."""
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    end = max(sample.seconds for sample in samples)
    most = max(limit_mib * 1.25, *(sample.resident_mib for sample in samples))

    def at(seconds: float, mib: float) -> str:
        return f"{LEFT + seconds / end * width:.1f},{top + TOP + (1 - max(mib, 0) / most) * height:.1f}"

    def line(values: list[tuple[float, float]], style: str) -> str:
        return f'<polyline class="{style}" points="{" ".join(at(*value) for value in values)}"/>'

    parts = [f'<text class="title" x="{LEFT}" y="{top + 20}">memory_limit {limit_mib:,} MiB</text>']
    step = limit_mib // 4
    for mib in range(0, int(most) + 1, step):
        x, y = at(0, mib).split(",")
        parts.append(f'<line class="grid" x1="{x}" y1="{y}" x2="{LEFT + width}" y2="{y}"/>')
        parts.append(f'<text class="y" x="{LEFT - 8}" y="{float(y) + 4:.1f}">{mib:,} MiB</text>')
    for part in range(5):
        tick = LEFT + part / 4 * width
        parts.append(f'<text class="x" x="{tick:.1f}" y="{top + HEIGHT - BOTTOM + 18}">{end * part / 4:.0f} s</text>')
    stride = max(1, len(samples) // MAX_POINTS)
    # The maximum of each stride, so that no peak is left out.
    groups = [samples[first : first + stride] for first in range(0, len(samples), stride)]
    parts.append(line([(0, limit_mib), (end, limit_mib)], "limit"))
    parts.append(line([(group[0].seconds, max(s.counted_mib for s in group)) for group in groups], "counted"))
    parts.append(line([(group[0].seconds, max(s.resident_mib for s in group)) for group in groups], "resident"))
    return parts


def picture(panels: list[tuple[int, list[Sample]]]) -> str:
    """Returns the whole picture."""
    height = HEIGHT * len(panels) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12" role="img" aria-label="Resident memory over an epoch stays below the memory limit">',
        "<style>polyline{fill:none;stroke-width:1.5}.resident{stroke:#c2410c}.counted{stroke:#1d4ed8}"
        ".limit{stroke:#6b7280;stroke-dasharray:5 4}.grid{stroke:#e5e7eb}text{fill:#374151}"
        ".title{font-weight:bold}.y{text-anchor:end}.x{text-anchor:middle}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for index, (limit_mib, samples) in enumerate(panels):
        parts += panel(samples, limit_mib, index * HEIGHT)
    x = LEFT
    for style, name in (("resident", "resident"), ("counted", "stats()['memory_bytes']"), ("limit", "memory_limit")):
        parts.append(f'<polyline class="{style}" points="{x},{height - 16} {x + 24},{height - 16}"/>')
        parts.append(f'<text x="{x + 30}" y="{height - 12}">{name}</text>')
        x += 190
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Measures and draws the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=data.default_folder(), help="folder of the data sets")
    parser.add_argument("--limits", type=int, nargs="+", default=[256, 1024], help="memory limits in MiB")
    parser.add_argument("--probe", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.probe:
        folder, limit = arguments.probe
        print(json.dumps(probe(folder, int(limit))))
        return
    folder = data.repeated("tokens-indexed", arguments.data.resolve(), REPEATS)
    panels = []
    for limit_mib in arguments.limits:
        command = [sys.executable, __file__, "--probe", str(folder), str(limit_mib * MIB)]
        seen = subprocess.run(command, check=True, text=True, capture_output=True).stdout
        samples = [Sample(*sample) for sample in json.loads(seen)]
        peak = max(sample.resident_mib for sample in samples)
        print(f"limit {limit_mib:,} MiB: resident {peak:,.0f} MiB at most, {peak / limit_mib:.2f} of it", flush=True)
        panels.append((limit_mib, samples))
    PICTURE.write_text(picture(panels))


if __name__ == "__main__":
    main()
