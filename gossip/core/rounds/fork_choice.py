"""Choice of the heavier side of a partition, if both sides may have continued.

The weight of a side is the number of peers that have contributed to its recent commits. For the
local branch, this peer counts the contributors in its own commits. For another branch, it uses the
contributors that the peers of that branch claim (``Hello.side``). A claimed contributor counts only
if its own messages show that it is on another branch. So a false claim cannot add peers. If two
sides have the same weight, the side with the lowest peer id is heavier, so that both sides decide
alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gossip.core.ledger import Lineage, Stance
from gossip.core.messages import Hello, PeerId
from gossip.core.settings import FORK_ROUNDS, CoreSettings

from .quorum import quorum_of


class ForkChoice:
    """Branches of the other peers, and the choice among them.

    Attributes:
        may_differ: Whether both sides of a partition may continue. If False, the peer that is
            behind is always on the lighter side.
    """

    def __init__(self, local: PeerId, settings: CoreSettings, lineage: Lineage) -> None:
        self.local, self.settings, self.lineage = local, settings, lineage
        everybody = len(settings.peers)
        self.may_differ = (
            settings.rounds.on_minority == "continue" or quorum_of(settings, everybody) == 1
        )
        self._recent: deque[frozenset[PeerId]] = deque(maxlen=FORK_ROUNDS)
        self._elsewhere: set[PeerId] = set()
        # contributors that each peer claims for its branch
        self._sides: dict[PeerId, frozenset[PeerId]] = {}
        self._chosen: frozenset[PeerId] = frozenset()

    def describe_branch(self) -> tuple[bytes, tuple[PeerId, ...]]:
        """Return the part of a hello about the local branch: H of the last round and, if both sides
        of a partition may continue, the recent contributors."""
        return self.lineage.head, tuple(sorted(self._contributors())) if self.may_differ else ()

    def committed(self, contributors: Iterable[PeerId]) -> None:
        """Record the contributors of a round that is over."""
        if self.may_differ:
            self._recent.append(frozenset(contributors))
            self._elsewhere.difference_update(self._recent[-1])

    def is_partitioned(self, peer: PeerId) -> bool:
        """Whether ``peer`` may have been on another side for some time, because it has contributed
        to none of the recent rounds."""
        return self.may_differ and peer != self.local and peer not in self._contributors()

    def is_on_other_branch(self, peer: PeerId) -> bool:
        """Whether messages of ``peer`` have shown that it is on another branch."""
        return peer in self._elsewhere

    def on_hello(self, sender: PeerId, hello: Hello) -> Stance:
        """Return whether the sender is on the local branch: ``same``, ``fork`` or ``unknown``. If
        the sender is ahead of this peer, the hello alone does not show its branch."""
        if not self.may_differ or not hello.chain:
            return "same"
        self._sides[sender] = frozenset(hello.side)
        stance = self.lineage.stance(hello.round_id, hello.chain)
        if stance != "unknown":
            self._note(sender, stance == "same")
        return stance

    def check_branch(self, peer: PeerId, round_id: int, parent: bytes) -> bool:
        """Whether ``peer`` may be on the local branch. The peer has reported ``parent`` as H of the
        round before ``round_id``; an empty ``parent`` means unknown. The result is True if the
        local H of that round is not stored."""
        stance = self.lineage.stance(round_id, parent)
        if stance != "unknown":
            self._note(peer, stance == "same")
        return stance != "fork"

    def _note(self, peer: PeerId, same: bool) -> None:
        (self._elsewhere.discard if same else self._elsewhere.add)(peer)

    def heavier(self) -> tuple[PeerId, str] | None:
        """Choose the heaviest side. Return one of its peers and the reason; None if the local side
        is the heaviest."""
        ours = (self._contributors() | {self.local}) - self._elsewhere
        best, first = ours, self.local
        for peer in sorted(self._elsewhere):
            # A peer that has claimed no contributors left the local branch only recently. Count all
            # peers that have left this branch as its side.
            side = {peer} | (self._sides.get(peer, frozenset(self._elsewhere)) & self._elsewhere)
            if (len(side), -min(side)) > (len(best), -min(best)):
                best, first = frozenset(side), peer
        if best == ours:
            return None
        self.choose(best)
        return first, f"{len(best)} peers train on another branch, {len(ours)} on ours"

    def prefers(self, peer: PeerId) -> bool:
        """Whether ``peer`` is on the chosen side. True while no side is chosen."""
        return not self._chosen or peer in self._chosen

    def choose(self, peers: Iterable[PeerId]) -> None:
        """Choose the side that consists of ``peers`` as source of a state."""
        self._chosen = frozenset(peers)

    def restart(self, roster: Iterable[PeerId]) -> None:
        """Continue on the branch of an adopted state. All peers in ``roster`` are on this
        branch."""
        self._chosen = frozenset()
        self._recent.clear()
        self.committed(roster)

    def _contributors(self) -> frozenset[PeerId]:
        return frozenset().union(*self._recent)
