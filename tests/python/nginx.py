"""A web server that others wrote: nginx, over a folder, with and without TLS."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIGURATION = """
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    access_log off;
    server {{ listen 127.0.0.1:{port}{tls}; root {folder}/www; }}
}}
"""


def find() -> str | None:
    """Returns the program, if there is one."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextlib.contextmanager
def serve(folder: Path, certificate: Path | None = None, key: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Gives a URL, of TLS where there is a certificate, and the folder whose files are below it."""
    program = find()
    assert program is not None
    port = s3_server.free_port()
    (folder / "www").mkdir()
    configuration = folder / "nginx.conf"
    # The user of the files, who may not be the one that nginx takes when it starts as root.
    user = "user root;" if os.geteuid() == 0 else ""
    tls = "" if certificate is None else f" ssl; ssl_certificate {certificate}; ssl_certificate_key {key}"
    configuration.write_text(CONFIGURATION.format(folder=folder, port=port, user=user, tls=tls))
    process = subprocess.Popen([program, "-p", folder, "-c", configuration], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.02)
        yield f"http{'s' if tls else ''}://127.0.0.1:{port}", folder / "www"
    finally:
        process.terminate()
        process.wait()
