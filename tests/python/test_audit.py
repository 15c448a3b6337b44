"""What is linked is what `deny.toml` allows, and the script that says so can say no."""

from __future__ import annotations

import tomllib

import audit
import pytest

RULES = tomllib.loads((audit.ROOT / "deny.toml").read_text())


@pytest.mark.parametrize(
    ("licence", "is_allowed"),
    [
        ("MIT", True),
        ("MIT/Apache-2.0", True),
        ("GPL-3.0", False),
        ("GPL-3.0 OR MIT", True),
        ("MIT AND GPL-3.0", False),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", True),
        ("(GPL-2.0 OR GPL-3.0) AND Unicode-3.0", False),
        ("GPL-3.0 AND MIT OR ISC", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0 WITH LLVM-exception", False),
        ("(MIT", False),
        ("MIT MIT", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_where_one_way_to_take_it_is(licence, is_allowed):
    assert audit.is_allowed(licence, set(RULES["licenses"]["allow"])) is is_allowed


def test_crates_of_other_licences_sources_or_names_are_problems():
    good = {"name": "bytes", "version": "1.0.0", "license": "MIT", "source": audit.REGISTRY}
    bad = [
        good | {"license": "AGPL-3.0"},
        good | {"license": None},
        good | {"source": "git+https://example.org/x"},
        good | {"name": "openssl-sys"},
    ]
    assert audit.problems([good], RULES) == []
    assert len(audit.problems([good, *bad], RULES)) == len(bad)


def test_the_lock_file_has_no_problems():
    crates = audit.packages()
    assert len(crates) > 100
    assert audit.problems(crates, RULES) == []
