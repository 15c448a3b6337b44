"""A store on the loopback interface with a delayed first byte: nginx, which serves the objects and keeps a log.

It supports what S3 readers use, GET with ranges, HEAD and ListObjectsV2 below `/bucket/`, and sleeps before answering.
Bytes go from the page cache to the socket by sendfile, at more than a gigabyte per second and 0.2 CPU seconds per
gigabyte, so the store does not limit the readers. `tcp_nopush` stays off: with it, the last segment of some answers
waits 40 ms for an acknowledgement on the loopback interface. Signatures are not checked. The log has one line per
request, from which `Traffic` is counted.
Needs nginx with its Lua module: `apt-get install nginx-light libnginx-mod-http-lua`.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness import FailedError

if TYPE_CHECKING:
    from types import TracebackType

MODULES = Path("/usr/lib/nginx/modules")
BUCKET = "bench"
START_SECONDS = 10.0
OVERLAP_SECONDS = 0.002
"""The log's times are in milliseconds, so requests that overlap by less than this may be consecutive."""

CONFIGURATION = """
daemon off;
load_module {modules}/ndk_http_module.so;
load_module {modules}/ngx_http_lua_module.so;
{user}
worker_processes 1;
worker_rlimit_nofile 8192;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    sendfile on;
    tcp_nodelay on;
    keepalive_requests 1000000;
    keepalive_timeout 600;
    open_file_cache max=4096;
    default_type application/octet-stream;
    log_format requests '$msec $request_time $body_bytes_sent $status $request_method $uri $http_range';
    access_log {folder}/access.log requests;
    init_by_lua_block {{
        listing = {{}}
        for line in io.lines("{folder}/listing") do
            local size, etag, modified, key = line:match("(%S+) (%S+) (%S+) (.+)")
            listing[#listing + 1] = {{key = key, size = size, etag = etag, modified = modified}}
        end
    }}
    server {{
        listen 127.0.0.1:{port}{ssl} backlog=1024;
        {certificate}
        access_by_lua_block {{ if {delay} > 0 then ngx.sleep({delay}) end }}
        location = /{bucket} {{ rewrite ^ /{bucket}/ last; }}
        location = /{bucket}/ {{
            content_by_lua_block {{
                local args = ngx.req.get_uri_args()
                if not args["list-type"] then return ngx.exit(200) end
                local prefix = type(args.prefix) == "string" and args.prefix or ""
                local delimiter = type(args.delimiter) == "string" and args.delimiter or ""
                local start = type(args["start-after"]) == "string" and args["start-after"] or ""
                local folders, found, count = {{}}, {{}}, 0
                for _, object in ipairs(listing) do
                    local key = object.key
                    if key:sub(1, #prefix) == prefix and key > start then
                        local stop = delimiter ~= "" and key:find(delimiter, #prefix + 1, true)
                        if stop then
                            local folder = key:sub(1, stop)
                            if not folders[folder] then
                                folders[folder] = true
                                count = count + 1
                                found[#found + 1] =
                                    "<CommonPrefixes><Prefix>" .. folder .. "</Prefix></CommonPrefixes>"
                            end
                        else
                            count = count + 1
                            found[#found + 1] = "<Contents><Key>" .. key .. "</Key><LastModified>" .. object.modified
                                .. "</LastModified><ETag>&quot;" .. object.etag .. "&quot;</ETag><Size>" .. object.size
                                .. "</Size><StorageClass>STANDARD</StorageClass></Contents>"
                        end
                    end
                end
                ngx.header.content_type = "application/xml"
                ngx.print('<?xml version="1.0" encoding="UTF-8"?>'
                    .. '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{bucket}</Name><Prefix>'
                    .. prefix .. "</Prefix><KeyCount>" .. count
                    .. "</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
                    .. table.concat(found) .. "</ListBucketResult>")
            }}
        }}
        location /{bucket}/ {{
            root {folder}/www;
            try_files $uri =404;
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Traffic:
    """The requests of one reader. The last two are 0 without a delay, because the log's times are in milliseconds."""

    requests: int
    """GET, HEAD and listings."""
    bytes: int
    """Bytes of the bodies."""
    concurrent: int
    """The most requests in flight at one time."""
    depth: int
    """Length of the longest chain of requests, each of which began after the one before had ended."""


class SlowStore:
    """A context manager that serves a folder."""

    def __init__(self, objects: Path, delay_seconds: float, *, has_tls: bool = False) -> None:
        self._objects = objects
        self._delay_seconds = delay_seconds
        self._has_tls = has_tls
        self._folder = Path(tempfile.mkdtemp(prefix="forebay-store-"))
        self._log = self._folder / "access.log"
        self._seen = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.endpoint = f"http{'s' if has_tls else ''}://127.0.0.1:{probe.getsockname()[1]}"

    def __enter__(self) -> SlowStore:
        nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if nginx is None or not (MODULES / "ngx_http_lua_module.so").exists():
            raise FailedError("no nginx with Lua: `apt-get install nginx-light libnginx-mod-http-lua`")
        (self._folder / "www").mkdir()
        (self._folder / "www" / BUCKET).symlink_to(self._objects)
        self._folder.chmod(0o755)
        (self._folder / "listing").write_text("".join(sorted(_listed(self._objects), key=_key)))
        configuration = self._folder / "nginx.conf"
        settings = {
            "modules": MODULES,
            # The owner of the objects; started as root, nginx would choose another user.
            "user": "user root;" if os.geteuid() == 0 else "",
            "folder": self._folder,
            "port": self.endpoint.rpartition(":")[2],
            "ssl": " ssl" if self._has_tls else "",
            "certificate": self._certificate() if self._has_tls else "",
            "delay": self._delay_seconds,
            "bucket": BUCKET,
        }
        configuration.write_text(CONFIGURATION.format(**settings))
        self._process = subprocess.Popen([nginx, "-p", self._folder, "-c", configuration], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                found = (self._folder / "error.log").read_text()
                self.__exit__()
                raise FailedError(f"nginx does not start: {found.strip()}")
            time.sleep(0.05)
        self.traffic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder)

    def traffic(self) -> Traffic:
        """Returns the requests since the last call, or since the start."""
        # A line is written after the last byte is handed to the kernel, by when the client may already have it.
        time.sleep(0.05)
        with self._log.open() as log:
            log.seek(self._seen)
            lines = [line.split(maxsplit=5) for line in log]
            self._seen = log.tell()
        spans = [(float(end) - float(lasted), float(end)) for end, lasted, *_ in lines]
        num_bytes = sum(int(line[2]) for line in lines)
        if not self._delay_seconds:
            return Traffic(len(lines), num_bytes, 0, 0)
        return Traffic(len(lines), num_bytes, _most_at_once(spans), _longest_chain(spans))

    def _certificate(self) -> str:
        """Makes a self-signed certificate and returns the lines of the configuration that name it."""
        key, certificate = self._folder / "key.pem", self._folder / "certificate.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", "1", "-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FailedError(f"openssl makes no certificate: {done.stderr.strip()}")
        return f"ssl_certificate {certificate}; ssl_certificate_key {key};"

    def _answers(self) -> bool:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            with urllib.request.urlopen(f"{self.endpoint}/{BUCKET}/", timeout=2, context=context):  # noqa: S310
                return True
        except (OSError, urllib.error.URLError):
            return False


def _listed(objects: Path) -> list[str]:
    """Returns a line for each object: size, ETag as nginx makes it, time of last change, key."""
    lines = []
    for path in objects.rglob("*"):
        if path.is_file():
            found = path.stat()
            modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.st_mtime))
            etag = f"{int(found.st_mtime):x}-{found.st_size:x}"
            lines.append(f"{found.st_size} {etag} {modified} {path.relative_to(objects).as_posix()}\n")
    return lines


def _key(line: str) -> str:
    return line.split(maxsplit=3)[3]


def _most_at_once(spans: list[tuple[float, float]]) -> int:
    # At equal times, ends sort before starts.
    events = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    most = now = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most


def _longest_chain(spans: list[tuple[float, float]]) -> int:
    """Returns the length of the longest chain, by always continuing with the request that ends first."""
    length, last = 0, float("-inf")
    for start, end in sorted(spans, key=lambda span: span[1]):
        if start >= last - OVERLAP_SECONDS:
            length, last = length + 1, max(end, last)
    return length
