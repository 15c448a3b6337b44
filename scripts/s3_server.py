"""Runs the S3 server of the tests.

The server is LocalStack with only its S3 service, in its own virtual environment (`.venv-s3`), on a free port of the
loopback interface. It supports the reads, listings and preconditions that Forebay relies on, but accepts any
credentials: tests of refused credentials need another server. Its objects are deleted when it stops.

    s3_server.py install            creates the environment
    s3_server.py run -- COMMAND     runs a command while the server runs
    s3_server.py start              starts a server in the background and prints how to reach it
    s3_server.py stop               stops the server in the background

Programs find the server through the environment variable FOREBAY_TEST_S3_ENDPOINT. Needs only the standard library, so
that it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-s3"
STATE_DIR = ROOT / ".cache" / "s3"
STATE = STATE_DIR / "server.json"
REQUIREMENTS = ROOT / "python" / "requirements" / "s3-server.txt"

ENDPOINT_VARIABLE = "FOREBAY_TEST_S3_ENDPOINT"
# The only Python version that this LocalStack starts on.
PYTHON_VERSION = "3.13"
NUM_START_ATTEMPTS = 3
START_SECONDS = 60.0
STOP_SECONDS = 10.0


class ServerError(Exception):
    """The server cannot be installed or does not start."""


class Server:
    """A running server: its process, endpoint, log and folder of objects."""

    def __init__(self, process: subprocess.Popen[bytes], endpoint: str, log: Path, data_dir: Path) -> None:
        self.process = process
        self.endpoint = endpoint
        self.log = log
        self.data_dir = data_dir

    def stop(self) -> None:
        """Stops the server and deletes its objects."""
        terminate(self.process.pid)
        self.process.wait()
        shutil.rmtree(self.data_dir, ignore_errors=True)


def is_installed() -> bool:
    """Returns whether the current requirements are installed."""
    stamp = VENV / ".requirements.txt"
    return stamp.is_file() and stamp.read_bytes() == REQUIREMENTS.read_bytes()


def install(uv: str) -> None:
    """Creates the server's virtual environment.

    Raises:
        ServerError: There is no suitable Python, or a package cannot be installed.
    """
    if is_installed():
        return
    python = _find_python()
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", python, str(VENV)],
        [uv, "pip", "install", "--quiet", "--no-deps", "--python", str(VENV), "-r", str(REQUIREMENTS)],
    ):
        if subprocess.run(command, check=False).returncode != 0:
            raise ServerError(f"cannot install the S3 server: `{' '.join(command)}` failed")
    shutil.copyfile(REQUIREMENTS, VENV / ".requirements.txt")


def start() -> Server:
    """Starts a server and waits until it answers.

    Raises:
        ServerError: It is not installed, or it does not answer within a minute.
    """
    if not is_installed():
        raise ServerError("the S3 server is not installed: run `make s3-env`")
    for attempt in range(1, NUM_START_ATTEMPTS + 1):
        server = _spawn(free_port())
        if _is_ready(server):
            return server
        server.stop()
        print(f"s3_server: attempt {attempt} failed, see {server.log}", file=sys.stderr)
    raise ServerError("the S3 server does not start")


def _spawn(port: int) -> Server:
    STATE_DIR.mkdir(parents=True, exist_ok=True)
    data_dir = Path(tempfile.mkdtemp(prefix="data-", dir=STATE_DIR))
    log = STATE_DIR / f"{port}.log"
    settings = {
        "SERVICES": "s3",
        "STRICT_SERVICE_LOADING": "1",
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "LOCALSTACK_VOLUME_DIR": str(data_dir),
        "FILESYSTEM_ROOT": str(data_dir),
        # Nothing may leave this machine.
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "DISABLE_EVENTS": "1",
        "DNS_ADDRESS": "0",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(VENV / "bin" / "python"), "-m", "localstack.runtime.main"],
            env={**os.environ, **settings},
            cwd=data_dir,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A separate process group: Ctrl-C must reach only the tests, which need the server until they end.
            start_new_session=True,
        )
    return Server(process, f"http://127.0.0.1:{port}", log, data_dir)


def _is_ready(server: Server) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.endpoint}/_localstack/health", timeout=2) as response:  # noqa: S310
                if json.load(response)["services"].get("s3") in ("available", "running"):
                    return True
        except (OSError, urllib.error.URLError, ValueError):
            pass
        time.sleep(0.1)
    return False


def free_port() -> int:
    """Returns a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _find_python() -> str:
    """Returns a Python of the server's version, from PATH or else from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [f"python{PYTHON_VERSION}", *sorted(map(str, pyenv.glob(f"versions/{PYTHON_VERSION}.*/bin/python")))]
    for candidate in candidates:
        # A pyenv shim on PATH may refuse to run, so each candidate has to print its version.
        program = shutil.which(candidate)
        if program is None:
            continue
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.startswith(f"Python {PYTHON_VERSION}."):
            return program
    raise ServerError(f"the S3 server needs Python {PYTHON_VERSION}, on PATH or installed by pyenv")


def terminate(pid: int) -> None:
    """Ends a server's process group, by SIGTERM and then by SIGKILL."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, sig)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            # A child process counts as running until its status has been collected.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            try:
                os.killpg(pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.05)


def _run(command: list[str]) -> int:
    """Runs a command with a server. Outside CI, if no server starts, warns and runs it without one."""
    try:
        server = start()
    except ServerError as error:
        if os.environ.get("CI"):
            raise
        print(f"s3_server: {error}\ns3_server: THE TESTS THAT NEED S3 ARE SKIPPED", file=sys.stderr)
        return subprocess.run(command, check=False).returncode
    print(f"s3_server: ready at {server.endpoint}, log in {server.log.relative_to(ROOT)}", flush=True)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        environment = {**os.environ, ENDPOINT_VARIABLE: server.endpoint}
        return subprocess.run(command, env=environment, check=False).returncode
    finally:
        server.stop()


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _start_in_background() -> None:
    if STATE.exists():
        raise ServerError("a server has been started already: `s3_server.py stop` ends it")
    server = start()
    state = {"pid": server.process.pid, "endpoint": server.endpoint, "data_dir": str(server.data_dir)}
    STATE.write_text(json.dumps(state))
    for name, value in {
        ENDPOINT_VARIABLE: server.endpoint,
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        print(f"export {name}={value}")


def _stop_in_background() -> None:
    if not STATE.exists():
        return
    state = json.loads(STATE.read_text())
    terminate(state["pid"])
    shutil.rmtree(state["data_dir"], ignore_errors=True)
    STATE.unlink()


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser("install", help="create the server's environment")
    installing.add_argument("--uv", default="uv", help="the uv to install with")
    running = commands.add_parser("run", help="run a command while the server runs")
    running.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    commands.add_parser("start", help="start a server in the background")
    commands.add_parser("stop", help="stop the server in the background")
    arguments = parser.parse_args()
    try:
        match arguments.command:
            case "install":
                install(arguments.uv)
            case "run":
                return _run(arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv)
            case "start":
                _start_in_background()
            case _:
                _stop_in_background()
    except ServerError as error:
        print(f"s3_server: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
