"""What all integration tests leave behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def all_is_closed() -> Iterator[None]:
    yield
    if (rig := sys.modules.get("zeromq_rig")) is not None:
        rig.close_all()
