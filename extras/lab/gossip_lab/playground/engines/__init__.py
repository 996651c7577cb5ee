"""Engines that run the cells of a sweep. All keep finished cells in one store: a sweep that one
engine began, another continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .choice import ENGINES, LOCAL, CellEngine, SweepSettings, load
else:
    __getattr__, __dir__ = lazy(__name__)
