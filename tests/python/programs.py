"""Runs Python programs in processes of their own, for tests about whole processes."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MODULES = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - of this file, whatever the folder

SECONDS_TO_CLEAN_UP = 3.0
"""How long workers may take to notice that their parent is gone, and other programs' shared memory to go away."""

HEAD = """
import os
from programs import join, report, say
say("pid", str(os.getpid()))
"""
"""How the program of a rank begins."""


def is_raised_in_a_fork(error: type[Exception], call: Callable[[], object]) -> bool:
    """Returns whether a call raises an error in a forked child, which ends with it."""
    child = os.fork()
    if child == 0:
        try:
            call()
        except error:
            os._exit(7)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def our_threads() -> dict[int, str]:
    """Names of the threads of this process that are the core's, by their numbers."""
    found = {}
    # Their names are those of the threads that started them.
    of_python = {thread.native_id for thread in threading.enumerate()}
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name.startswith("forebay") and int(task.name) not in of_python:
            found[int(task.name)] = name
    return found


def python_command(code: str, *arguments: object) -> list[str]:
    """The command that runs a program; its arguments are `sys.argv[1:]`."""
    return [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)]


def python_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, with the modules of the tests to import; programs that crash say where."""
    return os.environ | {"PYTHONPATH": MODULES, "PYTHONFAULTHANDLER": "1"} | dict(changes or {})


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
    with start_torchrun(code, num_ranks, folder, *arguments) as process:
        out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, f"exit status {process.returncode}\n{out}\n{err}"
    return [json.loads((folder / f"report-{rank}").read_text()) for rank in range(num_ranks)]


@contextlib.contextmanager
def start_torchrun(code: str, num_ranks: int, folder: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Starts a program on ranks that `torchrun` starts; kills what is left of them in the end."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "program.py"
    # Each rank is to be found from its first line on: what it imports may take longer than there is time.
    program.write_text(f"{HEAD}\n{textwrap.dedent(code)}")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    with subprocess.Popen(
        [*command, str(program), *map(str, arguments)],
        env=python_environment({"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            # Ranks are in sessions of their own.
            for pid in [process.pid, *(int(path.read_text()) for path in folder.glob("pid-*"))]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def join() -> None:
    """Makes this process, which `torchrun` started, a rank of a process group."""
    import torch.distributed as dist

    dist.init_process_group("gloo")


@atexit.register
def _leave() -> None:
    """Leaves the process group that the program, or a library, has joined: threads of it may not run at the end."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def report(value: object) -> None:
    """Hands what this rank found to the test."""
    say("report", json.dumps(value))


def say(name: str, text: str) -> None:
    """Writes a file of this rank's beside its program, at once or not at all."""
    path = Path(sys.argv[0]).with_name(f"{name}-{os.environ['RANK']}")
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").replace(path)


@dataclass(frozen=True)
class Ending:
    """How a program ended, from the moment it said `going`, and what was left of it."""

    status: int
    seconds: float
    out: list[str]
    err: str
    left: list[str]
    """Processes of its own, files in its temporary folder, shared memory."""


def run_to_its_end(
    code: str, *arguments: object, folder: Path, then: Callable[[subprocess.Popen[str]], object] | None = None
) -> Ending:
    """Runs a program until it ends, which it must soon after it printed `going`.

    Args:
        code: The program.
        arguments: Its arguments.
        folder: An empty one for its temporary files.
        then: What to do to it once it printed `going`.
    """
    shared = shared_memory()
    with subprocess.Popen(
        python_command(code, *arguments),
        env=python_environment({"TMPDIR": str(folder)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out = []
            for line in process.stdout:
                if line == "going\n":
                    break
                out.append(line.rstrip("\n"))
            else:
                raise AssertionError(f"it ended before it was going: {out} {process.stderr.read()}")
            if then is not None:
                then(process)
            start = time.monotonic()
            process.wait(timeout=20)
            seconds = time.monotonic() - start
            end = time.monotonic() + SECONDS_TO_CLEAN_UP
            while (left := _left(process.pid, folder, shared)) and time.monotonic() < end:
                time.sleep(0.01)
        finally:
            # Whoever is left keeps the pipes open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        out += process.stdout.read().splitlines()
        return Ending(process.returncode, seconds, out, process.stderr.read(), left)


def shared_memory() -> dict[str, str]:
    """Returns what has a name in shared memory, by its inode."""
    with os.scandir("/dev/shm") as entries:
        return {str(entry.inode()): entry.path for entry in entries}


def abandoned_memory(before: dict[str, str]) -> list[str]:
    """Returns what of it was not there before and no process has mapped: other tests have theirs meanwhile."""
    found = {inode: path for inode, path in shared_memory().items() if inode not in before}
    for maps in Path("/proc").glob("[0-9]*/maps") if found else ():
        # Processes end. Semaphores are mapped under another name.
        with contextlib.suppress(OSError):
            for line in maps.read_text().splitlines():
                if "/dev/shm/" in line:
                    found.pop(line.split()[4], None)
    return list(found.values())


def descriptors() -> int:
    """Returns how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def shared_blocks() -> tuple[int, int]:
    """Returns how many blocks this process has mapped, and how many files of blocks it has open."""
    num_open = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            num_open += "memfd:forebay" in str(file.readlink())
    return Path("/proc/self/maps").read_text().count("memfd:forebay"), num_open


def _left(group: int, folder: Path, shared: dict[str, str]) -> list[str]:
    left = [*map(str, folder.rglob("*")), *abandoned_memory(shared)]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 0)
        left.append(f"processes of {group}")
    return left
