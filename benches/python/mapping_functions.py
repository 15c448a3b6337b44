"""What the workers of `mapping.py` run: a module that processes import quickly."""

from __future__ import annotations

import time
from typing import Any

SECONDS = 0.001


def compute(batch: Any) -> Any:
    """Takes a millisecond of a core, and holds the interpreter's lock meanwhile."""
    end = time.thread_time() + SECONDS
    while time.thread_time() < end:
        pass
    return batch


def wait(batch: Any) -> Any:
    """Takes a millisecond of nobody's time: what is left is the cost of handing batches over."""
    time.sleep(SECONDS)
    return batch
