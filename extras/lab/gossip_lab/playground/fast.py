"""The fast engine: all peers at once, without messages.

It uses the product's own topology, rule, trust table and grace periods. Only the decision which
peers are in time is its own. This decision depends on compute times, link times and faults.
"""

from __future__ import annotations

from collections.abc import Iterator

from .fast_gossip import GossipWorld
from .fast_rolling import RollingWorld
from .moments import Moment
from .parts import Parts


class FastEngine:
    """Plays a world round by round with the product's own topology, rule and trust table."""

    def __init__(self, parts: Parts) -> None:
        self._world = RollingWorld(parts) if parts.topology.rolling else GossipWorld(parts)

    def moments(self) -> Iterator[Moment]:
        """Play the world round by round, without end. In gossip rounds, the parameters of a yielded
        moment are overwritten by the next round.

        Raises: ConfigError: Too few peers are left for a round.
        """
        while True:
            yield self._world.play_round()
