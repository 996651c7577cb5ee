"""One poll of a taker: who was asked to vouch for the state before which round, what they said, and
what most of them say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from gossip.core.messages import DIGEST_BYTES, PeerId, StateAttestation

from .donor import NO_STATE

NONE: Mapping[PeerId, int] = {}
SURE_TURNS = 2
"""Number of turns in which every peer has to report that it has no state. A peer that recovers
during the first turn has a state in the second."""


class PollPeers(Protocol):
    """The other peers, as far as it matters who of them may have a state."""

    def donors(self) -> tuple[PeerId, ...]:
        """Return the peers that can receive a request now."""

    def met(self) -> Iterable[PeerId]: ...

    def round_of(self, peer: PeerId) -> int: ...


@dataclass(slots=True)
class NoStateEvidence:
    """Has anybody a state? In each turn all who can be asked are."""

    local: PeerId
    f: int
    swarm: PollPeers
    turns: int = 0  # one after the other in which nobody was found to have one
    stateless: set[PeerId] = field(default_factory=set)  # who has said last that it has none
    _said: dict[PeerId, str] = field(default_factory=dict)  # in this turn, why they give none

    def clear(self) -> None:
        self._said.clear()
        self.stateless.clear()
        self.turns = 0

    def record_refusal(self, peer: PeerId, reason: str) -> None:
        """It gives none."""
        self._said[peer] = reason
        if reason == NO_STATE:
            self.stateless.add(peer)
        else:
            self.stateless.discard(peer)

    def note_state(self, peer: PeerId) -> None:
        """It has a state by now, whatever it has said before."""
        self.stateless.discard(peer)

    def turn_is_over(self, waited: bool) -> None:
        """End a turn, and count it if no peer was found that may have a state.

        A peer that received a request and has not denied may have a state, or soon get one. But up
        to f of these peers may be Byzantine, once this peer has ``waited`` for longer than an
        honest peer needs to send what a run begins with.

        A peer that was in a later round has to deny by itself, however long it is away. A run does
        not begin anew while a peer that has its state may return.
        """
        may_have = [peer for peer in self.swarm.donors() if self._said.get(peer) != NO_STATE]
        far = [
            peer
            for peer in self.swarm.met()
            if peer != self.local and self.swarm.round_of(peer) > 0
        ]
        empty = len(may_have) <= (self.f if waited else 0) and all(
            self._said.get(peer) == NO_STATE for peer in far
        )
        self.turns = self.turns + 1 if empty else 0
        self._said.clear()

    @property
    def is_sure(self) -> bool:
        """Whether nobody has one."""
        return self.turns >= SURE_TURNS


@dataclass(slots=True)
class Poll:
    """``named``: the round that they are asked about; 0: wherever they are. ``until``: when their
    time to answer is over."""

    seed: int
    named: int = 0
    until: float = 0.0
    asked: tuple[PeerId, ...] = ()
    votes: dict[PeerId, StateAttestation] = field(default_factory=dict)
    hurried: bool = False  # enough have answered, or all but f: the others have a moment left
    paused: bool = False  # it is over, and nothing came of it

    def ask(self, peers: Iterable[PeerId]) -> None:
        self.asked += tuple(peers)

    def set_deadline(self, until: float) -> None:
        self.until = until

    def hurry(self) -> None:
        self.hurried = True

    def pause(self) -> None:
        self.paused = True

    def forget(self, peer: PeerId) -> None:
        """Drop the vote of ``peer``, which is no longer valid."""
        del self.votes[peer]

    def forget_refusals(self) -> None:
        """Discard the answers of peers without a state: they may have one by now."""
        self.votes = {peer: vote for peer, vote in self.votes.items() if vote.reason != NO_STATE}

    @property
    def empty(self) -> int:
        """Answers of those who have no state to vouch for."""
        return sum([not attestation.digest for attestation in self.votes.values()])

    def unanswered(self, donors: Collection[PeerId]) -> list[PeerId]:
        return [peer for peer in self.asked if peer not in self.votes and peer in donors]

    def largest(self, strict: bool, failures: Mapping[PeerId, int] = NONE) -> list[PeerId]:
        """Most of those who say the same; of equally many, those with the fewest ``failures``, and
        then those whom a lot drawn from the run's seed prefers: the same for every taker, and
        nothing that a liar could choose.

        Args:
            strict: The same of what scripts set, too.
            failures: Of each peer, how often it was asked for its state in vain. The lot may prefer
                a liar that vouches and gives nothing; it would in every poll.
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
