"""Runs Python programs in processes of their own, for tests about whole processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MODULES = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - of this file, whatever the folder


def python_command(code: str, *arguments: object) -> list[str]:
    """The command that runs a program; its arguments are `sys.argv[1:]`."""
    return [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)]


def python_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, with the modules of the tests to import."""
    return os.environ | {"PYTHONPATH": MODULES} | dict(changes or {})


def run_python(code: str, *arguments: object, environment: Mapping[str, str] | None = None, timeout: float = 60) -> str:
    """Runs a program that must succeed, and returns what it printed."""
    done = subprocess.run(
        python_command(code, *arguments),
        env=python_environment(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
