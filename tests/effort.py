"""How much the dear tests do: in `make test` what every change needs, in `make test-long` all of
it, as a night allows."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

T = TypeVar("T")
LONG = os.environ.get("TEST_LONG", "") not in ("", "0")
only_long = pytest.mark.skipif(not LONG, reason="make test-long plays it on real processes")
"""Of a test whose claim simulations or smaller tests prove in `make test`."""


def effort(quick: T, long: T) -> T:
    """``quick``, or ``long`` where the environment says TEST_LONG=1: more seeds, sizes or examples
    of the very same test."""
    return long if LONG else quick
