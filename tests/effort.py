"""How much the dear tests do: in `make test` what every change needs, in `make test-long` all of
it, as a night allows."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")
LONG = os.environ.get("TEST_LONG", "") not in ("", "0")


def effort(quick: T, long: T) -> T:
    """``quick``, or ``long`` where the environment says TEST_LONG=1: more seeds, sizes or examples
    of the very same test."""
    return long if LONG else quick
