"""Runs Python programs in processes of their own, for tests about whole processes."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def torchrun(code: str, num_ranks: int, folder: Path, *arguments: object, timeout: float = 100) -> list[Any]:
    """Runs a program on ranks that `torchrun` starts, and returns what each of them reported, by rank.

    The program calls `report(value)` once, and `join()` to be in a process group.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "program.py"
    program.write_text(f"from programs import join, report\n{textwrap.dedent(code)}")
    # The folder of the reports is the program's own.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    done = subprocess.run(
        [*command, str(program), *map(str, arguments)],
        env=python_environment({"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(num_ranks)]


def join() -> None:
    """Makes this process, which `torchrun` started, a rank of a process group."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    atexit.register(dist.destroy_process_group)


def report(value: object) -> None:
    """Hands what this rank found to the test."""
    Path(sys.argv[0]).with_name(f"rank-{os.environ['RANK']}.json").write_text(json.dumps(value))
