"""docs/troubleshooting.md quotes messages: each is one that the code has."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import chain
from pathlib import Path

from parsed import tree_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
CODE = ("gossip", "aggregators", "topologies", "launch")
ELSEWHERE = {"waits", "OMP_NUM_THREADS", "torch.compile", "killed by SIGKILL", "refused …"}
"""What is quoted and no message of one place: a column, a variable, a word that a signal's name
follows, messages that many places word."""


@cache
def messages() -> list[str]:
    """Every text in the code. What is filled in is a ``…``."""
    found = []
    for path in chain.from_iterable((ROOT / folder).rglob("*.py") for folder in CODE):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.JoinedStr):
                parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def quotes() -> list[str]:
    """What stands in the first column of the page's tables as code."""
    rows = re.findall(r"^\| (.+?) \| ", PAGE.read_text("utf-8"), re.MULTILINE)
    found = chain.from_iterable(re.findall(r"`([^`]+)`", row) for row in rows)
    return [quote.replace(r"\|", "|") for quote in found if quote not in ELSEWHERE]


def is_said(quote: str) -> bool:
    """Whether each piece of it is in a text: what is between them may be put together elsewhere."""
    pieces = [piece.strip() for piece in quote.split("…")]
    return all(any(piece in text for text in messages()) for piece in pieces if len(piece) > 4)


def test_the_messages_on_the_page_are_those_of_the_code() -> None:
    assert [quote for quote in quotes() if not is_said(quote)] == []
    assert len(quotes()) > 30
    assert not is_said("! the moon is … percent full")
