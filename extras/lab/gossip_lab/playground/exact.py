"""The exact engine: the real protocol core of each peer, in the simulator."""

from __future__ import annotations

from collections.abc import Iterator

from gossip.errors import ConfigError

from .moments import Moment
from .parts import Parts


class ExactEngine:
    """Plays a world with the real cores on the simulator's virtual clock."""

    def __init__(self, parts: Parts) -> None:
        raise ConfigError("the exact engine is not there yet", "engine=fast")

    def moments(self) -> Iterator[Moment]:
        """Play the world round by round, without end."""
        raise NotImplementedError
