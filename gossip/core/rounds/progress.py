"""Progress of the local peer's rounds, for its other parts."""

from __future__ import annotations

from typing import Any, Protocol

from gossip.core.ledger import ReplicatedState
from gossip.core.messages import PeerId
from gossip.topologies import Roster

from .fork_choice import ForkChoice
from .quorum import Quorum


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
        """Return H of the last round, and the recent contributors if two branches may both
        continue."""

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None:
        """Return H of the round before, and the part of the state before ``round_id`` that is not
        the trainer's; None if it is not kept."""

    def check(self, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        """Raise ValueError or OverflowError unless both can be adopted. Change nothing."""


class RollingProgress:
    """Progress of rolling rounds, which follows from the commits so far."""

    def __init__(
        self, replicated: ReplicatedState, quorum: Quorum, fork_choice: ForkChoice
    ) -> None:
        self.replicated, self.lineage = replicated, replicated.lineage
        self.snapshot, self.quorum, self.branch = (
            replicated.snapshot,
            quorum.required,
            fork_choice.describe_branch,
        )

    @property
    def round_id(self) -> int:
        return self.lineage.next_round

    @property
    def roster(self) -> Roster:
        return self.replicated.roster

    def check(self, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        self.replicated.check(snapshot)
