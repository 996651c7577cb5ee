"""Interface to the progress of the local peer's rounds, for other parts of the peer."""

from __future__ import annotations

from typing import Any, Protocol

from gossip.core.messages import PeerId
from gossip.topologies import Roster


class LocalProgress(Protocol):
    """Progress of the local peer. Only its rounds change it."""

    @property
    def round_id(self) -> int:
        """The present round."""

    @property
    def roster(self) -> Roster:
        """Peers that take part in this round."""

    def quorum(self) -> int:
        """Return the number of updates that a round needs."""

    def branch(self) -> tuple[bytes, tuple[PeerId, ...]]:
        """Return H of the last round. If two branches may both continue, also return the recent
        contributors."""

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None:
        """Return H of the previous round, and the part of the state before ``round_id`` that does
        not belong to the trainer. Return None if the round is not stored."""

    def check(self, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        """Raise ValueError or OverflowError unless ``chain`` and ``snapshot`` can be adopted.
        Change nothing."""
