"""The benchmarks of packing and images compare readers that deliver the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benches" / "python"

WRITE = """
import sys
from pathlib import Path
import shaping_data

shaping_data.NUM_DOCUMENTS, shaping_data.NUM_IMAGES = 16 * 800, 16 * 48
print(shaping_data.documents(Path(sys.argv[1]), is_quick=True))
print(shaping_data.images(Path(sys.argv[1]), is_quick=True))
"""


def program(*arguments: object) -> str:
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=FOLDER, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    written = program("-c", WRITE, tmp_path_factory.mktemp("shaping")).splitlines()
    return [line for line in written if not line.startswith("writing")]


def delivered(reader: str, folder: str) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads(program("shaping_readers.py", reader, folder, 0, 1).splitlines()[-1])
    return seen


@pytest.mark.parametrize("mode", ["concat", "best_fit"])
def test_generators_pack_the_same_tokens_into_as_many_sequences(folders: list[str], mode: str) -> None:
    ours, theirs = delivered(f"forebay_{mode}", folders[0]), delivered(f"datasets_{mode}", folders[0])
    assert {name: ours[name] for name in ("units", "places", "checksum")} == {
        name: theirs[name] for name in ("units", "places", "checksum")
    }


def test_images_are_the_same_within_two_grey_levels(folders: list[str]) -> None:
    ours, theirs = delivered("forebay_images", folders[1]), delivered("pil_images", folders[1])
    assert ours["units"] == theirs["units"] == 48
    assert abs(ours["checksum"] - theirs["checksum"]) / 48 < 2
