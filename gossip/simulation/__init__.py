"""The virtual world: the real core under a virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .campaign import (
        CampaignTally as CampaignTally,
        Chart as Chart,
        ReplayDiverged as ReplayDiverged,
        SearchQuery as SearchQuery,
        Shrunk as Shrunk,
        SimulationResult as SimulationResult,
        draw as draw,
        play as play,
        replay as replay,
        run as run,
        search as search,
        shrink as shrink,
    )
    from .checkers import Violation as Violation
    from .schedules import Schedule as Schedule, generate as generate
    from .world import Observer as Observer
else:
    __getattr__, __dir__ = lazy(__name__)
