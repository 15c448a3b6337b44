"""Orders that a release must not change: a training run that is resumed would see other rows."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import order_model as model
import pytest

from forebay import _lib

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

CASES = json.loads((GOLDEN / "orders.json").read_text())


@pytest.fixture(params=CASES["orders"], ids=lambda case: case["name"])
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Kept rows of the spans, settings, and the rows by position."""
    return request.param


def settings(case: dict[str, Any]) -> tuple[int, dict[str, int]]:
    shuffle = dict(case["shuffle"] or {})
    return shuffle.pop("epoch", 0), shuffle


def test_golden_orders_are_unchanged(case: dict[str, Any]) -> None:
    epoch, shuffle = settings(case)
    assert _lib.plan_order(case["spans"], epoch, **shuffle) == [tuple(row) for row in case["rows"]]


def test_the_model_agrees_with_the_golden_orders(case: dict[str, Any]) -> None:
    epoch, shuffle = settings(case)
    spans = [[[span, row] for row in range(kept)] for span, kept in enumerate(case["spans"])]
    assert model.epoch(spans, epoch, **({"seed": None} | shuffle)) == case["rows"]


# The model draws from the first number on, so the numbers far off are for the product alone.
NEAR = [draw for draw in CASES["draws"] if draw["x"] < 1 << 20]


@pytest.mark.parametrize("draw", NEAR, ids=lambda draw: f"{draw['purpose']} {draw['x']}")
def test_the_model_agrees_with_the_golden_draws(draw: dict[str, Any]) -> None:
    numbers = model.uniforms(draw["seed"], draw["epoch"], draw["purpose"], draw["stream"], draw["x"] + 1)
    assert numbers[-1] * 2**53 == draw["bits"]


def test_the_golden_orders_are_those_of_the_program_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    program = GOLDEN / "order.py"
    monkeypatch.setattr("sys.argv", [str(program)])
    runpy.run_path(str(program), run_name="__main__")
