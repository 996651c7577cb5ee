"""The virtual world: the real core under a virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .campaign import CampaignTally as CampaignTally
    from .campaign import Chart as Chart
    from .campaign import ReplayDiverged as ReplayDiverged
    from .campaign import SearchQuery as SearchQuery
    from .campaign import Shrunk as Shrunk
    from .campaign import SimulationResult as SimulationResult
    from .campaign import draw as draw
    from .campaign import play as play
    from .campaign import replay as replay
    from .campaign import run as run
    from .campaign import search as search
    from .campaign import shrink as shrink
    from .checkers import Violation as Violation
    from .schedules import Schedule as Schedule
    from .schedules import generate as generate
    from .world import Observer as Observer
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "campaign": (
                "Chart",
                "ReplayDiverged",
                "SimulationResult",
                "SearchQuery",
                "Shrunk",
                "CampaignTally",
                "draw",
                "play",
                "replay",
                "run",
                "search",
                "shrink",
            ),
            "checkers": ("Violation",),
            "schedules": (
                "Schedule",
                "generate",
            ),
            "world": ("Observer",),
        },
    )
