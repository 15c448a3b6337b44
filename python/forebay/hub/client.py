"""Asks the Hub: few requests, made again when it fails or refuses, for as long as patience lasts."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit

from forebay._lib import __version__
from forebay.exceptions import DataError, HubUnreachableError, NotFoundError, StoreError, StoreTimeoutError
from forebay.hub.errors import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.hub.settings import Settings

PATIENCE = 600.0
"""Seconds for which the Hub is asked again. Its quotas are of five minutes."""

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 10.0
_MAX_REDIRECTS = 5


@dataclass(frozen=True)
class Answer:
    """What the Hub said."""

    headers: Any
    body: bytes
    url: str

    def json(self) -> Any:
        """Returns the value of the body.

        Raises:
            StoreError: it is something else, such as a page of HTML.
        """
        try:
            return json.loads(self.body)
        # Of brackets within brackets without an end.
        except (ValueError, RecursionError) as error:
            kind = self.headers.get("Content-Type") or "something"
            raise StoreError(
                f"the Hub answered `{self.url}` with {kind}, not with JSON; is `HF_ENDPOINT` a Hub?"
            ) from error


class Client:
    """Requests to one Hub by one user."""

    def __init__(self, settings: Settings, patience: float = PATIENCE) -> None:
        self.settings = settings
        self.patience = patience
        self.silence = math.inf
        """Seconds for which a Hub that says nothing is asked again."""
        self.known: dict[tuple[str | None, ...], Any] = {}
        """What was looked up before: many files may be named one by one."""

    def get(self, path: str, what: str) -> Answer:
        """Returns the answer for a path, or a whole URL; `what` is the dataset, for messages.

        Raises:
            HubUnreachableError: offline, or no connection.
            StoreTimeoutError: it refused or failed for too long.
            DatasetNotFoundError: there is no such repository, or not for this user.
            NotFoundError: there is no such file.
        """
        url = urljoin(self.settings.endpoint + "/", path.lstrip("/")) if "://" not in path else path
        if self.settings.is_offline:
            raise HubUnreachableError(
                f"`{what}` is not among the downloaded datasets in `{self.settings.cache}`, and the Hub is not asked: "
                "`HF_HUB_OFFLINE` is set"
            )
        from forebay.hub.transport import Failure, Refusal

        started = time.monotonic()
        num_failed = 0
        while True:
            num_failed += 1
            pause = min(_FIRST_PAUSE * 2 ** (num_failed - 1), _LONGEST_PAUSE)
            try:
                return self._get(url)
            except Refusal as answer:
                if answer.status not in (408, 429) and answer.status < 500:
                    raise refused(answer, what, self.settings) from None
                said = self.settings.without_token(str(answer))
                pause = _wait_of(answer.headers) or pause
            except Failure as failure:
                said = self.settings.without_token(str(failure))
                if failure.is_unreachable or time.monotonic() + pause > started + self.silence:
                    where = self.settings.endpoint
                    raise HubUnreachableError(
                        f"`{what}`: cannot reach the Hub at `{where}`: {said}"
                    ) from failure.__cause__
            if time.monotonic() + pause > started + self.patience:
                raise StoreTimeoutError(
                    f"`{what}`: the Hub refused or failed for {self.patience:g} seconds ({said}); try again later, or "
                    "raise `hf_patience` in `storage_options`"
                )
            time.sleep(pause)

    def _get(self, url: str) -> Answer:
        from forebay.hub import transport

        for _ in range(_MAX_REDIRECTS):
            headers = {"User-Agent": f"forebay/{__version__}", "Accept-Encoding": "identity"}
            if self.settings.token is not None and _origin(url) == _origin(self.settings.endpoint):
                headers["Authorization"] = f"Bearer {self.settings.token}"
            try:
                return Answer(*transport.get(url, headers), url)
            except transport.Refusal as answer:
                target = answer.headers.get("Location")
                if answer.status not in (301, 302, 303, 307, 308) or not target:
                    raise
                url = urljoin(url, target)
        raise StoreError(f"the Hub redirects `{url}` for ever")

    def pages(self, path: str, what: str) -> Iterator[Any]:
        """Yields the items of a list that comes in pages.

        Raises:
            StoreError: an answer is no list, or a page is followed by one that came before.
        """
        url: str | None = path
        seen = set()
        while url:
            if url in seen:
                raise StoreError(f"the Hub's list at `{url}` has no end: its pages lead back to it")
            seen.add(url)
            answer = self.get(url, what)
            items = answer.json()
            if not isinstance(items, list):
                raise StoreError(f"the Hub answered `{answer.url}` with {type(items).__name__}, not with a list")
            yield from items
            following = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', answer.headers.get("Link") or "")
            url = following[1] if following else None


def quoted(path: str) -> str:
    """Returns a path with its slashes, for a URL."""
    return quote(path)


def text_of(answer: Answer, what: str) -> str:
    """Returns the body as text.

    Raises:
        DataError: it is not UTF-8.
    """
    try:
        return answer.body.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{what}: it is not UTF-8: {error}") from error


def optional(get: Any, *arguments: Any) -> Answer | None:
    """Returns an answer; `None` where there is no such file."""
    try:
        found: Answer = get(*arguments)
    except NotFoundError as error:
        if type(error) is NotFoundError:
            return None
        raise
    return found


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _wait_of(headers: Any) -> float | None:
    """Returns how long a refusal asks to wait, in seconds."""
    retry_after = (headers.get("Retry-After") or "").strip()
    if retry_after.isdecimal():
        return max(float(retry_after), 0.5)
    quota = headers.get("RateLimit") or ""
    reset = re.search(r"\bt\s*=\s*(\d+)", quota)
    return max(float(reset[1]), 0.5) if reset and re.search(r"\br\s*=\s*0\b", quota) else None
