"""The code blocks of the pages: where they stand, in which language, and which are not run, with
the reason that stands above them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<language>.*)$")
NOT_RUN = re.compile(r"^ *<!-- not run: (?P<why>.+) -->$")
PROMPT = re.compile(r"^\w*\$ ")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page.

    Attributes:
        line: Of its fence, from 1.
        language: The word behind the fence.
        why_not: Why it is not run, in the words of a comment ``<!-- not run: ... -->`` above it;
            empty where it is.
    """

    page: str
    line: int
    language: str
    text: str
    why_not: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The command lines of a shell block, or those behind the prompts of a session."""
        joined = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            return [PROMPT.sub("", line) for line in joined if PROMPT.match(line)]
        return [line for line in joined if line.strip() and not line.lstrip().startswith("#")]


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """The blocks of a page's text, in their order."""
    opened: re.Match[str] | None = None
    begun, body, why, before = 0, list[str](), "", ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None and fence is not None:
            reason = NOT_RUN.match(before)
            opened, begun, body, why = fence, number, [], reason["why"] if reason else ""
        elif opened is not None and fence is not None and fence["marks"] == opened["marks"]:
            indent = len(opened["indent"])
            code = "\n".join(each[indent:] for each in body)
            yield Block(page, begun, opened["language"].strip(), code, why)
            opened = None
        elif opened is not None:
            body.append(line)
        before = line
    assert opened is None, f"{page}:{begun}: the block has no end"


def every_block() -> list[Block]:
    return [
        block
        for page in PAGES
        for block in blocks_of(str(page.relative_to(ROOT)), page.read_text("utf-8"))
    ]
