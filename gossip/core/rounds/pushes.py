"""Pushes of other peers that no round has used yet. For each kind and sender, only the pushes of a
few rounds are stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

from gossip.core.events import Payload
from gossip.core.frozen import record
from gossip.core.messages import PeerId

Kind: TypeAlias = Literal["gradient", "parameters"]


@record
class Pushed:
    round_id: int
    samples: int
    payload: Payload | None  # None if the sender had no samples


class PushStore:
    """The newest ``staleness_max + 1`` unused pushes of each kind and sender, and the latest round
    that each sender has reached."""

    def __init__(self, staleness_max: int) -> None:
        self._staleness_max = staleness_max
        self._kept: dict[tuple[Kind, PeerId], dict[int, Pushed]] = {}
        self._latest: dict[tuple[Kind, PeerId], int] = {}
        self._used: dict[tuple[Kind, PeerId], int] = {}  # round of the push that was used last
        self._incarnations: dict[PeerId, int] = {}

    def meet(self, peer: PeerId, incarnation: int) -> bool:
        """Record the incarnation of the sender of a push. If the incarnation is new, drop all
        earlier pushes of this sender.

        Returns: False if the push comes from a former incarnation.
        """
        known = self._incarnations.get(peer, 0)
        if incarnation < known:
            return False
        if incarnation > known:
            self._incarnations[peer] = incarnation
            self.forget(peer)
        return True

    def add(self, kind: Kind, peer: PeerId, pushed: Pushed) -> None:
        """Store ``pushed``, and replace an earlier push of the same round. If a push of this or a
        later round was already used, drop ``pushed``."""
        if pushed.round_id <= self._used.get((kind, peer), -1):
            return  # a duplicate from the network must not be used twice
        kept = self._kept.setdefault((kind, peer), {})
        kept[pushed.round_id] = pushed
        while len(kept) > self._staleness_max + 1:
            del kept[min(kept)]
        self.note(kind, peer, pushed.round_id)

    def note(self, kind: Kind, peer: PeerId, round_id: int) -> None:
        """Record that ``peer`` is in ``round_id`` or later."""
        self._latest[kind, peer] = max(self._latest.get((kind, peer), -1), round_id)

    def latest_round(self, peer: PeerId) -> int:
        """Return the latest round in which ``peer`` has pushed; -1 if there is none."""
        return max(
            self._latest.get(("gradient", peer), -1), self._latest.get(("parameters", peer), -1)
        )

    def has_delivered(self, kind: Kind, peer: PeerId, round_id: int) -> bool:
        """Whether no further push of this kind can come from ``peer`` for ``round_id``. Pushes
        arrive in order, so a later push shows this."""
        return self._latest.get((kind, peer), -1) >= round_id or self.latest_round(peer) > round_id

    def missing(
        self, kinds: Collection[Kind], peers: Collection[PeerId], round_id: int
    ) -> list[PeerId]:
        """Return the peers that have not delivered all of ``kinds`` for ``round_id``."""
        latest, found = self._latest, []
        for peer in peers:
            for kind in kinds:
                # Fast path: most peers have delivered the push of this round.
                if latest.get((kind, peer), -1) < round_id and not self.has_delivered(
                    kind, peer, round_id
                ):
                    found.append(peer)
                    break
        return found

    def pop_pushes(
        self, kind: Kind, round_id: int, expected: Collection[PeerId]
    ) -> dict[PeerId, Pushed]:
        """Remove and return the pushes that ``round_id`` uses, by sender. There is at most one push
        of each sender.

        For each sender, the newest push up to ``round_id`` is used. If an expected sender has only
        later pushes, the oldest of these is used. All pushes up to ``round_id`` are dropped. No
        push is used twice.
        """
        taken = {}
        for key in sorted([key for key in self._kept if key[0] == kind]):
            peer, kept = key[1], self._kept[key]
            if not kept:
                continue
            due = [at for at in kept if round_id - self._staleness_max <= at <= round_id]
            later = [at for at in kept if at > round_id] if peer in expected else []
            chosen = max(due) if due else min(later, default=None)
            if chosen is not None:
                taken[peer] = kept[chosen]
                self._used[key] = chosen
            for at in [at for at in kept if at <= round_id or at == chosen]:
                del kept[at]
        return taken

    def drop_older(self, round_id: int) -> None:
        """Drop the pushes that neither ``round_id`` nor a later round can use."""
        for kept in self._kept.values():
            for at in [at for at in kept if at < round_id - self._staleness_max]:
                del kept[at]

    def forget(self, peer: PeerId) -> None:
        for kind in ("gradient", "parameters"):
            self._kept.pop((kind, peer), None)
            self._latest.pop((kind, peer), None)
            self._used.pop((kind, peer), None)

    def __len__(self) -> int:
        return sum(len(kept) for kept in self._kept.values())
