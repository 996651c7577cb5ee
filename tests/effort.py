"""How much the dear tests do: in `make test` what every change needs, in `make test-long` all of
it, as a night allows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
HERE = Path(__file__).parent
LONG = os.environ.get("TEST_LONG", "") not in ("", "0")


def _played(now: bool, why: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not now, reason=why)


only_long = _played(LONG, "make test-long plays it on real processes")
"""Of a test whose claim simulations or smaller tests prove in `make test`."""


def effort(quick: T, long: T) -> T:
    """``quick``, or ``long`` where the environment says TEST_LONG=1: more seeds, sizes or examples
    of the very same test."""
    return long if LONG else quick


@cache
def seed_of_today() -> int:
    """Return TEST_SEED or else the number of commits; 0 without a git repository. A shallow clone,
    whose number is always the same, has a number of its last commit."""
    if given := os.environ.get("TEST_SEED"):
        return int(given)
    if _git("rev-parse", "--is-shallow-repository") == "true":
        return int(_git("rev-parse", "HEAD")[:6], 16)
    return int(_git("rev-list", "--count", "HEAD") or 0)


def _git(*words: str) -> str:
    """Return what git prints, "" if it fails or is not installed."""
    try:
        done = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def rotated(rows: Iterable[T], every: int = 2) -> list[T]:
    """Return every n-th row, others with each commit: so many in a row play all. With TEST_LONG=1
    return all."""
    return [row for at, row in enumerate(rows) if LONG or (at + seed_of_today()) % every == 0]


def in_turn(at: int, of: int = 4) -> pytest.MarkDecorator:
    """Play a dear test with one of so many commits in a row, and with TEST_LONG=1."""
    return _played(LONG or (at + seed_of_today()) % of == 0, "it is the turn of another commit")
