"""Progress bars: on a terminal as one expects them, in a log seldom."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from forebay import progress

if TYPE_CHECKING:
    from collections.abc import Callable


class Log(io.StringIO):
    """Notes how often a bar is drawn."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    @property
    def drawn(self) -> list[str]:
        return [line for line in self.getvalue().split("\r") if line.strip()]


def drawn(monkeypatch: pytest.MonkeyPatch, steps: list[int], *, is_terminal: bool) -> list[str]:
    """Returns what is drawn of steps that take an eighth of a second each, by a clock that nobody waits for."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.time", lambda: now[0])
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    log = Log(is_terminal=is_terminal)
    monkeypatch.setattr(sys, "stderr", log)

    def call(tick: Callable[[int, int], None]) -> str:
        for done in steps:
            now[0] += 0.125
            tick(done, 1000)
        return "done"

    assert progress.with_progress("opening", call) == "done"
    return log.drawn


def test_a_log_is_told_seldom_and_a_terminal_often(monkeypatch: pytest.MonkeyPatch) -> None:
    half_a_minute = list(range(240))
    assert len(drawn(monkeypatch, half_a_minute, is_terminal=True)) > 100
    in_log = drawn(monkeypatch, half_a_minute, is_terminal=False)
    assert 2 <= len(in_log) <= 4
    assert all(line.startswith("opening:") for line in in_log)


@pytest.mark.parametrize("done", [0, 7])
def test_nothing_is_drawn_while_nothing_moves(monkeypatch: pytest.MonkeyPatch, done: int) -> None:
    assert len(drawn(monkeypatch, [done] * 240, is_terminal=False)) <= 2


def test_what_takes_a_moment_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, [1, 2, 3], is_terminal=True) == []
