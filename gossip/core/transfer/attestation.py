"""Poll for attestations of the state before a round: its requests, its votes, and the largest group
of equal votes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from gossip.core.messages import DIGEST_BYTES, PeerId, StateAttestation
from gossip.core.settings import SURE_TURNS

from .donor import NO_STATE

NONE: Mapping[PeerId, int] = {}


class StateSources(Protocol):
    """Interface through which a receiver finds the other peers."""

    def donors(self) -> tuple[PeerId, ...]:
        """Return the live, unskipped peers that may have a state. Peers in later rounds come
        first."""

    def round_of(self, peer: PeerId) -> int:
        """Return the latest round that a peer has reported."""

    def record_round(self, peer: PeerId, round_id: int) -> None: ...

    def note_state(self, peer: PeerId, until: float) -> None:
        """Record that ``peer``, which may be the local peer, may be receiving a state until the
        given time."""

    def is_gone(self, peer: PeerId) -> bool: ...

    def met(self) -> Iterable[PeerId]:
        """Return all peers that are or were members."""


@dataclass(slots=True)
class NoStateEvidence:
    """Evidence that no peer has a state. In each poll, all reachable peers receive a request."""

    local: PeerId
    f: int
    swarm: StateSources
    turns: int = 0  # Number of consecutive polls in which no peer seemed to have a state.
    # Peers that have no state, according to their last report.
    stateless: set[PeerId] = field(default_factory=set)
    # reason of each peer that has refused in this poll
    _refusals: dict[PeerId, str] = field(default_factory=dict)

    def clear(self) -> None:
        self._refusals.clear()
        self.stateless.clear()
        self.turns = 0

    def record_refusal(self, peer: PeerId, reason: str) -> None:
        """Record that a peer has refused to send a state, for ``reason``."""
        self._refusals[peer] = reason
        if reason == NO_STATE:
            self.stateless.add(peer)
        else:
            self.stateless.discard(peer)

    def note_state(self, peer: PeerId) -> None:
        """Record that a peer now has a state."""
        self.stateless.discard(peer)

    def turn_is_over(self, waited: bool) -> None:
        """End a poll. Count the poll if no peer seems to have a state.

        A peer that has not replied that it has no state may have a state, or receive one soon. If
        this peer has ``waited`` for longer than an honest peer needs to send the initial state, up
        to f such peers are ignored, because they may be Byzantine.

        A peer that was in a round after round 0 is never ignored, even after a long absence: it
        must reply itself that it has no state. So a run does not start again while a peer with its
        state may return.
        """
        may_have = [peer for peer in self.swarm.donors() if self._refusals.get(peer) != NO_STATE]
        far = [
            peer
            for peer in self.swarm.met()
            if peer != self.local and self.swarm.round_of(peer) > 0
        ]
        empty = len(may_have) <= (self.f if waited else 0) and all(
            self._refusals.get(peer) == NO_STATE for peer in far
        )
        self.turns = self.turns + 1 if empty else 0
        self._refusals.clear()

    @property
    def is_sure(self) -> bool:
        """Whether it is certain that no reachable peer has a state."""
        return self.turns >= SURE_TURNS


@dataclass(slots=True)
class Poll:
    """One poll. ``named``: requested round; 0 means the present round of each peer. ``until``:
    deadline of the replies. ``ahead``: distance of the round that was named last."""

    seed: int
    named: int = 0
    until: float = 0.0
    ahead: int = 0
    asked: tuple[PeerId, ...] = ()
    votes: dict[PeerId, StateAttestation] = field(default_factory=dict)
    # Whether enough peers, or all but f, have replied, so that the deadline of the others is short.
    hurried: bool = False
    paused: bool = False  # whether the poll has ended without a result

    def ask(self, peers: Iterable[PeerId]) -> None:
        self.asked += tuple(peers)

    def set_deadline(self, until: float) -> None:
        self.until = until

    def hurry(self) -> None:
        self.hurried = True

    def pause(self) -> None:
        self.paused = True

    def forget(self, peer: PeerId) -> None:
        """Drop the vote of ``peer``, which is outdated."""
        del self.votes[peer]

    def forget_refusals(self) -> None:
        """Drop the replies of peers without a state, because they may now have a state."""
        self.votes = {peer: vote for peer, vote in self.votes.items() if vote.reason != NO_STATE}

    @property
    def able(self) -> set[PeerId]:
        """Peers that have replied with an attestation."""
        return {peer for peer, attestation in self.votes.items() if attestation.digest}

    def unanswered(self, donors: Collection[PeerId]) -> list[PeerId]:
        return [peer for peer in self.asked if peer not in self.votes and peer in donors]

    def largest(self, strict: bool, failures: Mapping[PeerId, int] = NONE) -> list[PeerId]:
        """Return the largest group of peers with equal attestations. If groups are equally large,
        prefer the group with the fewest ``failures``, and then the group with the lowest lot. A lot
        is a pseudo-random value computed from the seed of the run and the peer id. So lots are
        equal for all receivers, and no Byzantine peer can choose its lot.

        Args:
            strict: Whether the digests of the script settings must be equal as well.
            failures: Number of failed state requests to each peer. Without these numbers, the lot
                could prefer the same Byzantine peer in every poll, although this peer only attests
                and never sends a state.
        """
        groups: dict[tuple[bytes, bytes, int, bytes], list[PeerId]] = defaultdict(list)
        for peer, attestation in self.votes.items():
            if attestation.digest:
                groups[
                    attestation.chain,
                    attestation.digest,
                    attestation.round_id,
                    attestation.settings if strict else b"",
                ].append(peer)
        return min(groups.values(), key=lambda group: self._rank(group, failures), default=[])

    def _rank(self, group: list[PeerId], failures: Mapping[PeerId, int]) -> tuple[int, int, bytes]:
        return -len(group), min(failures.get(peer, 0) for peer in group), min(map(self._lot, group))

    def _lot(self, peer: PeerId) -> bytes:
        return blake2b(f"{self.seed}/{peer}".encode(), digest_size=DIGEST_BYTES).digest()
