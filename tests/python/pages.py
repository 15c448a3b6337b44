"""The examples of the pages, taken out of the Markdown so that they can be run.

The Python blocks of a page are one program, or several where commands stand between them. A comment on the line above a
block makes something else of it:

    <!-- file: train.py -->      the block is this file, in the folder where the examples run
    <!-- run -->                 a shell block whose commands are run
    <!-- prints -->              a text block that programs and commands print, in this order; `...` is anything
    <!-- prints, with other numbers -->  the same, but each number may be another
    <!-- only compiled: why -->  the block is compiled, and not run, because of what is said

The forge and the site show none of these comments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<kind>\w+)[^\n]*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass
class Step:
    """A program in Python, or a command of the shell."""

    kind: Literal["python", "sh"]
    code: str


@dataclass
class Page:
    """What a page asks to be run, in which order, and what is to come of it."""

    path: Path
    steps: list[Step] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    outputs: list[re.Pattern[str]] = field(default_factory=list)
    only_compiled: list[str] = field(default_factory=list)

    @property
    def has_examples(self) -> bool:
        """Whether there is anything to run or compile."""
        return bool(self.steps or self.files or self.only_compiled)


def read_page(path: Path) -> Page:
    """Reads a page. Its code keeps the numbers of its lines, so that a traceback leads to the page."""
    text = path.read_text()
    page = Page(path)
    num_blocks = 0
    for found in BLOCK.finditer(text):
        mark, kind, code = found["mark"] or "", found["kind"], found["text"]
        line = text.count("\n", 0, found.start("text"))
        padded = "\n" * line + code
        name, _, value = mark.partition(":")
        num_blocks += kind == "python"
        match (kind, name):
            case ("python", ""):
                if not page.steps or page.steps[-1].kind == "sh":
                    page.steps.append(Step("python", ""))
                program = page.steps[-1]
                program.code += "\n" * (line - program.code.count("\n")) + code
            case (_, "file") if value.strip():
                page.files[value.strip()] = padded if kind == "python" else code
            case ("python", "only compiled") if value.strip():
                page.only_compiled.append(padded)
            case ("sh", "run"):
                page.steps += [Step("sh", command) for command in code.splitlines()]
            case ("text", "prints" | "prints, with other numbers"):
                page.outputs.append(printed_like(code, other_numbers=name != "prints"))
            case (_, "") if kind != "python":
                pass
            case _:
                raise ValueError(f"{path}:{line}: `{mark}` means nothing above a block of {kind}")
    if num_blocks != len(re.findall(r"^\s*```\s*python", text, re.MULTILINE)):
        raise ValueError(f"{path}: a block of Python is not at the left margin, or not closed")
    return page


def printed_like(text: str, *, other_numbers: bool) -> re.Pattern[str]:
    """Returns what finds a text, from the start of a line on, in what a page's examples print."""
    pattern = re.escape(text).replace(re.escape("..."), ".*?")
    if other_numbers:
        pattern = re.sub(r"\d+(?:,\d+)*(?:\\\.\d+)?", r"[\\d,.]+", pattern)
    return re.compile("^" + pattern, re.DOTALL | re.MULTILINE)
