"""Checks Forebay's dependencies: licences, sources and bans of all crates, by the rules of `deny.toml`.

Optionally checks for known vulnerabilities, if their databases can be reached.

    python3 scripts/audit.py               # needs no network
    python3 scripts/audit.py --advisories  # also runs `cargo deny` or `cargo audit`, and `pip-audit`

The first is part of `make lint`. The result of the second changes as advisories are published, so it is not part of
`.ci/run`. The exit status is 1 if something was found, and 2 if nothing was found but a database could not be reached.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
# What is installed for the package, its tests and its documentation.
REQUIREMENTS = ROOT / "python" / "requirements"
LOCKS = ("dev.txt", "docs.txt")
PIP_AUDIT = ROOT / ".venv-audit" / "bin" / "pip-audit"
NO_DATABASE = "(failed to|couldn't|could not) (fetch|load|open) (the )?advisory database"
"""What `cargo deny` and `cargo audit` print if they cannot get the database."""


def packages() -> list[dict[str, Any]]:
    """Returns all crates in the lock file except our own."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    found: list[dict[str, Any]] = json.loads(told.stdout)["packages"]
    return [package for package in found if package["source"] is not None]


def is_allowed(licence: str, allowed: set[str]) -> bool:
    """Returns whether the allowed licences satisfy an SPDX expression."""
    tokens = re.findall(r"\(|\)|[^\s()]+(?: WITH [^\s()]+)?", licence.replace("/", " OR "))

    def any_of() -> bool:
        result = all_of()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            result = all_of() or result
        return result

    def all_of() -> bool:
        result = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            result = one() and result
        return result

    def one() -> bool:
        if not tokens:
            return False
        first = tokens.pop(0)
        if first != "(":
            return first in allowed
        result = any_of()
        return bool(tokens) and tokens.pop(0) == ")" and result

    return any_of() and not tokens


def problems(found: list[dict[str, Any]], rules: dict[str, Any]) -> list[str]:
    """Returns the violations of the rules of `deny.toml`."""
    allowed = set(rules["licenses"]["allow"])
    banned = {ban["name"]: ban["reason"] for ban in rules["bans"]["deny"]}
    wrong = []
    for package in found:
        name = f"{package['name']} {package['version']}"
        if not is_allowed(package["license"] or "", allowed):
            wrong.append(f"{name}: its licence is `{package['license']}`")
        if package["source"] != REGISTRY:
            wrong.append(f"{name}: it comes from `{package['source']}`")
        if package["name"] in banned:
            wrong.append(f"{name}: {banned[package['name']]}")
    return wrong


@dataclass(frozen=True)
class Advisories:
    """What the vulnerability checks found."""

    found: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)
    """What could not be checked, and why."""


def advisories() -> Advisories:
    """Looks for known vulnerabilities of crates and Python packages."""
    told = Advisories()
    commands = {"cargo-deny": ["cargo", "deny", "check", "advisories"], "cargo-audit": ["cargo", "audit"]}
    rust = next((command for program, command in commands.items() if shutil.which(program)), None)
    if rust is None:
        told.unasked.append(
            "crates: neither `cargo-deny` nor `cargo-audit` is installed; "
            "`cargo install --locked cargo-deny` does so, in some ten minutes"
        )
    else:
        note_crates(told, run(rust))
    program = str(PIP_AUDIT) if PIP_AUDIT.exists() else shutil.which("pip-audit")
    if program is None:
        told.unasked.append("Python packages: `pip-audit` is not installed; `make audit` does so")
        return told
    for lock in LOCKS:
        # `--strict`: a package that the database does not know has not been checked.
        options = ["--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
        note_packages(told, lock, run([program, *options, "-r", str(REQUIREMENTS / lock)]))
    return told


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command in the root of the repository and captures its output."""
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)


def note_crates(told: Advisories, done: subprocess.CompletedProcess[str]) -> None:
    """Records the result of `cargo deny` or `cargo audit`, whose exit status is the same for every kind of problem."""
    if done.returncode == 0:
        return
    said = f"{done.stdout}{done.stderr}".strip()
    if re.search(NO_DATABASE, said):
        told.unasked.append(f"crates: the advisory database cannot be reached:\n{said}")
    else:
        told.found.append(f"crates:\n{said}")


def note_packages(told: Advisories, lock: str, done: subprocess.CompletedProcess[str]) -> None:
    """Records the result of `pip-audit` for a lock file: JSON, unless the database could not be reached."""
    try:
        known = json.loads(done.stdout)["dependencies"]
    except ValueError:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        told.unasked.append(f"{lock}: the advisory database cannot be reached, or does not know all: {said[-1]}")
        return
    for package in known:
        names = ", ".join(vulnerability["id"] for vulnerability in package.get("vulns", []))
        if names:
            told.found.append(f"{lock}: {package['name']} {package['version']}: {names}")


def main() -> int:
    """Runs the checks and prints the problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--advisories", action="store_true", help="also check for known vulnerabilities")
    arguments = parser.parse_args()
    found = packages()
    wrong = problems(found, tomllib.loads((ROOT / "deny.toml").read_text()))
    told = advisories() if arguments.advisories else Advisories()
    wrong += [f"a known vulnerability of {found}" for found in told.found]
    unasked = [f"NOT ASKED about {unasked}" for unasked in told.unasked]
    print("\n".join([*wrong, *unasked, f"{len(found)} crates, {len(wrong)} problems"]))
    return 1 if wrong else 2 if unasked else 0


if __name__ == "__main__":
    sys.exit(main())
