"""Runs the measured programs, each in its own process, on the same cores."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MIB = 1 << 20
SECONDS_OF_A_READER = 300
"""Time limit for a reader."""
SECONDS_OF_A_BUILD = 3600
"""Time limit for other programs: cargo builds the bare decode, and conversions write gigabytes."""


class FailedError(Exception):
    """A measured program failed; the message is its output."""


def cpus() -> list[int]:
    """Returns the cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Run:
    """The settings of a benchmark run; it starts the programs."""

    data: Path
    num_rounds: int
    num_cores: int
    is_quick: bool = False
    """Whether to use little data and one round, only to see that everything works."""
    has_decode: bool = True
    """Whether cargo is available to build and run `benches/decode.rs`."""
    readers: tuple[str, ...] = ()
    """Parts of the names of the rivals to measure; if empty, all."""
    failures: list[str] = field(default_factory=list)
    """What could not be measured although the run continued."""

    def note(self, what: str, error: FailedError) -> None:
        """Records that a rival could not be measured: the run continues with the others, and fails at its end."""
        self.failures.append(f"{what}: {error}")
        print(f"    {what} FAILED: {str(error)[-600:]}", flush=True)

    def program(
        self,
        *arguments: object,
        environment: str | None = None,
        num_cores: int | None = None,
        seconds: float = SECONDS_OF_A_READER,
    ) -> Any:
        """Runs a program of this folder and returns the JSON of its last line.

        Args:
            *arguments: The program and its arguments.
            environment: Name of the virtual environment whose Python runs it; by default that of this process.
            num_cores: Number of cores that it may use; by default those of the run.
            seconds: Time limit.
        """
        python = sys.executable if environment is None else str(ROOT / environment / "bin" / "python")
        if not Path(python).exists():
            raise FailedError(f"no {environment}: `make {environment}/done` makes it")
        lines = self.output([python, *map(str, arguments)], HERE, num_cores, seconds).splitlines()
        if not lines:
            raise FailedError(f"{' '.join(map(str, arguments))}: printed nothing")
        return json.loads(lines[-1])

    def output(
        self, command: list[str], folder: Path, num_cores: int | None = None, seconds: float = SECONDS_OF_A_BUILD
    ) -> str:
        """Runs any program on the cores of this run and returns its output.

        Raises:
            FailedError: The program failed or took too long.
        """
        process = subprocess.Popen(
            command,
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # No requests to the network for data, versions or credentials.
            env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
            preexec_fn=functools.partial(os.sched_setaffinity, 0, cpus()[: num_cores or self.num_cores]),
            start_new_session=True,
        )
        try:
            printed, complaints = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise FailedError(f"{' '.join(command)}: not done after {seconds:.0f} s") from error
        finally:
            # Workers that it left behind, and the process itself if this program is interrupted.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            raise FailedError(f"{' '.join(command)}: status {process.returncode}\n{complaints.strip()[-3000:]}")
        return printed


def digest(path: Path) -> str:
    """Returns a hash that identifies the build of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]
