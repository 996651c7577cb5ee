"""Plays schedules, checks them, shrinks failing ones and draws their events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import many_peers, play
    from .chart import Chart
    from .picture import draw
    from .play import SimulationResult, run
    from .runner import CampaignTally, SearchQuery, search
    from .shrinker import Shrunk, shrink
else:
    __getattr__, __dir__ = lazy(__name__)
