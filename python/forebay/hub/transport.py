"""One request by HTTP. Imported when the first is made: what it needs takes longer to import than all of Forebay."""

from __future__ import annotations

import errno
import http.client
import socket
import urllib.error
import urllib.request
from typing import Any

from forebay.exceptions import StoreError

_TIMEOUT = 30.0
# Not every C library has the last.
_NO_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, *_NO_NAME)
"""What a machine without a network, or without that name, says; a name that is not known at the moment may be later."""

_MAX_BYTES = 256 << 20
"""No answer is longer: the longest is of all files of a repository, a hundred bytes or two of each."""


class Refusal(Exception):  # noqa: N818 - it is an answer
    """An answer that is no success."""

    def __init__(self, status: int, reason: str, headers: Any) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status
        self.headers = headers


class Failure(Exception):  # noqa: N818 - it is the lack of an answer
    """No answer, or none that is whole."""

    def __init__(self, said: str, *, is_unreachable: bool) -> None:
        super().__init__(said)
        self.is_unreachable = is_unreachable


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any) -> None:
        """Leaves redirects to the client, which keeps the token from other origins."""


def get(url: str, headers: dict[str, str]) -> tuple[Any, bytes]:
    """Returns the headers and the body of an answer.

    Raises:
        Refusal: the answer has another status than success.
        Failure: there is none.
        StoreError: it is too long for one.
    """
    if not url.startswith(("https://", "http://")):
        # Others are files of this machine, for one.
        raise Failure(f"`{url}` is no URL of HTTP", is_unreachable=True)
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - of HTTP, as was checked
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT) as response:
            head, body = response.headers, response.read(_MAX_BYTES + 1)
            if response.length and len(body) <= _MAX_BYTES:
                # It says so itself only where all is read.
                raise http.client.IncompleteRead(body, response.length)
    except urllib.error.HTTPError as error:
        with error:
            raise Refusal(error.code, error.reason, error.headers) from None
    except (ValueError, http.client.InvalidURL) as error:
        # Of a name that is none.
        raise Failure(str(error), is_unreachable=True) from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        said = str(reason) or type(reason).__name__
        is_unreachable = isinstance(reason, ConnectionRefusedError) or getattr(reason, "errno", None) in _UNREACHABLE
        raise Failure(said, is_unreachable=is_unreachable) from error
    if len(body) > _MAX_BYTES:
        raise StoreError(f"the Hub answered `{url}` with more than {_MAX_BYTES >> 20} MiB")
    return head, body
