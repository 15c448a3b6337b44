"""Progress bars for operations that take longer than a moment."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

SHOW_PROGRESS_AFTER = 1.0
"""Seconds after which a selection or an opening shows a progress bar."""

SECONDS_BETWEEN_LINES = 10.0
"""How often a bar is drawn without a terminal, where each drawing is one more line in a log."""

UNITS = {"opening": "file", "selecting": "row group", "reading": "batch"}
"""The units that progress bars count."""

T = TypeVar("T")


def with_progress(what: str, call: Callable[[Callable[[int, int], None]], T]) -> T:
    """Runs `call(tick)`; shows a progress bar if it takes longer than `SHOW_PROGRESS_AFTER`."""
    start = time.monotonic()
    bar: Any = None
    is_terminal = sys.stderr is not None and sys.stderr.isatty()

    def tick(done: int, total: int) -> None:
        nonlocal bar
        if bar is None and total > 0 and time.monotonic() - start > SHOW_PROGRESS_AFTER:
            from tqdm.auto import tqdm

            pace: dict[str, Any] = {} if is_terminal else {"mininterval": SECONDS_BETWEEN_LINES}
            bar = tqdm(desc=what, total=total, unit=UNITS[what], leave=False, **pace)
        # On a terminal, the elapsed time is updated even without progress.
        if bar is not None and (is_terminal or (done, total) != (bar.n, bar.total)):
            bar.total = total
            bar.update(done - bar.n)

    try:
        return call(tick)
    finally:
        if bar is not None:
            bar.close()
