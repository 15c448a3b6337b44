"""An S3 that refuses requests whose signature is not right, in front of one that takes them all.

It computes AWS's fourth signature anew from the request, as the service does, and as botocore (`test_fault_proxy.py`).
Tokens can expire, and a bucket can ask its readers to pay.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from upstreams import Answer

if TYPE_CHECKING:
    from upstreams import Asked, Upstream

UNRESERVED = "-_.~"
ERROR = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'


class Signed:
    """Passes on what is signed by a key that is known."""

    def __init__(self, upstream: Upstream, keys: dict[str, str]) -> None:
        self.upstream = upstream
        self.keys = keys
        self.tokens: dict[str, str] = {}
        """The session token that goes with a key, for keys that are of a session."""
        self.expired: set[str] = set()
        """Keys whose session is over."""
        self.is_public = False
        """Whether those are answered, too, who do not say who they are."""
        self.is_requester_pays = False

    def close(self) -> None:
        """Closes the one in front of which it stands."""
        self.upstream.close()

    def ask(self, asked: Asked) -> Answer:
        refusal = self._refusal(asked)
        if refusal is not None:
            status, code = refusal
            body = ERROR.format(code=code, message="the request is refused").encode()
            return Answer(status, {"content-length": str(len(body)), "content-type": "application/xml"}, body)
        return self.upstream.ask(asked)

    def _refusal(self, asked: Asked) -> tuple[int, str] | None:
        said = asked.headers.get("authorization")
        if said is None:
            return None if self.is_public else (403, "AccessDenied")
        found = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/([^,]+), ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]+)", said
        )
        if found is None:
            return 400, "AuthorizationHeaderMalformed"
        key, scope, names, signature = found.groups()
        if key not in self.keys:
            return 403, "InvalidAccessKeyId"
        if signature != sign(asked, self.keys[key], scope, names):
            return 403, "SignatureDoesNotMatch"
        if key in self.expired:
            return 400, "ExpiredToken"
        if asked.headers.get("x-amz-security-token") != self.tokens.get(key):
            return 403, "InvalidToken"
        if self.is_requester_pays and asked.headers.get("x-amz-request-payer") != "requester":
            return 403, "AccessDenied"
        return None


class OfBucket:
    """A bucket whose name is in that of its host: paths are those of its keys."""

    def __init__(self, upstream: Upstream, name: str) -> None:
        self.upstream = upstream
        self.name = name

    def close(self) -> None:
        """Closes the server."""
        self.upstream.close()

    def ask(self, asked: Asked) -> Answer:
        return self.upstream.ask(dataclasses.replace(asked, path=f"/{self.name}{asked.path}"))


def sign(asked: Asked, secret: str, scope: str, names: str) -> str:
    """Returns the signature of a request, of the headers that it names."""
    url = urlsplit(asked.path)
    query = sorted((quote(k, UNRESERVED), quote(v, UNRESERVED)) for k, v in parse_qsl(url.query, True))
    canonical = "\n".join(
        (
            asked.method,
            quote(unquote(url.path), f"/{UNRESERVED}"),
            "&".join(f"{name}={value}" for name, value in query),
            *(f"{name}:{' '.join(asked.headers.get(name, '').split())}" for name in names.split(";")),
            "",
            names,
            asked.headers.get("x-amz-content-sha256", ""),
        )
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(("AWS4-HMAC-SHA256", asked.headers.get("x-amz-date", ""), scope, digest))
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
