"""The order of an epoch in plain Python, independent of the Rust code.

    python tests/golden/order.py           compares orders.json with what this file computes
    python tests/golden/order.py --write   writes orders.json anew: a breaking change, never a fix

docs/order.md explains the rules. This is the slow, obvious form of them.
"""

import hashlib
import json
import struct
import sys
from pathlib import Path

GOLDEN = Path(__file__).with_name("orders.json")


def chacha8(key: bytes, counter: int, stream: int) -> list[int]:
    """Returns one block of the key stream: 16 words."""
    constants = struct.unpack("<4I", b"expand 32-byte k")
    state = [*constants, *struct.unpack("<8I", key), *struct.unpack("<4I", struct.pack("<QQ", counter, stream))]
    x = list(state)

    def add_xor_rotate(a: int, b: int, d: int, bits: int) -> None:
        x[a] = (x[a] + x[b]) & 0xFFFFFFFF
        x[d] ^= x[a]
        x[d] = ((x[d] << bits) | (x[d] >> (32 - bits))) & 0xFFFFFFFF

    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for _ in range(4):
        for a, b, c, d in columns + diagonals:
            add_xor_rotate(a, b, d, 16)
            add_xor_rotate(c, d, b, 12)
            add_xor_rotate(a, b, d, 8)
            add_xor_rotate(c, d, b, 7)
    return [(a + b) & 0xFFFFFFFF for a, b in zip(x, state)]


def bits(seed: int, epoch: int, purpose: str, stream: int, x: int) -> int:
    """Returns number x of a stream: 53 random bits."""
    key = hashlib.sha256(b"forebay" + struct.pack("<QQ", seed, epoch) + purpose.encode()).digest()
    block, word = divmod(2 * x, 16)
    words = chacha8(key, block, stream)
    return (words[word] | words[word + 1] << 32) >> 11


def uniform(seed: int, epoch: int, purpose: str, stream: int, x: int) -> float:
    """Returns number x of a stream as a fraction in [0, 1)."""
    return bits(seed, epoch, purpose, stream, x) * 2.0**-53


def order(spans: list[int], shuffle: dict[str, int] | None) -> list[tuple[int, int]]:
    """Returns the rows of an epoch by position, as (span, kept row of the span).

    Args:
        spans: The number of kept rows of each span, in dataset order.
        shuffle: seed, epoch, num_lanes and window_rows, or None for dataset order.
    """
    rows = [(span, row) for span, kept in enumerate(spans) for row in range(kept)]
    if shuffle is None:
        return rows
    seed, epoch, lanes, window = (shuffle[name] for name in ("seed", "epoch", "num_lanes", "window_rows"))
    n = len(rows)
    if n <= lanes * window:
        return [rows[x] for x in sorted(range(n), key=lambda x: (uniform(seed, epoch, "all", 0, x), x))]
    deal = sorted(range(len(spans)), key=lambda span: (uniform(seed, epoch, "spans", 0, span), span))
    rows = [(span, row) for span in deal for row in range(spans[span])]
    short, longer = divmod(n, lanes)
    cut = [lane * short + min(lane, longer) for lane in range(lanes + 1)]
    by_lane = []
    for lane in range(lanes):
        part = rows[cut[lane] : cut[lane + 1]]
        keys = [(x + (uniform(seed, epoch, "place", lane, x) - 0.5) * window, x) for x in range(len(part))]
        by_lane.append([part[x] for _, x in sorted(keys)])
    return [by_lane[g % lanes][g // lanes] for g in range(n)]


def shuffle(seed: int, epoch: int, num_lanes: int, window_rows: int) -> dict[str, int]:
    """Names the settings of a shuffle."""
    return {"seed": seed, "epoch": epoch, "num_lanes": num_lanes, "window_rows": window_rows}


def golden() -> dict[str, list[dict[str, object]]]:
    """Computes everything in orders.json."""
    draws = [
        (0, 0, "spans", 0, 0),
        (42, 1, "spans", 0, 1),
        (42, 1, "all", 0, 31),
        (42, 1, "all", 0, 32),
        (2**64 - 1, 2**40, "place", 191, 12345),
        (7, 0, "place", 5, 2**40 + 3),
    ]
    uneven = [1, 30, 7, 1, 1, 40, 12, 60, 3, 3, 25, 2, 17]
    cases = {
        "sequential": ([3, 1, 4], None),
        "permutation of a small epoch": ([5, 1, 9, 2, 7], shuffle(42, 0, 4, 6)),
        "permutation in the next epoch": ([5, 1, 9, 2, 7], shuffle(42, 1, 4, 6)),
        "even spans in three lanes": ([10] * 20, shuffle(42, 0, 3, 30)),
        "uneven spans in eight lanes": (uneven, shuffle(7, 3, 8, 12)),
        "one lane": (uneven, shuffle(7, 0, 1, 25)),
        "a span across all lanes": ([2, 100, 2], shuffle(1, 0, 6, 5)),
        "single rows": ([1] * 60, shuffle(2**64 - 1, 2**63, 5, 4)),
        "a window of one row": ([4] * 9, shuffle(0, 0, 2, 1)),
    }
    names = ("seed", "epoch", "purpose", "stream", "x")
    return {
        "draws": [{**dict(zip(names, draw)), "bits": bits(*draw)} for draw in draws],
        "orders": [
            {"name": name, "spans": spans, "shuffle": settings, "rows": order(spans, settings)}
            for name, (spans, settings) in cases.items()
        ],
    }


def main() -> None:
    """Compares or writes the golden orders, one case to a line."""
    computed = golden()
    lines = [
        f'"{part}": [\n' + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]"
        for part, cases in computed.items()
    ]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if "--write" in sys.argv:
        GOLDEN.write_text(text)
    elif GOLDEN.read_text() != text:
        sys.exit(f"{GOLDEN} is not what the rules give")


if __name__ == "__main__":
    main()
