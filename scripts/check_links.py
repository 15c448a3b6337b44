"""Checks that every link between pages of this repository leads to an existing file and heading."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def pages() -> list[Path]:
    """Returns the Markdown files that are in git or not ignored by it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    return [ROOT / line for line in listed.stdout.splitlines()]


def anchors(text: str) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(plain.replace(" ", "-"))
    return found


def broken_links(page: Path) -> list[str]:
    """Returns a message for each broken link of a page."""
    problems = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            problems.append(f"{page.relative_to(ROOT)}: `{target}` leads nowhere")
        elif anchor and anchor not in anchors(file.read_text()):
            problems.append(f"{page.relative_to(ROOT)}: `{path}` has no heading for `#{anchor}`")
    return problems


def main() -> int:
    """Checks all pages."""
    checked = pages()
    problems = [problem for page in checked for problem in broken_links(page)]
    print("\n".join([*problems, f"{len(checked)} pages, {len(problems)} broken links"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
