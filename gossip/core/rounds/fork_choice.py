"""Choice of the heavier side of a partition, if both may have gone on. The claim of each peer
counts for itself alone.

The weight of a side is the number of peers that have contributed to its recent commits. For its own
branch, this peer has those commits. For another branch, it uses the claim of a peer about the
contributors there (``Hello.side``), but counts only peers that have themselves shown to be on
another branch. Among equal sides, the one with the lowest peer is the heavier, so that both sides
decide alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gossip.core.ledger import Lineage, Stance
from gossip.core.messages import Hello, PeerId
from gossip.core.settings import CoreSettings

from .quorum import quorum_of

RECENT_ROUNDS = 8
"""Whoever has contributed to none of so many rounds does not count for our side."""


class ForkChoice:
    """Attributes:
    may_differ: Whether two sides of a partition may both go on. Else the one that is behind is
    always the lighter.
    """

    def __init__(self, local: PeerId, settings: CoreSettings, lineage: Lineage) -> None:
        self.local, self.lineage = local, lineage
        everybody = len(settings.peers)
        self.may_differ = (
            settings.rounds.on_minority == "continue" or quorum_of(settings, everybody) == 1
        )
        self._recent: deque[frozenset[PeerId]] = deque(maxlen=RECENT_ROUNDS)
        self._elsewhere: set[PeerId] = set()
        self._said: dict[PeerId, frozenset[PeerId]] = {}  # with whom a peer says that it trains
        self._chosen: frozenset[PeerId] = frozenset()

    def describe_branch(self) -> tuple[bytes, tuple[PeerId, ...]]:
        """Return the part of a hello about this peer: H of the last round, and the recent
        contributors if two sides may differ."""
        return self.lineage.head, tuple(sorted(self._contributors())) if self.may_differ else ()

    def committed(self, contributors: Iterable[PeerId]) -> None:
        """To the round that is over."""
        if self.may_differ:
            self._recent.append(frozenset(contributors))
            self._elsewhere.difference_update(self._recent[-1])

    def is_partitioned(self, peer: PeerId) -> bool:
        """Whether it can have been on another side for long:
        it has contributed to none of our recent rounds."""
        return self.may_differ and peer != self.local and peer not in self._contributors()

    def is_on_other_branch(self, peer: PeerId) -> bool:
        """Whether it has shown to be on another branch."""
        return peer in self._elsewhere

    def on_hello(self, sender: PeerId, hello: Hello) -> Stance:
        """How the sender stands to us. Of one that is ahead of us its hello alone does not tell."""
        if not self.may_differ or not hello.chain:
            return "same"
        self._said[sender] = frozenset(hello.side)
        stance = self.lineage.stance(hello.round_id, hello.chain)
        if stance != "unknown":
            self._note(sender, stance == "same")
        return stance

    def check_branch(self, peer: PeerId, round_id: int, parent: bytes) -> bool:
        """Whether ``peer``, for whom ``parent`` is H of the round before ``round_id`` (empty: it
        does not know), can be on our branch.
        Of rounds that we do not remember nothing can be said."""
        stance = self.lineage.stance(round_id, parent)
        if stance != "unknown":
            self._note(peer, stance == "same")
        return stance != "fork"

    def _note(self, peer: PeerId, same: bool) -> None:
        (self._elsewhere.discard if same else self._elsewhere.add)(peer)

    def heavier(self) -> tuple[PeerId, str] | None:
        """A peer of the heaviest side, when that is not ours, and why it is."""
        ours = (self._contributors() | {self.local}) - self._elsewhere
        best, first = ours, self.local
        for peer in sorted(self._elsewhere):
            # Who has said nothing yet was of our branch until lately,
            # and so were those who left it with it.
            side = {peer} | (self._said.get(peer, frozenset(self._elsewhere)) & self._elsewhere)
            if (len(side), -min(side)) > (len(best), -min(best)):
                best, first = frozenset(side), peer
        if best == ours:
            return None
        self.choose(best)
        return first, f"{len(best)} peers train on another branch, {len(ours)} on ours"

    def prefers(self, peer: PeerId) -> bool:
        """Whether it is of the side whose state we want; of any, as long as we want none."""
        return not self._chosen or peer in self._chosen

    def choose(self, peers: Iterable[PeerId]) -> None:
        """It is their state that we want."""
        self._chosen = frozenset(peers)

    def restart(self, roster: Iterable[PeerId]) -> None:
        """The state of another peer was taken over, and with it its branch:
        who is in that roster is there, too."""
        self._chosen = frozenset()
        self._recent.clear()
        self.committed(roster)

    def _contributors(self) -> frozenset[PeerId]:
        return frozenset().union(*self._recent)
