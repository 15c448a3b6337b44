"""What can go wrong between a reader and its store, and what must come of it: the table of `test_faults.py`.

A fault that passes leaves the epoch exact. One that stays ends it with an error that says what is the matter. Where
bytes are changed in a way that HTTP cannot show, the pages' checksums must; never does a row come out that is not the
dataset's.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import fault_edits
from fault_proxy import Fault

import forebay as fb

if TYPE_CHECKING:
    from upstreams import Answer

SLOW_DOWN = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please wait.</Message></Error>'
TOO_SLOW = b"<Error><Code>RequestTimeout</Code><Message>Your socket connection was not read from.</Message></Error>"
TOO_MANY_KEYS = b"<Error><Code>ThrottlingException</Code><Message>Rate exceeded.</Message></Error>"
CHANGED = "part-3.parquet"
"""The object to which things happen, in the middle of its being read."""

OBJECT = r"`[^`]+/part-\d\.parquet`"
"""How messages name an object; those that are of a range of it begin with `bytes 4..3685 of`."""

NO_ANSWER = "timed out|no answer"
"""What comes first: the end of a request's time, or of all time that there is."""

PAGE = b"<html><body>Please log in to the network.</body></html>"


class Place(Protocol):
    """Where the objects of a case are."""

    def replace(self, *, same_size: bool = False) -> None:
        """Writes another object in the place of one."""

    def delete(self) -> None:
        """Deletes an object."""

    def expire(self) -> None:
        """Ends the session of the credentials."""


Make = Callable[[Place], list[Fault]]

FAILED_PAGE = fault_edits.replaced(b".+", b"<Error><Code>InternalError</Code><Message>Try again.</Message></Error>")
"""Makes a page of a listing an error, with the status of a success."""

PART_OF_A_LISTING = fault_edits.replaced(b"(?<=<IsTruncated>)false", b"true")
"""Makes a page of a listing one that is followed by another, and does not say by which."""


@dataclass(frozen=True)
class Case:
    """Faults, and what must come of an epoch through them."""

    faults: Make
    error: tuple[type[fb.ForebayError], ...] = ()
    """What ends it; nothing if it must be exact."""
    may_be_exact: bool = False
    """Whether it may go on, too, if every row is right."""
    words: str = ""
    """What the error says: which object, which of its bytes if it is about them, and why."""
    is_opening: bool = False
    """Whether things go wrong before the dataset is open."""
    stores: tuple[str, ...] = ("s3", "http")


def passes(**fault: Any) -> Case:
    """Makes a case of one fault that passes."""
    return Case(lambda _: [Fault(**{"skip": 2} | fault)])


def about(cause: str) -> str:
    """Returns a pattern of messages that name an object and a cause."""
    return rf"{OBJECT}.*({cause})"


def about_bytes(cause: str) -> str:
    """Returns a pattern of messages that name a range of an object and a cause."""
    return rf"bytes \d+\.\.\d+ of {about(cause)}"


def stays(*error: type[fb.ForebayError], words: str, may_be_exact: bool = False, **fault: Any) -> Case:
    """Makes a case of one fault that stays."""
    return Case(lambda _: [Fault(**{"times": None} | fault)], error, may_be_exact, words)


def spoils(**fault: Any) -> Case:
    """Makes a case of bytes that look right and are not."""
    words = rf"column `\w+` in row group \d of {about('[Pp]age')}"
    return stays(fb.DataError, words=words, may_be_exact=True, **{"times": 1} | fault)


def opening(**fault: Any) -> Case:
    """Makes a case of one fault that passes while footers are read."""
    return Case(lambda _: [Fault(**fault)], is_opening=True)


def listing(**fault: Any) -> Case:
    """Makes a case of one fault that passes while objects are listed."""
    return Case(lambda _: [Fault(**fault, where="list-type")], is_opening=True, stores=("s3",))


def unlisted(cause: str, **fault: Any) -> Case:
    """Makes a case of objects that cannot be listed."""
    words = rf"the store failed for `s3://[^`]+/`.*{cause}"
    faults = {"times": None, "where": "list-type"} | fault
    return Case(lambda _: [Fault(**faults)], (fb.StoreError,), words=words, is_opening=True, stores=("s3",))


def happens(what: Callable[[Place], None], *error: type[fb.ForebayError], cause: str, **fault: Any) -> Case:
    """Makes a case of something that happens to an object in mid-epoch."""
    words = rf"/{CHANGED}`.*({cause})"
    return Case(lambda place: [Fault(before=lambda: what(place), where=CHANGED, **fault)], error, words=words)


def refused(status: int, wait: str | None = None) -> dict[str, Any]:
    """Returns a fault by which a store says that there are too many requests."""
    headers = {"Content-Type": "application/xml"} | ({} if wait is None else {"Retry-After": wait})
    return {"status": status, "headers": headers, "body": SLOW_DOWN}


def until_next_second() -> str:
    """Returns the date of a moment that is less than two seconds away."""
    return email.utils.formatdate(time.time() + 1, usegmt=True)


def mixture(_: Place) -> list[Fault]:
    """Returns a bit of everything that passes."""
    rare: dict[str, Any] = {"times": 4, "chance": 0.15}
    return [
        Fault(**rare, status=503),
        Fault(**rare, status=500),
        Fault(**rare, cut_after=200, ending="reset"),
        Fault(**rare, cut_after=300),
        Fault(**rare, cut_after=-1, ending="reset"),
        Fault(times=1, chance=0.1, cut_after=10, ending="stall"),
        Fault(**rare | {"times": 1}, edit=fault_edits.shifted_range()),
        Fault(**rare | {"times": 1}, edit=fault_edits.shortened()),
        Fault(times=None, latency=0.0, jitter=0.03),
    ]


def without_tag(answer: Answer) -> None:
    """Leaves out the e-tag, as some servers do."""
    answer.headers.pop("etag", None)


def with_weak_tag(answer: Answer) -> None:
    """Makes the e-tag a weak one, as servers that compress do."""
    answer.headers["etag"] = f"W/{answer.headers['etag']}"


def with_units_in_capitals(answer: Answer) -> None:
    """Writes the units of ranges as nobody does, and may."""
    if "content-range" in answer.headers:
        answer.headers["content-range"] = answer.headers["content-range"].replace("bytes", "Bytes")


def a_page(answer: Answer) -> None:
    """Answers what gateways answer to those who are not logged in."""
    answer.status, answer.body = 200, PAGE
    answer.headers.clear()
    answer.headers.update({"content-type": "text/html", "content-length": str(len(PAGE))})


CASES: dict[str, Case] = {
    # Time.
    "late answers": passes(latency=0.02, jitter=0.05, times=None),
    "one very late answer": passes(latency=1.5),
    "some very late answers": passes(latency=1.5, times=3),
    "a slow link": passes(bytes_per_second=400_000.0, times=None),
    "one slow body": passes(bytes_per_second=6_000.0),
    # Refusals and failures.
    "500": passes(status=500, times=3),
    "502": passes(status=502, times=3),
    "504": passes(status=504, times=3),
    "408": passes(status=408),
    "400 that means 408": passes(status=400, body=TOO_SLOW, times=2),
    "400 that means 408, for a listing": listing(status=400, body=TOO_SLOW, times=2),
    "400 that means 429": passes(status=400, body=TOO_MANY_KEYS, times=2),
    "500 ten times": passes(status=500, times=10),
    "503": passes(**refused(503), times=3),
    "503 with Retry-After": passes(**refused(503, "1"), times=2),
    "503 with a Retry-After of nothing": passes(**refused(503, "0"), times=3),
    "503 with a Retry-After of no meaning": passes(**refused(503, "soon")),
    "429": passes(**refused(429), times=3),
    "429 with Retry-After": passes(**refused(429, "1"), times=2),
    "429 until a date": Case(lambda _: [Fault(skip=2, **refused(429, until_next_second()))]),
    "503 for one in two": passes(**refused(503), times=None, chance=0.5),
    # Connections.
    "refused connections": passes(outage=0.4),
    "two outages": Case(lambda _: [Fault(skip=2, outage=0.3), Fault(skip=3, outage=0.3)]),
    "reset before the answer": passes(cut_after=-1, ending="reset", times=3),
    "closed before the answer": passes(cut_after=-1, times=3),
    "reset after the headers": passes(cut_after=0, ending="reset", times=3),
    "reset in mid-body": passes(cut_after=500, ending="reset", times=3),
    "reset in mid-body, ten times": passes(cut_after=500, ending="reset", times=10),
    "reset for one in two": passes(cut_after=300, ending="reset", times=None, chance=0.5),
    "stall before the answer": passes(cut_after=-1, ending="stall"),
    "stall after the headers": passes(cut_after=0, ending="stall"),
    "stall in mid-body": passes(cut_after=500, ending="stall"),
    "several stalls": passes(cut_after=500, ending="stall", times=4),
    # Bodies of another length, or of another place.
    "cut, with the right length": passes(cut_after=500, times=3),
    "cut, with a length that agrees": passes(edit=fault_edits.shortened(7)),
    "cut, without a length": passes(edit=fault_edits.with_header("content-length", None), cut_after=500),
    "without a length, whole": passes(edit=fault_edits.with_header("content-length", None), times=None),
    "empty": passes(edit=fault_edits.shortened(1 << 20)),
    "doubled bytes": passes(edit=fault_edits.doubled(9)),
    "too long": passes(edit=fault_edits.lengthened(9), times=2),
    "coded, and said to be so": passes(edit=fault_edits.coded(), times=2),
    "a name of a file that is not ASCII": passes(
        edit=fault_edits.with_header("content-disposition", 'filename="\xc3\xa9.parquet"'), times=None, skip=0
    ),
    "a date as nobody should write it": passes(
        edit=fault_edits.with_header("last-modified", "Thursday, 01-Jan-26 00:00:00 GMT"), times=None, skip=0
    ),
    "another Content-Range": passes(edit=fault_edits.shifted_range(3)),
    "no Content-Range": passes(edit=fault_edits.with_header("content-range", None)),
    "a Content-Range of no meaning": passes(edit=fault_edits.with_header("content-range", "bytes 5-2/x")),
    "a Content-Range in capitals": passes(edit=with_units_in_capitals, times=None, skip=0),
    "202": passes(status=202, times=2),
    "203": passes(status=203),
    "204": passes(status=204, times=2),
    "range ignored": passes(hide=("range",)),
    "a page in the place of bytes": passes(edit=a_page),
    "a mixture": Case(mixture),
    "e-tags that are weak": passes(edit=with_weak_tag, times=None, skip=0),
    # What HTTP cannot show.
    "a flipped bit": spoils(edit=fault_edits.flipped_bit()),
    "flipped bits": spoils(edit=fault_edits.flipped_bit(0.3), times=None),
    "doubled bytes in the right length": spoils(edit=fault_edits.doubled_within(40)),
    "doubled bytes in the right length, always": spoils(edit=fault_edits.doubled_within(40), times=None),
    # What stays.
    "503 for ever": stays(fb.StoreTimeoutError, words=about_bytes("503 .*SlowDown"), **refused(503)),
    "503 for ever, with a long Retry-After": stays(
        fb.StoreTimeoutError,
        words=about_bytes("503 .*SlowDown.*to be asked again in 3600 s"),
        **refused(503, "3600"),
    ),
    "500 for ever": stays(fb.StoreTimeoutError, words=about_bytes("500 Internal Server Error"), status=500),
    "stalls for ever": stays(fb.StoreTimeoutError, words=about_bytes(NO_ANSWER), cut_after=-1, ending="stall"),
    "stalls in all bodies": stays(fb.StoreTimeoutError, words=about_bytes(NO_ANSWER), cut_after=0, ending="stall"),
    "resets for ever": stays(
        fb.StoreTimeoutError, words=about_bytes("[Cc]onnection (reset|closed|error)"), cut_after=-1, ending="reset"
    ),
    "gone for ever": stays(fb.StoreTimeoutError, words=about_bytes("[Cc]onnection refused"), outage=3600.0),
    "cut for ever, with a length that agrees": stays(
        fb.StoreError, words=about_bytes(r"announced \d+ bytes for `bytes \d"), edit=fault_edits.shortened(7)
    ),
    "another Content-Range for ever": stays(
        fb.StoreError, words=about_bytes(r"answered bytes=\d+-\d+ with `bytes \d"), edit=fault_edits.shifted_range(3)
    ),
    "no Content-Range for ever": stays(
        fb.StoreError,
        words=about_bytes(r"answered bytes=\d+-\d+ with `no `Content-Range"),
        edit=fault_edits.with_header("content-range", None),
    ),
    "204 for ever": stays(
        fb.StoreError, words=about_bytes("answered 204 No Content when asked for bytes="), status=204
    ),
    "doubled bytes for ever": stays(
        fb.StoreError, words=about_bytes(r"announced \d+ bytes for `bytes \d"), edit=fault_edits.doubled(9)
    ),
    "too long for ever": stays(
        fb.StoreError, words=about_bytes(r"longer than the \d+ bytes"), edit=fault_edits.lengthened(9)
    ),
    "coded for ever": stays(fb.StoreError, words=about_bytes("with encoded bytes"), edit=fault_edits.coded()),
    "ranges ignored for ever": stays(
        fb.StoreError, words=about_bytes("sent the whole object"), may_be_exact=True, hide=("range",)
    ),
    "pages in the place of bytes for ever": stays(
        fb.StoreError, words=about_bytes("a page of HTML when asked for bytes="), edit=a_page
    ),
    "400": stays(fb.StoreError, words=about_bytes("400 Bad Request"), status=400),
    "401": stays(fb.AccessDeniedError, words=about("401 Unauthorized"), status=401),
    "403": stays(fb.AccessDeniedError, words=about("403 Forbidden"), status=403),
    "404": stays(fb.NotFoundError, words=about("404 Not Found"), status=404),
    "410": stays(fb.NotFoundError, words=about("410 Gone"), status=410),
    "416": stays(fb.ObjectChangedError, words=about("changed .*e-tag"), status=416),
    "412": stays(fb.ObjectChangedError, words=about("changed .*e-tag"), status=412),
    "another e-tag": stays(
        fb.ObjectChangedError, words=about("changed .*e-tag"), edit=fault_edits.with_header("etag", '"other"')
    ),
    "a stale e-tag once": stays(
        fb.ObjectChangedError,
        words=about("changed .*e-tag"),
        may_be_exact=True,
        times=1,
        edit=fault_edits.with_header("etag", '"stale"'),
    ),
    # What happens to objects.
    "replaced": happens(lambda place: place.replace(), fb.ObjectChangedError, cause="changed .*e-tag", times=1),
    "replaced by one as large": happens(
        lambda place: place.replace(same_size=True), fb.ObjectChangedError, cause="changed .*e-tag", times=1
    ),
    "replaced in a store that knows no conditions": happens(
        lambda place: place.replace(same_size=True),
        fb.ObjectChangedError,
        cause="changed .*e-tag",
        times=None,
        hide=("if-match",),
    ),
    "replaced in a store that knows no e-tags": happens(
        lambda place: place.replace(),
        fb.ObjectChangedError,
        fb.StoreError,
        cause="changed .*e-tag",
        times=None,
        hide=("if-match",),
        edit=without_tag,
    ),
    "replaced by one as large, in a store that knows no e-tags": happens(
        lambda place: place.replace(same_size=True),
        fb.ObjectChangedError,
        cause="changed .*e-tag",
        times=None,
        hide=("if-match",),
        edit=without_tag,
    ),
    "deleted": happens(lambda place: place.delete(), fb.NotFoundError, cause="404 Not Found", times=1),
    # Footers.
    "opening: 503": opening(**refused(503), times=3),
    "opening: 429 with Retry-After": opening(**refused(429, "1")),
    "opening: a reset": opening(cut_after=100, ending="reset", times=3),
    "opening: a cut": opening(cut_after=100, times=3),
    "opening: a stall": opening(cut_after=100, ending="stall"),
    "opening: an outage": opening(outage=0.4),
    "opening: another Content-Range": opening(edit=fault_edits.shifted_range(3)),
    "opening: a length that agrees with a cut": opening(edit=fault_edits.shortened(7)),
    "opening: range ignored": opening(hide=("range",)),
    "opening: 403": Case(
        lambda _: [Fault(status=403, times=None)],
        (fb.AccessDeniedError,),
        words=about("403 Forbidden"),
        is_opening=True,
    ),
    "opening: stalls for ever": Case(
        lambda _: [Fault(cut_after=-1, ending="stall", times=None)],
        (fb.StoreTimeoutError,),
        words=about(NO_ANSWER),
        is_opening=True,
    ),
    "opening: 503 for ever": Case(
        lambda _: [Fault(**refused(503), times=None)],
        (fb.StoreTimeoutError,),
        words=about("503 .*SlowDown"),
        is_opening=True,
    ),
    # Listings and credentials, which are of S3.
    "listing: 503": listing(**refused(503), times=2),
    "listing: a cut": listing(cut_after=60, times=2),
    "listing: a stall": listing(cut_after=60, ending="stall"),
    "listing: an error in the place of a page": listing(edit=FAILED_PAGE, times=2),
    "listing: nothing in the place of a page": listing(edit=fault_edits.shortened(1 << 20), times=2),
    "listing: a page without its end, with a length that agrees": listing(edit=fault_edits.shortened(9), times=2),
    "listing: a page that does not say which is next": listing(edit=PART_OF_A_LISTING, times=2),
    "listing: an error in the place of a page, for ever": unlisted(
        "it sent `Error` instead of a listing .InternalError: Try again", edit=FAILED_PAGE
    ),
    "listing: a page that does not say which is next, for ever": unlisted(
        "does not say how to ask for the next", edit=PART_OF_A_LISTING
    ),
    "listing: a page without an end": unlisted("longer than 64 MiB", status=200, body=bytes(65 << 20)),
    "listing: no XML": Case(
        lambda _: [Fault(edit=a_page, times=None, where="list-type")],
        (fb.StoreError, fb.NotFoundError),
        words="the store failed for `s3://[^`]+/`.*a page of HTML",
        is_opening=True,
        stores=("s3",),
    ),
    "credentials that expire": Case(
        lambda place: [Fault(before=place.expire, skip=2)],
        (fb.AccessDeniedError,),
        words=about("ExpiredToken|expired"),
        stores=("s3",),
    ),
}
