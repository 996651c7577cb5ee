"""Plays schedules, checks them, makes failing ones small and draws what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import play as play
    from .chart import Chart as Chart
    from .picture import draw as draw
    from .play import SimulationResult as SimulationResult, run as run
    from .replayer import ReplayDiverged as ReplayDiverged, replay as replay
    from .runner import CampaignTally as CampaignTally, SearchQuery as SearchQuery, search as search
    from .shrinker import Shrunk as Shrunk, shrink as shrink
else:
    __getattr__, __dir__ = lazy(__name__)
