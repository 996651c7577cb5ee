"""Pushes of other peers that no round has used yet. Bounded: a few rounds of each kind and
sender."""

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
    payload: Payload | None  # None: it had no samples


class PushStore:
    """Keeps the newest ``staleness_max + 1`` pushes of each kind and sender,
    and how far each sender is."""

    def __init__(self, staleness_max: int) -> None:
        self._staleness_max = staleness_max
        self._kept: dict[tuple[Kind, PeerId], dict[int, Pushed]] = {}
        self._heard: dict[tuple[Kind, PeerId], int] = {}
        self._used: dict[tuple[Kind, PeerId], int] = {}  # the round of what was taken last
        self._incarnations: dict[PeerId, int] = {}

    def meet(self, peer: PeerId, incarnation: int) -> bool:
        """Notes the life that a push came from; forgets what a former life of the peer has sent.
        False: it is of a former one."""
        known = self._incarnations.get(peer, 0)
        if incarnation < known:
            return False
        if incarnation > known:
            self._incarnations[peer] = incarnation
            self.forget(peer)
        return True

    def add(self, kind: Kind, peer: PeerId, pushed: Pushed) -> None:
        """Keeps it, in place of another of the same round. What was used, or comes after a newer
        one that was, is dropped."""
        if pushed.round_id <= self._used.get((kind, peer), -1):
            return  # a duplicate from the network would be used twice
        kept = self._kept.setdefault((kind, peer), {})
        kept[pushed.round_id] = pushed
        while len(kept) > self._staleness_max + 1:
            del kept[min(kept)]
        self.note(kind, peer, pushed.round_id)

    def note(self, kind: Kind, peer: PeerId, round_id: int) -> None:
        """It is in ``round_id`` at least."""
        self._heard[kind, peer] = max(self._heard.get((kind, peer), -1), round_id)

    def latest_round(self, peer: PeerId) -> int:
        """The latest round that the peer has pushed in, -1 for none."""
        return max(
            self._heard.get(("gradient", peer), -1), self._heard.get(("parameters", peer), -1)
        )

    def has_delivered(self, kind: Kind, peer: PeerId, round_id: int) -> bool:
        """Whether nothing more of this kind will come from the peer for ``round_id``:
        pushes arrive in order."""
        return self._heard.get((kind, peer), -1) >= round_id or self.latest_round(peer) > round_id

    def missing(
        self, kinds: Collection[Kind], peers: Collection[PeerId], round_id: int
    ) -> list[PeerId]:
        """Those who have not delivered all of ``kinds`` for ``round_id``."""
        heard, found = self._heard, []
        for peer in peers:
            for kind in kinds:
                # Most have delivered just that.
                if heard.get((kind, peer), -1) < round_id and not self.has_delivered(
                    kind, peer, round_id
                ):
                    found.append(peer)
                    break
        return found

    def pop_pushes(
        self, kind: Kind, round_id: int, expected: Collection[PeerId]
    ) -> dict[PeerId, Pushed]:
        """Removes and returns what ``round_id`` uses, one a sender, by sender.

        That is the newest up to ``round_id``, or for those expected the oldest of later rounds when
        they are past this one. Everything older than that goes, and all that is too old.
        Nothing is used twice.
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
        """Frees what no round from ``round_id`` on can use."""
        for kept in self._kept.values():
            for at in [at for at in kept if at < round_id - self._staleness_max]:
                del kept[at]

    def forget(self, peer: PeerId) -> None:
        for kind in ("gradient", "parameters"):
            self._kept.pop((kind, peer), None)
            self._heard.pop((kind, peer), None)
            self._used.pop((kind, peer), None)

    def __len__(self) -> int:
        return sum(len(kept) for kept in self._kept.values())
