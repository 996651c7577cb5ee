"""Poll for attestations of the state before a round: requests, votes, and the largest group of
equal votes."""

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


class PollPeers(Protocol):
    """View of the other peers, used to find those that have a state."""

    def donors(self) -> tuple[PeerId, ...]:
        """Return the peers that can receive a request now."""

    def met(self) -> Iterable[PeerId]: ...

    def round_of(self, peer: PeerId) -> int: ...


@dataclass(slots=True)
class NoStateEvidence:
    """Evidence that no peer has a state. In each poll, all reachable peers receive a request."""

    local: PeerId
    f: int
    swarm: PollPeers
    turns: int = 0  # Number of consecutive polls that found no peer which may have a state.
    # Peers that have last reported that they have no state.
    stateless: set[PeerId] = field(default_factory=set)
    _refusals: dict[PeerId, str] = field(default_factory=dict)  # reasons of refusals in this poll

    def clear(self) -> None:
        self._refusals.clear()
        self.stateless.clear()
        self.turns = 0

    def record_refusal(self, peer: PeerId, reason: str) -> None:
        """Record that a peer sends no state, for this reason."""
        self._refusals[peer] = reason
        if reason == NO_STATE:
            self.stateless.add(peer)
        else:
            self.stateless.discard(peer)

    def note_state(self, peer: PeerId) -> None:
        """Record that a peer now has a state."""
        self.stateless.discard(peer)

    def turn_is_over(self, waited: bool) -> None:
        """End a poll, and count it if it found no peer that may have a state.

        A peer that received a request and did not reply that it has no state may have one, or
        receive one soon. After this peer has ``waited`` for longer than an honest peer needs to
        send the initial state, up to f of these peers may be Byzantine, and are ignored.

        A peer that was in a later round must itself reply that it has no state, even after a long
        absence. A run does not start again while a peer with its state may return.
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
        """Whether it is certain that no peer has a state."""
        return self.turns >= SURE_TURNS


@dataclass(slots=True)
class Poll:
    """One poll. ``named``: requested round; 0 means the present round of each peer. ``until``:
    deadline of the replies."""

    seed: int
    named: int = 0
    until: float = 0.0
    asked: tuple[PeerId, ...] = ()
    votes: dict[PeerId, StateAttestation] = field(default_factory=dict)
    # Enough peers have replied, or all but f, so the remaining peers have a short deadline.
    hurried: bool = False
    paused: bool = False  # whether it has ended without a result

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
        return the one with the fewest ``failures``, then the one with the lowest lot. Lots follow
        from the seed of the run. So they are equal for all receivers, and no Byzantine peer can
        choose them.

        Args:
            strict: Whether the digests of the script settings must be equal as well.
            failures: Number of failed state requests to each peer. Without it, the lot could prefer
                the same Byzantine peer in every poll, although this peer attests but sends nothing.
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
