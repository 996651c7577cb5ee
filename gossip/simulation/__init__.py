"""The virtual world: the real core under a virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .campaign import Chart as Chart
    from .campaign import Diverged as Diverged
    from .campaign import Outcome as Outcome
    from .campaign import Question as Question
    from .campaign import Shrunk as Shrunk
    from .campaign import Tally as Tally
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
                "Diverged",
                "Outcome",
                "Question",
                "Shrunk",
                "Tally",
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
