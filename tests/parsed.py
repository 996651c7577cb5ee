"""The syntax trees of our sources, parsed once for all tests that read them: all of them take a
processor two seconds. One process runs those tests (``group_of`` in conftest.py)."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(text: str) -> ast.Module:
    """Nobody may change it."""
    return ast.parse(text)


def tree_of(path: Path) -> ast.Module:
    return parsed(path.read_text("utf-8"))
