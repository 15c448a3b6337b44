"""Fixtures that several test modules share."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fault_proxy import FaultProxy
from hub import Hub
from hypothesis import settings
from s3 import S3
from upstreams import Objects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3 import Bucket

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import azurite  # noqa: E402  (programs, not packages: they are found by the line above)
import s3_server  # noqa: E402
from lakes import make_certificates  # noqa: E402

# Tests count requests, which a cache would answer; those of the cache name a folder of their own.
os.environ["FOREBAY_CACHE"] = "0"

# `datasets` tells a server of each `load_dataset`. Without a network, looking that one up takes up to five seconds.
os.environ["HF_UPDATE_DOWNLOAD_COUNTS"] = "0"

# A shell that starts the tests in the background has them, and what they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Derandomised everywhere: a red test must be red again when it is run again. Time is not what is tested.
settings.register_profile("forebay", deadline=None, derandomize=True, database=None)
# `--hypothesis-profile search` looks for what is not known yet, for as long as that takes.
settings.register_profile("search", deadline=None, max_examples=3000, print_blob=True)
settings.load_profile("forebay")


@pytest.fixture(autouse=True)
def no_sleeping_datasets() -> None:
    """`datasets` sleeps for five seconds wherever a loop is collected that ended early: in any test after it."""
    if config := sys.modules.get("datasets.config"):
        config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0


@pytest.fixture(scope="module")
def served() -> Iterator[Hub]:
    """A Hub for all tests of a module."""
    with Hub() as hub:
        yield hub


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """The S3 server: the one that `make test` started, else one for this session."""
    endpoint = os.environ.get(s3_server.ENDPOINT_VARIABLE)
    if endpoint:
        yield S3(endpoint)
        return
    try:
        server = s3_server.start()
    except s3_server.ServerError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    yield S3(server.endpoint)
    server.stop()


@pytest.fixture(scope="session")
def azure() -> Iterator[azurite.Azurite]:
    """Azure Blob Storage, where Node is installed."""
    try:
        server = azurite.start()
    except azurite.AzuriteError as error:
        if os.environ.get("CI") and shutil.which("npm"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A private authority, a certificate of it for this machine, and the key of that, where openssl is installed."""
    try:
        return make_certificates(tmp_path_factory.mktemp("certificates"))
    except FileNotFoundError:
        pytest.skip("there is no openssl, which makes certificates: THE TESTS THAT NEED TLS ARE SKIPPED")


@pytest.fixture(scope="module")
def secure_web(certificates: tuple[Path, Path, Path]) -> Iterator[FaultProxy]:
    """A web server with TLS and without faults, whose certificate is of that authority."""
    _, certificate, key = certificates
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with FaultProxy(Objects(), context=context) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3: S3) -> Bucket:
    """A bucket of this test's own."""
    return s3.create_bucket()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what needs the server, so that `-m "not s3"` leaves it out."""
    for item in items:
        if "s3" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.s3)
