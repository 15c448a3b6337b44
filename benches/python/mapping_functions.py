"""The functions that the workers of `mapping.py` run, in a module that is quick to import."""

from __future__ import annotations

import time
from typing import Any

SECONDS = 0.001


def compute(batch: Any) -> Any:
    """Computes for a millisecond while holding the GIL."""
    end = time.thread_time() + SECONDS
    while time.thread_time() < end:
        pass
    return batch


def wait(batch: Any) -> Any:
    """Sleeps for a millisecond, so that only the cost of passing batches remains."""
    time.sleep(SECONDS)
    return batch
