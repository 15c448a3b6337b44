"""The table of readers in faults and the soak notice what they are there to notice.

Their modules have names of their own that tests have too, so each test is a program in their folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import s3_server

FOLDER = Path(__file__).resolve().parents[2] / "benches" / "python"


def run(*arguments: str, status: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=FOLDER,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done.stdout


JUDGED = """
import fault_readers, faults
from fault_readers import NUM_ROWS, payload, read

def judged(rows):
    fault_readers.READERS["mine"] = lambda endpoint, bucket: iter(rows)
    return faults.told(read("mine", "", ""))

whole = [(number, payload(number)) for number in range(NUM_ROWS)]
assert judged(whole) == "exact"
assert judged(whole[::-1]) == "exact"
assert judged(whole[:-2]) == "**2 rows lost**"
assert judged(whole + whole[:3]) == "**3 rows doubled**"
assert judged([*whole[1:], (0, b"?" * 1024)]) == "**1 rows with wrong bytes**"
assert judged([*whole[1:], (NUM_ROWS + 5, payload(NUM_ROWS + 5))]) == "**1 rows lost, 1 other rows**"

def failing():
    yield whole[0]
    raise OSError("no more")

assert judged(failing()) == "error: `OSError`"
assert faults.page({"nothing": {"forebay": "exact"}}).splitlines()[2].startswith("| nothing | exact | not run |")
"""

SOAKED = """
import collections
import soak

reader = soak.Reader("one", "", 0, False)
reader._account(0, collections.Counter(range(soak.NUM_ROWS)))
assert (reader.num_epochs, reader.failures) == (1, [])
reader._account(1, collections.Counter([0, *range(1, soak.NUM_ROWS - 1), 5]))
assert reader.failures == ["epoch 1: 1 rows lost, 1 doubled"]

def held(rss, descriptors):
    return {"rss": rss * soak.MEBIBYTE, "descriptors": descriptors, "threads": 9}

def failures(minutes, samples=(), num_epochs=12, num_kills=0, has_kills=False):
    reader = soak.Reader("one", "", 0, has_kills, num_kills=num_kills, num_epochs=num_epochs, samples=list(samples))
    reader.report(minutes)
    return reader.failures

flat = [(60.0 * k, held(200, 30 + k % 2)) for k in range(12)]
grows = [(60.0 * k, held(200 + 2 * k, 30 + 10 * k)) for k in range(12)]
assert failures(20, flat) == []
assert len(failures(20, grows)) == 2, failures(20, grows)
assert failures(0.1, grows) == []
assert failures(20, flat[:4]) == ["only 3 samples tell of its memory"]
assert failures(20, flat, num_epochs=0) == ["no epoch came to its end"]
assert failures(20, has_kills=True) == ["it was never killed"]
assert failures(20, num_kills=1, has_kills=True) == []
"""


@pytest.mark.parametrize("program", [JUDGED, SOAKED], ids=["judged", "soaked"])
def test_rows_that_are_lost_doubled_or_wrong_are_noticed(program: str) -> None:
    run("-c", program)


@pytest.mark.timeout(110)
def test_a_short_soak_is_exact(s3) -> None:
    said = run("soak.py", "--minutes", "0.1", **{s3_server.ENDPOINT_VARIABLE: s3.endpoint})
    assert said.endswith("soak: all rows exact\n")
    assert "alive: 0 epochs" not in said
