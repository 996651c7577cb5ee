"""Before the first round: who is here, do we train the same model, and whose weights do we begin with?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from .messages import Hello, PeerId


@dataclass(frozen=True, slots=True)
class Wait:
    """Not everybody is here yet."""

    missing: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """We hold what the swarm begins with."""

    present: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Follow:
    """The swarm is ahead, or begins with other weights than ours: take the state of ``donor``."""

    donor: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """We train another model than the swarm."""

    reason: str


@dataclass(frozen=True, slots=True)
class TooFew:
    present: tuple[PeerId, ...]
    missing: tuple[PeerId, ...]


Decision: TypeAlias = Wait | Begin | Follow | Refuse | TooFew


class Gathering:
    """Collects the ``Hello`` of each peer and says what to do. Every peer that has heard the same decides alike."""

    def __init__(self, local: PeerId, expected: tuple[PeerId, ...], quorum: int) -> None:
        self.local, self.expected, self.quorum = local, expected, quorum
        self.hellos: dict[PeerId, Hello] = {}

    def hear(self, peer: PeerId, hello: Hello) -> None:
        self.hellos[peer] = hello

    def decide(self, gone: Collection[PeerId], unreachable: Collection[PeerId], time_is_up: bool) -> Decision:
        """What to do now.

        Args:
            gone: Peers known to be dead or to have left: nobody waits for them.
            unreachable: Peers that we cannot send to yet, though they may have said hello.
            time_is_up: The start timeout has passed: begin with a quorum, or not at all.
        """
        own = self.hellos.get(self.local)
        if own is None:
            return Wait(tuple(peer for peer in self.expected if peer not in self.hellos))
        layout = _most_common({peer: hello.layout for peer, hello in self.hellos.items()})
        running = [peer for peer, hello in sorted(self.hellos.items()) if hello.round_id > 0 and peer != self.local]
        if own.layout != layout:
            return Refuse(f"the swarm trains a model of layout {layout.hex()}, this peer one of layout {own.layout.hex()}")
        if running and own.round_id == 0:
            ahead = max(running, key=lambda peer: self.hellos[peer].round_id)
            return Follow(ahead, f"the swarm is in round {self.hellos[ahead].round_id}")
        here = (peer for peer in sorted(self.hellos) if peer not in gone and peer not in unreachable)
        present = tuple(peer for peer in here if self.hellos[peer].layout == layout)
        missing = tuple(peer for peer in self.expected if peer not in present)
        if any(peer not in gone for peer in missing) and not time_is_up:
            return Wait(missing)
        if len(present) < self.quorum:
            return TooFew(present, missing) if time_is_up else Wait(missing)
        state = _most_common({peer: self.hellos[peer].state for peer in present})
        if own.state != state:
            donor = next(peer for peer in present if self.hellos[peer].state == state)
            return Follow(donor, "the swarm begins with other weights than this peer's")
        return Begin(present)


def _most_common(values: dict[PeerId, bytes]) -> bytes:
    """What most peers have; of equals, what the lowest of them has."""
    counts = Counter(values.values())
    best = max(counts.values())
    return next(values[peer] for peer in sorted(values) if counts[values[peer]] == best)
