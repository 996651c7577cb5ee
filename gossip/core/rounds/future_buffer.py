"""Stored messages of later rounds, and the latest reported round of each peer."""

from __future__ import annotations

from collections.abc import Iterable

from gossip.core.events import Received
from gossip.core.messages import Commit, PeerId, UpdateRequest
from gossip.core.settings import STASH_ROUNDS


class FutureBuffer:
    """Received messages of later rounds, and the latest round that each peer has reported.

    Args:
        f: Number of peers that may report a false round.
    """

    def __init__(self, f: int = 0) -> None:
        self.f = f
        # by round; then by sender, type, shard, and whether the message is a commit of a former
        # incarnation
        self.stored: dict[int, dict[tuple[PeerId, type, int, bool], Received]] = {}
        self.seen: dict[PeerId, int] = {}
        """Latest round that each peer has reported."""
        self.unheard: set[PeerId] = set()
        """Peers that have reported no round since their last link was lost."""
        self.absent_at_start: set[PeerId] = set()
        """Peers that were absent when the run began, and have reported no round since then."""
        # last round with an answered request, and its latest answered attempt by sender and shard
        self._answered: tuple[int, dict[tuple[PeerId, int], int]] = (-1, {})

    def record_round(self, peer: PeerId, round_id: int, contributes: bool = False) -> bool:
        """Record the reported round of ``peer``.

        Returns: True if ``peer`` was silent or absent until now, and no longer is.
        """
        self.seen[peer] = max(self.seen.get(peer, 0), round_id)
        silent = peer in self.unheard or peer in self.absent_at_start
        if not silent:
            return False
        self.absent_at_start.discard(peer)
        if round_id > 0 or contributes:
            self.unheard.discard(peer)
        return peer not in self.unheard

    def begin_without(self, peers: set[PeerId]) -> None:
        """Begin the run without ``peers``, which have not arrived."""
        self.absent_at_start = peers

    def on_disconnect(self, peer: PeerId) -> None:
        """Mark ``peer`` as silent because its link was lost. The next link may be the link of a new
        incarnation, with a trainer that has no state for a long time."""
        self.unheard.add(peer)

    def mark_unreported(self, peers: Iterable[PeerId]) -> None:
        """Mark ``peers`` as silent after this peer has adopted a state, because they may be newly
        started."""
        self.unheard.update(peers)

    def why_not(self, peer: PeerId) -> str:
        """Return the reason to skip a connected peer; "" if the peer is not skipped. A peer that
        has reported no round since its link was lost may be a new incarnation without a state."""
        if peer in self.absent_at_start:
            return "it has not arrived"
        return "it has reported no round yet" if peer in self.unheard else ""

    def stash(
        self, now_round: int, round_id: int, event: Received, shard: int, is_former: bool = False
    ) -> bool:
        """Store a message of a later round, at most ``STASH_ROUNDS`` ahead. Only one message of
        each peer, kind, shard and round is stored, so that no peer can fill the memory.

        Args:
            is_former: Whether the message is a commit from a former incarnation of its sender.
        Returns: Whether the message was stored.
        """
        keeps = now_round <= round_id <= now_round + STASH_ROUNDS
        if keeps:
            key = event.sender, type(event.message), shard, is_former
            self.stored.setdefault(round_id, {})[key] = event
        return keeps

    def next_round(self, here: int) -> int:
        """Return the round in which a peer continues after a state transfer: the latest round that
        more than f other peers have reached, but not before ``here``. Drop all messages outside
        this round and the ``STASH_ROUNDS`` rounds after it."""
        reported = sorted(self.seen.values(), reverse=True)
        first = max(here, reported[self.f]) if len(reported) > self.f else here
        for far in [known for known in self.stored if not first <= known <= first + STASH_ROUNDS]:
            del self.stored[far]
        return first

    def begins_anew(self, peer: PeerId, incarnation: int) -> None:
        """Drop the messages from former incarnations of ``peer``, except their commits."""
        self.seen.pop(peer, None)
        for kept in self.stored.values():
            for key, event in list(kept.items()):
                sender, kind, shard, is_former = key
                if sender == peer and event.incarnation < incarnation and not is_former:
                    del kept[key]
                    if kind is Commit:
                        kept[sender, kind, shard, True] = event

    def is_first_request(self, sender: PeerId, request: UpdateRequest) -> bool:
        """Whether ``sender`` sends this request for the first time. A stored request is handled
        twice, but must be answered only once."""
        if self._answered[0] != request.round_id:
            self._answered = (request.round_id, {})
        key = sender, request.shard
        before, self._answered[1][key] = self._answered[1].get(key, -1), request.attempt
        return request.attempt > before

    def pop_round(self, round_id: int, is_former: bool = False) -> list[Received]:
        """Remove and return the stored messages of ``round_id``, which begins now: the commits of
        former incarnations, or the other messages. Drop older messages."""
        kept = self.stored.get(round_id, {})
        due = [kept.pop(key) for key in list(kept) if key[3] == is_former]
        self.stored = {at: kept for at, kept in self.stored.items() if kept and at >= round_id}
        return due
