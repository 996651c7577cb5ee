"""Engines that run the cells of a sweep. All store finished cells alike, so that one engine can
continue the sweep of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .choice import ENGINES, LOCAL, load
    from .settings import CellEngine, SweepSettings
else:
    __getattr__, __dir__ = lazy(__name__)
