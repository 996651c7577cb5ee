"""Engines that run the cells of a sweep. All engines use the same store for finished cells, so one
engine can continue the sweep of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .choice import ENGINES, LOCAL, load
    from .settings import CellEngine, SweepSettings
else:
    __getattr__, __dir__ = lazy(__name__)
