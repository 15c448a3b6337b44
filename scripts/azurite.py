"""Runs the Azure Blob Storage server of the tests: Azurite, Microsoft's emulator, on Node.

`tests/services/package-lock.json` pins the version, and it is installed beside that file. Unlike the tests' S3 server,
it checks signatures. Its objects are deleted when it stops, and it sends no telemetry.

    azurite.py install          installs it with npm
    azurite.py start            prints how to reach it, and serves until interrupted

The fixture `azure` of the tests starts one per session. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import http.client
import shutil
import subprocess
import sys
import tempfile
import time
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlencode

from s3_server import free_port, terminate

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "services"
MODULES = FOLDER / "node_modules"
PROGRAM = MODULES / ".bin" / "azurite-blob"
START_SECONDS = 60.0

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has; its key is public."""


class AzuriteError(Exception):
    """Azurite cannot be installed or does not start."""


class Azurite:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
        self.process = process
        self.port = port
        self.folder = folder
        self.endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"

    def stop(self) -> None:
        """Stops the server and deletes its objects."""
        terminate(self.process.pid)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def create_container(self, name: str, *, is_public: bool = False) -> None:
        """Creates a container, which clients of `object_store` cannot."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
        if is_public:
            headers["x-ms-blob-public-access"] = "container"
        path = f"/{ACCOUNT}/{name}"
        signed = "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
        # An emulator's paths begin with the account, so it appears twice.
        text = "PUT" + "\n" * 12 + f"{signed}/{ACCOUNT}{path}\nrestype:container"
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{_signature(text)}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("PUT", f"{path}?restype=container", headers={**headers, "Content-Length": "0"})
            response = connection.getresponse()
            said = response.read()
        finally:
            connection.close()
        if response.status != http.client.CREATED:
            raise AzuriteError(f"the container {name} is not made: {response.status} {said.decode()}")


def shared_access_signature(container: str, permissions: str = "rl", expiry: str = "2099-01-01T00:00:00Z") -> str:
    """Returns a service SAS token for one container, signed as in version 2022-11-02 of the REST API.

    https://learn.microsoft.com/rest/api/storageservices/create-service-sas
    """
    version, resource = "2022-11-02", "c"
    # Start, identifier, IP address, protocol; snapshot, encryption scope, and five response headers.
    fields = [permissions, "", expiry, f"/blob/{ACCOUNT}/{container}", "", "", "", version, resource, *[""] * 7]
    query = {"sv": version, "sr": resource, "sp": permissions, "se": expiry, "sig": _signature("\n".join(fields))}
    return urlencode(query)


def _signature(text: str) -> str:
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def is_installed() -> bool:
    """Returns whether the locked versions are installed."""
    lock, stamp = FOLDER / "package-lock.json", MODULES / ".package-lock.copy"
    return stamp.is_file() and stamp.read_bytes() == lock.read_bytes()


def install() -> None:
    """Installs the locked versions.

    Raises:
        AzuriteError: There is no npm, or it fails.
    """
    if is_installed():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise AzuriteError("there is no npm, which comes with Node: the tests of Azure are skipped")
    command = [npm, "ci", "--prefix", str(FOLDER), "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
    if subprocess.run(command, check=False).returncode != 0:
        raise AzuriteError(f"`{' '.join(command)}` failed")
    shutil.copyfile(FOLDER / "package-lock.json", MODULES / ".package-lock.copy")


def start() -> Azurite:
    """Starts a server and waits until it answers.

    Raises:
        AzuriteError: It is not installed, or it does not answer within a minute.
    """
    node = shutil.which("node")
    if node is None or not is_installed():
        raise AzuriteError("Azurite is not installed: run `make services`, which needs npm")
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="forebay-azurite-"))
    command = [node, str(PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    command += ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with (folder / "azurite.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    server = Azurite(process, port, folder)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", f"/{ACCOUNT}?comp=list")
            connection.getresponse()
        except OSError:
            time.sleep(0.05)
        else:
            return server
        finally:
            connection.close()
    said = (folder / "azurite.log").read_text()
    server.stop()
    raise AzuriteError(f"Azurite does not start: {said}")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=["install", "start"])
    try:
        if parser.parse_args().command == "install":
            install()
            return 0
        server = start()
        print(f"export AZURE_STORAGE_USE_EMULATOR=true AZURITE_BLOB_STORAGE_URL=http://127.0.0.1:{server.port}")
        try:
            server.process.wait()
        except KeyboardInterrupt:
            server.stop()
    except AzuriteError as error:
        print(f"azurite: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
