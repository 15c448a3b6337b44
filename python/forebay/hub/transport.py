"""Makes a single HTTP request. Imported with the first one, as its imports take longer than all of Forebay."""

from __future__ import annotations

import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from forebay.exceptions import ForebayError, SettingError, StoreError

if TYPE_CHECKING:
    from forebay.hub.client import Route

_AT_A_TIME = 1 << 16
_LEAST_TIMEOUT = 0.05
_UNKNOWN_ISSUER = (2, 18, 19, 20, 21)
"""OpenSSL's error codes (`X509_V_ERR_`) for a valid certificate whose issuer is not trusted."""

_MAX_BYTES = 256 << 20
"""No answer is longer. The longest lists all files of a repository, with 100 to 200 bytes per file."""


class Refusal(Exception):  # noqa: N818 - it is an answer
    """An answer with a status other than success."""

    def __init__(self, status: int, reason: str, headers: Any) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status
        self.headers = headers


class Failure(Exception):  # noqa: N818 - it is the lack of an answer
    """There was no answer, or no complete one."""

    def __init__(self, said: str, *, is_unreachable: bool = False, has_connected: bool = False) -> None:
        super().__init__(said)
        self.is_unreachable = is_unreachable
        """Whether the URL leads nowhere, so that no retry would change anything."""
        self.has_connected = has_connected
        """Whether a server was reached."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any) -> None:
        """Leaves redirects to the client, which does not send the token to other origins."""


def get(url: str, headers: dict[str, str], route: Route, deadline: float) -> tuple[Any, bytes]:
    """Returns the headers and body of an answer that is complete by `deadline`, on the monotonic clock.

    Raises:
        Refusal: the answer has a status other than success.
        Failure: there is no answer, or not in time.
        SettingError: the certificates of the route are invalid.
        StoreError: the answer is too long, or the server is not trusted.
    """
    if not url.startswith(("https://", "http://")):
        # Other schemes may name local files, for example.
        raise Failure(f"`{url}` is not an HTTP URL", is_unreachable=True)
    timeout = max(min(route.timeout, deadline - time.monotonic()), _LEAST_TIMEOUT)
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - of HTTP, as was checked
        with _opener(route).open(request, timeout=timeout) as response:
            return response.headers, _body(response, url, deadline)
    except ForebayError:
        # These are also `OSError` or `ValueError`.
        raise
    except urllib.error.HTTPError as error:
        with error:
            raise Refusal(error.code, error.reason, error.headers) from None
    except (ValueError, http.client.InvalidURL) as error:
        if _is_untrusted(error):
            raise _untrusted(url, error) from error
        # The host name is invalid.
        raise Failure(str(error), is_unreachable=True) from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        if _is_untrusted(reason):
            raise _untrusted(url, reason) from error
        said = str(reason) or type(reason).__name__
        # `urllib` wraps errors until the request is sent, and none later.
        has_connected = not isinstance(error, urllib.error.URLError)
        raise Failure(said, has_connected=has_connected) from error


def _is_untrusted(error: object) -> bool:
    """Whether a server's certificate is not trusted, which a retry would not change."""
    return isinstance(error, ssl.SSLCertVerificationError)


def _untrusted(url: str, error: Any) -> StoreError:
    where = "/".join(url.split("/", 3)[:3])
    said = getattr(error, "verify_message", None) or str(error)
    hint = ""
    if getattr(error, "verify_code", None) in _UNKNOWN_ISSUER:
        hint = "; `ca_certificate` in `storage_options` takes the certificate of its issuer"
    return StoreError(f"`{where}` is not trusted: {said.rstrip('.')}{hint}")


def _body(response: Any, url: str, deadline: float) -> bytes:
    """Returns the whole body; checks the deadline, as it may come byte by byte, each within the timeout."""
    announced = response.length
    parts, num_bytes = [], 0
    while announced is None or num_bytes < announced:
        part = response.read1(_AT_A_TIME)
        if not part:
            break
        parts.append(part)
        num_bytes += len(part)
        if num_bytes > _MAX_BYTES:
            raise StoreError(f"the Hub answered `{url}` with more than {_MAX_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise Failure("the answer takes too long", has_connected=True)
    body = b"".join(parts)
    if announced is not None and num_bytes < announced:
        raise http.client.IncompleteRead(body, announced - num_bytes)
    return body


def _opener(route: Route) -> urllib.request.OpenerDirector:
    handlers: list[Any] = [_NoRedirect]
    if route.proxy_url is not None:
        handlers.append(urllib.request.ProxyHandler(dict.fromkeys(("http", "https"), route.proxy_url)))
    name, certificates = "ca_certificate", route.ca_certificate
    if certificates is None:
        # As in `requests`, which most Python clients use.
        bundles = ((name, os.environ.get(name)) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
        name, certificates = next((bundle for bundle in bundles if bundle[1]), (name, None))
    if certificates is not None:
        handlers.append(urllib.request.HTTPSHandler(context=_trusting(name, certificates)))
    return urllib.request.build_opener(*handlers)


def proxy_of(route: Route, url: str) -> str:
    """Returns the proxy used for a server, as text that follows its name; empty if there is none."""
    if route.proxy_url is not None:
        return f" by `proxy_url`, `{route.proxy_url}`"
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    is_excluded = proxy is None or bool(urllib.request.proxy_bypass(parts.netloc))
    return "" if is_excluded else f" by the proxy that the environment names, `{proxy}`"


def _trusting(name: str, certificates: str) -> ssl.SSLContext:
    """Returns an SSL context that trusts these certificates besides those of the system."""
    context = ssl.create_default_context()
    try:
        if certificates.lstrip().startswith("-----BEGIN"):
            context.load_verify_locations(cadata=certificates)
        elif Path(certificates).is_dir():
            texts = (path.read_text(errors="replace") for path in Path(certificates).iterdir() if path.is_file())
            context.load_verify_locations(cadata="\n".join(text for text in texts if "BEGIN CERTIFICATE" in text))
        else:
            context.load_verify_locations(cafile=certificates)
    except (OSError, ValueError) as error:
        raise SettingError(
            f"storage_options: `{name}`: expected certificates in PEM format, or the path of a file that holds them; "
            f"they cannot be read: {error}"
        ) from error
    return context
