"""Changes of answers, as networks and broken servers make them: what a `Fault` is told to do with what it has taken."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from upstreams import Answer

Edit = Callable[["Answer"], None]


def flipped_bit(place: float = 0.5) -> Edit:
    """Flips one bit of the body, at a part of its length."""

    def edit(answer: Answer) -> None:
        if answer.body:
            body = bytearray(answer.body)
            body[min(int(len(body) * place), len(body) - 1)] ^= 0x10
            answer.body = bytes(body)

    return edit


def shortened(num_bytes: int = 1) -> Edit:
    """Leaves out the end of the body, and says the length of what is left."""

    def edit(answer: Answer) -> None:
        answer.body = answer.body[:-num_bytes]
        answer.headers["content-length"] = str(len(answer.body))

    return edit


def lengthened(num_bytes: int = 16) -> Edit:
    """Sends more after the body, and does not say its length."""

    def edit(answer: Answer) -> None:
        answer.body += bytes(num_bytes)
        answer.headers.pop("content-length", None)

    return edit


def coded() -> Edit:
    """Compresses the body, as some proxies do, and does not say its length."""

    def edit(answer: Answer) -> None:
        answer.body = gzip.compress(answer.body)
        answer.headers["content-encoding"] = "gzip"
        answer.headers.pop("content-length", None)

    return edit


def replaced(found: bytes, by: bytes) -> Edit:
    """Puts other text in the place of what a pattern finds in the body."""

    def edit(answer: Answer) -> None:
        answer.body = re.sub(found, by, answer.body, flags=re.DOTALL)
        answer.headers["content-length"] = str(len(answer.body))

    return edit


def doubled(num_bytes: int = 16) -> Edit:
    """Sends the first bytes of the body twice, and says that length."""

    def edit(answer: Answer) -> None:
        answer.body = answer.body[:num_bytes] + answer.body
        answer.headers["content-length"] = str(len(answer.body))

    return edit


def doubled_within(num_bytes: int = 16) -> Edit:
    """Sends the first bytes of the body twice and leaves out as many at the end: the length is right."""

    def edit(answer: Answer) -> None:
        answer.body = (answer.body[:num_bytes] + answer.body)[: len(answer.body)]

    return edit


def shifted_range(by: int = 1) -> Edit:
    """Says that the body is of another place than the one asked for; it is that of the one asked for."""

    def edit(answer: Answer) -> None:
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("content-range", ""))
        if found is not None:
            first, last, size = (int(part) for part in found.groups())
            answer.headers["content-range"] = f"bytes {first + by}-{last + by}/{size}"

    return edit


def with_header(name: str, value: str | None) -> Edit:
    """Says something else in a header, or nothing."""

    def edit(answer: Answer) -> None:
        answer.headers.pop(name, None)
        if value is not None:
            answer.headers[name] = value

    return edit


EDITS: dict[str, Callable[[], Edit]] = {
    "flipped_bit": flipped_bit,
    "shortened": shortened,
    "doubled": doubled,
    "shifted_range": shifted_range,
}
"""Those that are known by name, to programs."""
