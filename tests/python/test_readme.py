"""The examples of the README run as they stand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import data
import pytest
from programs import python_command, python_environment

ROOT = Path(__file__).resolve().parents[2]


def python_blocks(path: Path) -> list[tuple[int, str]]:
    """Line and code of every Python example of a page that stands at the left margin."""
    text = path.read_text()
    return [
        (text.count("\n", 0, found.start()) + 1, found[1])
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]


BLOCKS = python_blocks(ROOT / "README.md")


def test_the_readme_has_examples():
    assert BLOCKS


@pytest.mark.parametrize(("line", "code"), BLOCKS, ids=[f"line {line}" for line, _ in BLOCKS])
def test_an_example_runs(line, code, tmp_path):
    """Runs in a folder that has what an example may open: `corpus/`."""
    data.write_fragments(tmp_path / "corpus", data.corpus_table(5000), num_fragments=3)
    done = subprocess.run(
        python_command(code),
        cwd=tmp_path,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"README.md:{line}\n{done.stdout}\n{done.stderr}"
