"""The oldest `datasets` whose seams are taken, in an environment of its own; the newest is that of all other tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import datasets
import pytest

from forebay.hf import versions

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-datasets" / "bin" / "python"
REQUIREMENTS = ROOT / "python" / "requirements" / "datasets.in"


def test_the_newest_version_that_is_taken_is_the_one_that_is_tested_here() -> None:
    assert ".".join(datasets.__version__.split(".")[:2]) == ".".join(map(str, versions.NEWEST))


def test_the_oldest_version_that_is_taken_works() -> None:
    oldest = ".".join(map(str, versions.OLDEST)) + ".0"
    assert f"datasets=={oldest}\n" in REQUIREMENTS.read_text()
    if not (PYTHON.parents[1] / "done").exists():
        message = "no environment with the oldest `datasets`: `make datasets-env` makes it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    paths = [ROOT / "python", ROOT / "tests" / "python"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    program = [str(PYTHON), str(ROOT / "tests" / "python" / "hf_lowest.py"), oldest]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout) == (0, "all checked\n"), done.stderr
