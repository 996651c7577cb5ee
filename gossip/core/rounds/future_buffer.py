"""Peers that are in another round than we are: which, and what they have sent us already."""

from __future__ import annotations

from collections.abc import Iterable

from gossip.core.events import Received
from gossip.core.messages import Commit, PeerId, UpdateRequest

STASH_ROUNDS = 8
"""How far ahead of us others may be and still be listened to."""


class FutureBuffer:
    """Messages of later rounds that have come already, and the round that each peer is known to be
    in. ``f``: number of peers that may report any round."""

    def __init__(self, f: int = 0) -> None:
        self.f = f
        self._stash: dict[int, dict[tuple[PeerId, type, int], Received]] = {}
        # commits of lives that are over, by shard
        self.former_commits: dict[int, dict[tuple[PeerId, int], Received]] = {}
        self.seen: dict[PeerId, int] = {}
        """The latest round that each peer was heard in."""
        self.unheard: set[PeerId] = set()
        """Peers that have reported no round since their link last broke."""
        self.absent_at_start: set[PeerId] = set()
        """Peers that were absent when the run began, and have reported nothing of its rounds
        since."""
        # round, then the latest attempt of each that asked
        self._answered: tuple[int, dict[tuple[PeerId, int], int]] = (-1, {})

    def record_round(self, peer: PeerId, round_id: int, contributes: bool = False) -> bool:
        """It says where it is. Returns whether nobody need have waited for it until now, and all
        may from now on."""
        self.seen[peer] = max(self.seen.get(peer, 0), round_id)
        silent = peer in self.unheard or peer in self.absent_at_start
        if not silent:
            return False
        self.absent_at_start.discard(peer)
        if round_id > 0 or contributes:
            self.unheard.discard(peer)
        return peer not in self.unheard

    def begin_without(self, peers: set[PeerId]) -> None:
        """The run begins, and they have not come."""
        self.absent_at_start = peers

    def on_disconnect(self, peer: PeerId) -> None:
        """The link to it broke. Behind the next one may be another life, whose node is there long
        before its trainer's state."""
        self.unheard.add(peer)

    def mark_unreported(self, peers: Iterable[PeerId]) -> None:
        """A state was taken over here. They have told of no round yet, and may be newly started."""
        self.unheard.update(peers)

    def why_not(self, peer: PeerId) -> str:
        """Why nobody need wait for a peer that is within reach, nor be served by it; "" when all
        may. Who has not told of any round since its link broke last may be another life."""
        if peer in self.absent_at_start:
            return "it has not come"
        return "it has told of no round yet" if peer in self.unheard else ""

    def stash(self, now_round: int, round_id: int, event: Received, shard: int) -> bool:
        """Keeps a message for later, if that is not too far off. One of each kind a peer, shard and
        round: nobody can fill our memory with them."""
        keeps = now_round <= round_id <= now_round + STASH_ROUNDS
        if keeps:
            self._stash.setdefault(round_id, {})[event.sender, type(event.message), shard] = event
        return keeps

    def stash_former_commit(
        self, now_round: int, round_id: int, event: Received, shard: int
    ) -> None:
        """Keeps a commit of a former life of its sender for later, likewise."""
        if now_round <= round_id <= now_round + STASH_ROUNDS:
            self.former_commits.setdefault(round_id, {})[event.sender, shard] = event

    def next_round(self, here: int) -> int:
        """Return the round in which a peer that takes over a state goes on: the latest that more
        than f others have reported, but not before ``here``. Messages that are not of this round or
        soon after it are dropped, as they are of no use."""
        told = sorted(self.seen.values(), reverse=True)
        first = max(here, told[self.f]) if len(told) > self.f else here
        for kept in (self._stash, self.former_commits):
            for far in [known for known in kept if not first <= known <= first + STASH_ROUNDS]:
                del kept[far]
        return first

    def begins_anew(self, peer: PeerId, incarnation: int) -> None:
        """Nothing that a former life of it said of the rounds to come is kept, but its commits."""
        self.seen.pop(peer, None)
        for round_id, kept in self._stash.items():
            for key in [
                key
                for key, event in kept.items()
                if key[0] == peer and event.incarnation < incarnation
            ]:
                event = kept.pop(key)
                if key[1] is Commit:
                    self.former_commits.setdefault(round_id, {})[peer, key[2]] = event

    def is_first_request(self, sender: PeerId, request: UpdateRequest) -> bool:
        """Whether ``sender`` has not requested this yet: a stored request is handled twice, and
        answered once."""
        if self._answered[0] != request.round_id:
            self._answered = (request.round_id, {})
        key = sender, request.shard
        before, self._answered[1][key] = self._answered[1].get(key, -1), request.attempt
        return request.attempt > before

    def pop_round(self, round_id: int) -> list[Received]:
        """Return the messages kept for ``round_id``, which begins now. Drop all older ones."""
        due = list(self._stash.pop(round_id, {}).values())
        for old in [known for known in self._stash if known < round_id]:
            del self._stash[old]
        return due

    def pop_former_commits(self, round_id: int) -> list[Received]:
        """Return the stored commits of former incarnations for ``round_id``. Drop older ones."""
        due = list(self.former_commits.pop(round_id, {}).values())
        for old in [known for known in self.former_commits if known < round_id]:
            del self.former_commits[old]
        return due
