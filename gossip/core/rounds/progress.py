"""Interface through which other parts of the peer read the progress of its rounds."""

from __future__ import annotations

from typing import Any, Protocol

from gossip.core.messages import PeerId
from gossip.topologies import Roster


class DonorRounds(Protocol):
    """Part of ``LocalProgress`` through which the recovery reads the rounds."""

    @property
    def round_id(self) -> int:
        """The present round."""

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None:
        """Return H of the round before ``round_id``, and the replicated state before ``round_id``
        apart from the trainer's state. Return None if that state is not stored."""

    def check(self, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        """Raise ValueError or OverflowError unless ``chain`` and ``snapshot`` can be adopted.
        Change nothing."""


class LocalProgress(DonorRounds, Protocol):
    """Progress of the local peer, which only its rounds change."""

    @property
    def roster(self) -> Roster:
        """Peers that take part in the present round."""

    def quorum(self) -> int:
        """Return the number of updates that a round needs."""

    def branch(self) -> tuple[bytes, tuple[PeerId, ...]]:
        """Return H of the last round, and the recent contributors if both sides of a partition may
        continue."""
