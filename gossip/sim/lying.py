"""What every lie of a Byzantine peer is made with: who tells it, and how a lie gets its name."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gossip.core.events import Payload
from gossip.core.messages import Envelope, PeerId

from .toy_trainer import payload_of
from .wire import Letter

if TYPE_CHECKING:
    from .driver import Swarm


@dataclass(slots=True)
class Liar:
    """One Byzantine peer: what it has to lie with."""

    swarm: Swarm[Any]
    peer: PeerId
    rng: random.Random
    told: Counter[str] = field(default_factory=Counter)  # how often each lie was told
    heard: dict[str, Letter] = field(default_factory=dict)  # what a lie keeps for later
    forged: set[bytes] = field(default_factory=set)  # digests of results that are lies already, and may come back to their teller

    def victim(self) -> PeerId:
        return self.rng.choice([peer for peer in self.swarm.hosts if peer != self.peer])

    def standing_of(self, subject: PeerId) -> int:
        """As its own core knows it; 0 of one that it does not know."""
        membership = getattr(self.swarm.hosts[self.peer].core, "membership", None)
        member = membership.members.get(subject) if membership is not None else None
        return member.standing if member is not None else 0


Lie = Callable[[Liar, PeerId, Envelope, Payload | None], Iterable[Letter] | None]
"""``(liar, to, envelope, payload) -> what is sent instead``; None: nothing to lie about."""

LIES: dict[str, Lie] = {}


def lie(function: Lie) -> Lie:
    LIES[function.__name__] = function
    return function


def say(envelope: Envelope, **changes: Any) -> Envelope:
    """The same with some fields of its message changed."""
    return replace(envelope, message=replace(envelope.message, **changes))


def forged(values: NDArray[Any], digest: bool = False) -> Payload:
    return payload_of(np.ascontiguousarray(values), digest)
