"""Checks what Forebay is made of: licences, sources and bans of all crates, as `deny.toml` says.

Known vulnerabilities are asked for, too, where their databases can be reached.

    python3 scripts/audit.py               # needs no network
    python3 scripts/audit.py --advisories  # asks `cargo deny` or `cargo audit`, and `pip-audit`

The first is a part of `make lint`. The second depends on what was published today, so it is no part of `.ci/run`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
# What is installed with the package, or beside it in tests.
REQUIREMENTS = ROOT / "python" / "requirements"


def packages() -> list[dict[str, Any]]:
    """Returns all crates of the lock file, but our own."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    found: list[dict[str, Any]] = json.loads(told.stdout)["packages"]
    return [package for package in found if package["source"] is not None]


def is_allowed(licence: str, allowed: set[str]) -> bool:
    """Returns whether an SPDX expression can be satisfied by licences that are allowed."""
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
    """Returns what is wrong with crates, by the rules of `deny.toml`."""
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


def advisories() -> list[str]:
    """Asks for known vulnerabilities, and returns what was found or could not be asked."""
    commands = {"cargo-deny": ["cargo", "deny", "check", "advisories"], "cargo-audit": ["cargo", "audit"]}
    rust = next((command for program, command in commands.items() if shutil.which(program)), None)
    wrong = [] if rust else ["no advisories for crates: neither `cargo-deny` nor `cargo-audit` is installed"]
    if rust and subprocess.run(rust, check=False, cwd=ROOT).returncode != 0:
        wrong.append(f"`{' '.join(rust)}` failed")
    if not (program := shutil.which("pip-audit")):
        return [*wrong, "no advisories for Python packages: `pip-audit` is not installed"]
    for lock in ("dev.txt", "docs.txt"):
        # A package that the database does not know was not asked about, so `--strict`.
        command = [program, "--strict", "--no-deps", "--disable-pip", "-r", str(REQUIREMENTS / lock)]
        if subprocess.run(command, check=False, cwd=ROOT).returncode != 0:
            wrong.append(f"`pip-audit` failed for {lock}")
    return wrong


def main() -> int:
    """Checks, and says what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--advisories", action="store_true", help="ask for known vulnerabilities, too")
    arguments = parser.parse_args()
    found = packages()
    wrong = problems(found, tomllib.loads((ROOT / "deny.toml").read_text()))
    wrong += advisories() if arguments.advisories else []
    print("\n".join([*wrong, f"{len(found)} crates, {len(wrong)} problems"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
