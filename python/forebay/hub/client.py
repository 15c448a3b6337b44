"""Sends requests to the Hub, and retries them for a limited time when it fails or refuses."""

from __future__ import annotations

import json
import math
import re
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin, urlsplit

from forebay._lib import __version__
from forebay.exceptions import (
    AccessDeniedError,
    DataError,
    DatasetNotFoundError,
    HubUnreachableError,
    StoreError,
    StoreTimeoutError,
    StoreWarning,
)
from forebay.hub.errors import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.hub.settings import Settings

T = TypeVar("T")

PATIENCE = 600.0
"""Seconds for which requests are retried. The Hub's quotas are per five minutes."""

FIRST_CONTACT = 10.0
"""Seconds for which requests to a Hub that has never answered are retried, unless `hf_patience` is set: most likely
there is no network."""

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 10.0
_MAX_REDIRECTS = 5
_MAX_WRONG = 3
"""Wrong answers to one request after which it is given up, as for the store."""

_ASK_LONGER = "; `hf_patience` in `storage_options` says how long to try"


@dataclass(frozen=True)
class Answer:
    """An answer of the Hub."""

    headers: Any
    body: bytes
    url: str

    def json(self) -> Any:
        """Returns the value of the body.

        Raises:
            StoreError: the body is not JSON, but for example HTML.
        """
        try:
            return json.loads(self.body)
        # `RecursionError` for deeply nested brackets.
        except (ValueError, RecursionError) as error:
            kind = self.headers.get("Content-Type") or "something"
            raise StoreError(
                f"the Hub answered `{self.url}` with {kind}, not with JSON; is `HF_ENDPOINT` a Hub?"
            ) from error


@dataclass(frozen=True)
class Route:
    """How requests are sent; the same as for the store that reads the files."""

    timeout: float = 30.0
    """The most seconds without a byte."""
    proxy_url: str | None = None
    ca_certificate: str | None = None
    """Certificates to trust besides those of the system: PEM text, or the path of a PEM file."""


class Client:
    """Requests to one Hub by one user."""

    def __init__(self, settings: Settings, patience: float | None = None, route: Route | None = None) -> None:
        self.settings = settings
        self.patience = PATIENCE if patience is None else patience
        self.is_patience_given = patience is not None
        """Whether the user set the patience."""
        self.route = route or Route()
        self.silence = math.inf
        """Seconds for which requests without an answer are retried."""
        self.first_silence = FIRST_CONTACT if patience is None else patience
        """The same, until a server was reached once."""
        self.was_reached = False
        """Whether a server was reached."""
        self._has_warned = False
        self.known: dict[tuple[str | None, ...], Any] = {}
        """Earlier look-ups, as many files may be named one by one."""

    def get(self, path: str, what: str, read: Callable[[Answer], T], revision: str | None = None) -> T:
        """Returns what `read` makes of the answer for a path, or a whole URL; `what` is the dataset, for messages.

        A `StoreError` of `read` means that the answer is wrong: it is requested again, a few times.

        Raises:
            HubUnreachableError: offline mode is set, or there is no connection.
            StoreTimeoutError: the Hub refused or failed for too long.
            DatasetNotFoundError: there is no such repository or revision, or this user may not see it.
            NotFoundError: there is no such file.
            StoreError: every answer was wrong.
        """
        url = urljoin(self.settings.endpoint + "/", path.lstrip("/")) if "://" not in path else path
        if self.settings.is_offline:
            raise HubUnreachableError(
                f"`{what}` is not among the downloaded datasets in `{self.settings.cache}`, and the Hub is not asked: "
                "`HF_HUB_OFFLINE` is set"
            )
        from forebay.hub.transport import Failure, Refusal, proxy_of

        started = time.monotonic()
        num_failed = num_wrong = 0
        while True:
            num_failed += 1
            pause, asked = min(_FIRST_PAUSE * 2 ** (num_failed - 1), _LONGEST_PAUSE), None
            try:
                answer = self._get(url, started + self.patience)
            except Refusal as refusal:
                self.was_reached = True
                if refusal.status not in (408, 429) and refusal.status < 500:
                    raise refused(refusal, what, self.settings, revision) from None
                said = self.settings.without_token(str(refusal))
                asked = _wait_of(refusal.headers)
                pause = asked or pause
            except Failure as failure:
                said = self.settings.without_token(str(failure))
                self.was_reached |= failure.has_connected
                silence = self._most_silence
                if failure.is_unreachable or time.monotonic() + pause > started + silence:
                    where = f"`{self.settings.endpoint}`{proxy_of(self.route, url)}"
                    hint = "" if failure.is_unreachable or self.silence <= silence else _ASK_LONGER
                    raise HubUnreachableError(
                        f"`{what}`: cannot reach the Hub at {where}: {said}{hint}"
                    ) from failure.__cause__
            else:
                self.was_reached = True
                try:
                    return read(answer)
                except StoreError as wrong:
                    num_wrong += 1
                    if num_wrong == _MAX_WRONG or time.monotonic() + pause > started + self.patience:
                        raise
                    said = str(wrong)
            if time.monotonic() + pause > started + self.patience:
                raise self._timeout(what, said, asked)
            limit = min(self.patience, self._most_silence)
            self._warn(f"`{what}`: the Hub refuses or fails ({said})", limit)
            time.sleep(pause)

    def _timeout(self, what: str, said: str, asked: float | None) -> StoreTimeoutError:
        """Returns the error for a Hub that fails for too long, or asks for too many seconds without requests."""
        limit = f"{self.patience:g} seconds"
        if asked is not None and asked > self.patience:
            failed = f"asks for {asked:g} seconds without requests ({said}), more than {limit}"
        else:
            failed = f"refused or failed ({said}), and the next request would come after more than {limit}"
        return StoreTimeoutError(
            f"`{what}`: the Hub {failed}; try again later, or raise `hf_patience` in `storage_options`"
        )

    @property
    def _most_silence(self) -> float:
        return self.silence if self.was_reached else min(self.silence, self.first_silence)

    def _warn(self, said: str, limit: float) -> None:
        """Warns once why nothing happens."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{said}; requests are retried, for up to {limit:g} seconds (`hf_patience`)",
                StoreWarning,
                stacklevel=2,
            )

    def _get(self, url: str, deadline: float) -> Answer:
        from forebay.hub import transport

        for _ in range(_MAX_REDIRECTS):
            headers = {"User-Agent": f"forebay/{__version__}", "Accept-Encoding": "identity"}
            if self.settings.token is not None and _origin(url) == _origin(self.settings.endpoint):
                headers["Authorization"] = f"Bearer {self.settings.token}"
            try:
                return Answer(*transport.get(url, headers, self.route, deadline), url)
            except transport.Refusal as answer:
                target = answer.headers.get("Location")
                if answer.status not in (301, 302, 303, 307, 308) or not target:
                    raise
                url = self._followed(url, target)
        raise StoreError(f"the Hub redirects `{url}` endlessly")

    def _followed(self, url: str, target: str) -> str:
        """Returns the target of a redirect as a URL."""
        try:
            followed = urljoin(url, target)
            _origin(followed)
        except ValueError as error:
            raise StoreError(f"the Hub redirects `{url}` to something that is not a URL: {error}") from error
        return followed

    def pages(self, path: str, what: str) -> Iterator[Any]:
        """Yields the items of a paginated list.

        Raises:
            StoreError: an answer is not a list, or a page leads back to an earlier one.
            AccessDeniedError: a page is on another server, to which no token is sent, and is not public.
        """
        url: str | None = path
        seen = set()
        while url:
            if url in seen:
                raise StoreError(f"the Hub's list at `{url}` has no end: its pages lead back to it")
            seen.add(url)
            items, url = self._page(url, what)
            yield from items

    def _page(self, url: str, what: str) -> tuple[list[Any], str | None]:
        """Returns the items of a page, and the URL of the next one."""
        try:
            return self.get(url, what, _items_of)
        except DatasetNotFoundError:
            where, endpoint = urlsplit(url), self.settings.endpoint
            if not where.netloc or _origin(url) == _origin(endpoint):
                raise
            raise AccessDeniedError(
                f"`{what}`: its list goes on at `{where.scheme}://{where.netloc}`, which gets no token, as the Hub is "
                f"at `{endpoint}`; is `HF_ENDPOINT` what the Hub calls itself?"
            ) from None


def _items_of(answer: Answer) -> tuple[list[Any], str | None]:
    items = answer.json()
    if not isinstance(items, list):
        raise StoreError(f"the Hub answered `{answer.url}` with {type(items).__name__}, not with a list")
    return items, _next_of(", ".join(answer.headers.get_all("Link") or ()))


def _next_of(links: str) -> str | None:
    """Returns the `rel="next"` URL among the links of an answer (RFC 8288)."""
    for link in re.finditer(r'<([^>]*)>((?:\s*;\s*[\w*-]+(?:\s*=\s*(?:"[^"]*"|[^\s;,"]+))?)*)', links):
        if re.search(r""";\s*rel\s*=\s*["']?(?:[^"';,]*\s)?next(?:["'\s;,]|$)""", link[2], re.IGNORECASE):
            return link[1]
    return None


def text_of(answer: Answer, what: str) -> str:
    """Returns the body as text.

    Raises:
        DataError: the body is not UTF-8.
    """
    try:
        return answer.body.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{what}: it is not UTF-8: {error}") from error


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _wait_of(headers: Any) -> float | None:
    """Returns the seconds that a refusal asks to wait."""
    retry_after = (headers.get("Retry-After") or "").strip()
    if retry_after.isdecimal():
        return max(float(retry_after), 0.5)
    quota = headers.get("RateLimit") or ""
    reset = re.search(r"\bt\s*=\s*(\d+)", quota)
    return max(float(reset[1]), 0.5) if reset and re.search(r"\br\s*=\s*0\b", quota) else None
