"""The examples of the README and of all pages run as they stand, and print what the pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import data
import pytest
from hub import Hub
from hub_data import to_bytes
from pages import Page, read_page
from programs import python_environment

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

    from s3 import S3

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    page for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))] if (page := read_page(path)).has_examples
]
NEEDS_S3 = "docs/howto/stores.md"
NEEDS_HUB = "docs/howto/hub.md"

CARD = b"""---
configs:
- {config_name: all, default: true, data_files: data/*}
- {config_name: small, data_files: data/0*}
---
"""

# torchdata calls what newer torch deprecates; Python warns of forks beside threads, torch of more workers than cores.
WARNINGS = [
    "error",
    "ignore:'set_vital' is deprecated:UserWarning",
    "ignore:This DataLoader will create:UserWarning",
    "ignore:This process:DeprecationWarning",
]
TORCH_ABORTS = "terminate called without an active exception"


def name_of(page: Page) -> str:
    return page.path.relative_to(ROOT).as_posix()


def test_the_pages_that_teach_have_examples():
    names = set(map(name_of, PAGES))
    assert {"README.md", "docs/index.md", "docs/tutorial.md", NEEDS_S3} <= names
    assert len(names) > 10


def test_every_public_name_is_in_the_reference():
    text = "".join(path.read_text() for path in ROOT.glob("docs/reference/*.md"))
    names = {name for name in fb.__all__ if not isinstance(getattr(fb, name), type(fb.__version__))}
    # They are all taken from their module.
    names -= {name for name in names if name in vars(fb.exceptions)}
    assert "automodule:: forebay.exceptions" in text
    assert [name for name in sorted(names) if f"{name}\n" not in text] == []


def test_every_exception_is_in_the_table_of_errors():
    text = (ROOT / "docs/howto/errors.md").read_text()
    kinds = {kind for kind in vars(fb).values() if isinstance(kind, type) and issubclass(kind, fb.ForebayError)}
    for kind in sorted(kinds - {fb.ForebayError}, key=lambda kind: kind.__name__):
        others = ", ".join(f"`{base.__name__}`" for base in kind.__bases__ if base is not fb.ForebayError)
        assert f"\n| `{kind.__name__}` | {others} |" in text
    warned = {kind.__name__ for kind in vars(fb).values() if isinstance(kind, type) and issubclass(kind, Warning)}
    assert [name for name in sorted(warned) if f"\n| `{name}` |" not in text] == []


def test_every_count_of_a_stream_is_in_the_reference(tmp_path):
    text = (ROOT / "docs/reference/streams.md").read_text()
    data.write_fragments(tmp_path, data.ids_table(10))
    stream = fb.load_dataset(tmp_path, split="train").batches(4)
    next(iter(stream))
    assert [
        name for name in stream.stats() if f"`{name}`" not in text and f"`..._{name.rpartition('_')[2]}`" not in text
    ] == []


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory) -> Iterator[dict[str, Future[None]]]:
    """Runs the selected pages side by side: most of their time is that of importing torch, on one core each."""
    tests = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    pages = [item.callspec.params["page"] for item in tests]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {name_of(page): pool.submit(run, page, tmp_path_factory.mktemp(page.path.stem)) for page in pages}


@pytest.mark.parametrize("page", [page for page in PAGES if name_of(page) not in (NEEDS_S3, NEEDS_HUB)], ids=name_of)
def test_the_examples_of_a_page_run(page, runs):
    runs[name_of(page)].result()


def test_the_examples_about_stores_run(s3: S3, bucket, tmp_path):
    """With the bucket and the endpoint of the tests in place of those that the page speaks of."""
    data.write_fragments(tmp_path / "upload", data.corpus_table(5000), num_fragments=3)
    bucket.upload(tmp_path / "upload", "corpus/")
    page = read_page(ROOT / NEEDS_S3)
    [program] = page.steps
    program.code = program.code.replace("s3://lake/", f"{bucket.url}/").replace('"lake"', f'"{bucket.name}"')
    program.code = program.code.replace("http://localhost:9000", s3.endpoint)
    assert program.code.count(bucket.name) > 2
    named = re.escape("s3://lake"), re.escape(bucket.url)
    page.outputs[:] = [re.compile(shown.pattern.replace(*named), shown.flags) for shown in page.outputs]
    run(page, tmp_path, s3.environment)


def test_the_examples_about_the_hub_run(tmp_path):
    table = data.corpus_table(5000)
    files = {f"data/{part}.parquet": to_bytes(table.slice(part * 1000, 1000), 500) for part in range(5)}
    with Hub() as hub:
        hub.create("acme/corpus", files | {"README.md": CARD})
        run(read_page(ROOT / NEEDS_HUB), tmp_path, hub.environment(tmp_path))


def run(page: Page, folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Runs what a page says, in a folder with what an example may open: `corpus/`, the columns of the demo's."""
    data.write_fragments(folder / "corpus", data.corpus_table(5000), num_fragments=3)
    for code in page.only_compiled:
        compile(code, name_of(page), "exec")
    for name, code in page.files.items():
        (folder / name).write_text(code)
    printed = ""
    flags = [flag for warning in WARNINGS for flag in ("-W", warning)]
    for step in page.steps:
        if step.kind == "python":
            program = folder / f"page_{page.path.stem}.py"
            program.write_text(step.code)
            command = [sys.executable, *flags, program.name]
        else:
            command = ["bash", "-euc", step.code]
        printed += output(command, page, folder, environment)
    check_outputs(page, printed)


def output(command: list[str], page: Page, folder: Path, environment: Mapping[str, str] | None) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env=python_environment(
            dict(environment or {}) | {"PATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        ),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    # Of processes with DDP over gloo, without anything of ours, one in ten or so aborts at its end, after all is done:
    # a thread of torch's has outlived the interpreter. What they printed is checked all the same.
    is_aborted_by_torch = command[-1].startswith("torchrun") and TORCH_ABORTS in done.stderr
    assert done.returncode == 0 or is_aborted_by_torch, f"{name_of(page)}: {command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def check_outputs(page: Page, printed: str) -> None:
    """Checks that all of what the page shows is printed, block after block."""
    rest = printed
    for shown in page.outputs:
        found = shown.search(rest)
        assert found, f"{name_of(page)} shows\n{shown.pattern}\nbut its examples go on to print\n{rest}"
        rest = rest[found.end() :]
