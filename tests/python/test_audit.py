"""What is linked is what `deny.toml` allows, and the script that says so can say no."""

from __future__ import annotations

import json
import subprocess
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


def done(status, stdout="", stderr=""):
    return subprocess.CompletedProcess(["x"], status, stdout, stderr)


UNREACHED = [
    "[ERROR] failed to fetch advisory database https://github.com/rustsec/advisory-db",
    "[ERROR] failed to open advisory database: it does not appear to be a git repository",
    "Fetching advisory database from `https://x`\nerror: couldn't fetch advisory database: git operation failed",
]


@pytest.mark.parametrize("said", UNREACHED)
def test_a_database_of_crates_that_cannot_be_reached_is_not_a_vulnerability(said):
    told = audit.Advisories()
    audit.note_crates(told, done(1, stderr=said))
    assert told.found == []
    assert "cannot be reached" in told.unasked[0]
    assert said in told.unasked[0]


def test_vulnerabilities_of_crates_are_told_apart_from_none():
    told = audit.Advisories()
    audit.note_crates(told, done(0, stderr="advisories ok"))
    assert told == audit.Advisories()
    audit.note_crates(told, done(1, stderr="Fetching advisory database from `https://x`\nRUSTSEC-2026-0001"))
    assert "RUSTSEC-2026-0001" in told.found[0]
    assert told.unasked == []


def test_vulnerabilities_of_packages_are_told_apart_from_none_and_from_no_answer():
    told = audit.Advisories()
    sound = {"name": "a", "version": "1", "vulns": []}
    audit.note_packages(told, "dev.txt", done(0, json.dumps({"dependencies": [sound]})))
    assert told == audit.Advisories()
    broken = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1"}, {"id": "GHSA-2"}]}
    audit.note_packages(told, "dev.txt", done(1, json.dumps({"dependencies": [sound, broken]})))
    assert told == audit.Advisories(found=["dev.txt: b 2: PYSEC-1, GHSA-2"])
    audit.note_packages(told, "docs.txt", done(1, "", "WARNING: x\nERROR: Could not connect to the feed"))
    assert len(told.found) == len(told.unasked) == 1
    assert told.unasked[0].endswith("or does not know all: ERROR: Could not connect to the feed")


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (audit.Advisories(), 0),
        (audit.Advisories(unasked=["crates: no network"]), 2),
        (audit.Advisories(found=["crates: x"], unasked=["dev.txt: no network"]), 1),
    ],
)
def test_the_status_tells_what_was_found_from_who_was_not_asked(told, status, monkeypatch, capsys):
    monkeypatch.setattr(audit, "packages", list)
    monkeypatch.setattr(audit, "advisories", lambda: told)
    monkeypatch.setattr("sys.argv", ["audit.py", "--advisories"])
    assert audit.main() == status
    said = capsys.readouterr().out
    assert said.count("NOT ASKED") == len(told.unasked)
    assert said.count("a known vulnerability") == len(told.found)


def test_without_the_programs_it_is_said_how_to_install_them(monkeypatch, tmp_path):
    monkeypatch.setattr(audit, "PIP_AUDIT", tmp_path / "none")
    monkeypatch.setattr(audit.shutil, "which", lambda _: None)
    told = audit.advisories()
    assert told.found == []
    assert "cargo install --locked cargo-deny" in told.unasked[0]
    assert "make audit" in told.unasked[1]
