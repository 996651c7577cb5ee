"""The virtual world: the real core under a virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .campaign import (
        CampaignTally,
        Chart,
        SearchQuery,
        Shrunk,
        SimulationResult,
        draw,
        many_peers,
        play,
        run,
        search,
        shrink,
    )
    from .checkers import Violation
    from .schedules import Schedule, generate
    from .world import (
        LinkModel,
        Network,
        Observer,
        RuleRunner,
        Said,
        SharedLedgers,
        Swarm,
        Watcher,
        address,
        bytes_of_state,
    )
else:
    __getattr__, __dir__ = lazy(__name__)
