"""The laboratory of gossip: the simulator with its checkers, the playground, and the benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .playground import RunCommand, Sweep, World, grid
else:
    __getattr__, __dir__ = lazy(__name__)
