"""What the network between simulated peers does to a message: delays, loses, repeats, damages or never carries it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gossip.core.messages import PeerId

Link = tuple[PeerId, PeerId]
"""From one peer to another: each direction is a link of its own."""


@dataclass(frozen=True, slots=True)
class LinkModel:
    """One direction between two peers. Probabilities are per message, drawn whether they can matter or not."""

    delay_s: tuple[float, float] = (0.0002, 0.001)  # uniform between the two
    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0  # one bit of the encoded message flips
    bytes_per_s: float | None = None  # of the bulk lane; None: payloads take no longer than anything else


@dataclass(slots=True)
class Network:
    """All links of a swarm. Change it at any time while the swarm runs.

    A lane is first in, first out, as TCP is, unless ``fifo`` is false. ``closing_s`` is how long it takes until the others see
    that a process is gone; ``heartbeat_s`` until a link over which nothing comes counts as down (None: never).
    """

    default: LinkModel = field(default_factory=LinkModel)
    fifo: bool = True
    closing_s: tuple[float, float] = (0.001, 0.003)
    heartbeat_s: tuple[float, float] | None = (0.3, 0.4)
    reconnect_s: float = 0.1
    models: dict[Link, LinkModel] = field(default_factory=dict)
    cuts: dict[Link, bool] = field(default_factory=dict)  # an ordered set
    changed: int = 0  # counts changes of ``cuts``, so that the swarm notices them

    def model(self, link: Link) -> LinkModel:
        return self.models.get(link, self.default)

    def shape(self, links: Iterable[Link], **changes: object) -> None:
        """Changes some links' model, ``loss=0.2`` say, and leaves the rest of it."""
        for link in links:
            self.models[link] = replace(self.model(link), **changes)  # type: ignore[arg-type]

    def is_cut(self, link: Link) -> bool:
        return link in self.cuts

    def cut(self, a: PeerId, b: PeerId, both_ways: bool = True) -> None:
        """Nothing gets from a to b any more, nor back if ``both_ways``."""
        self.cuts[a, b] = True
        if both_ways:
            self.cuts[b, a] = True
        self.changed += 1

    def mend(self, a: PeerId, b: PeerId) -> None:
        self.cuts.pop((a, b), None)
        self.cuts.pop((b, a), None)
        self.changed += 1

    def partition(self, *sides: Iterable[PeerId]) -> None:
        """Cuts every pair of peers that are on different sides."""
        groups = [tuple(side) for side in sides]
        for i, left in enumerate(groups):
            for right in groups[i + 1 :]:
                for a in left:
                    for b in right:
                        self.cut(a, b)

    def heal(self) -> None:
        """Mends every cut."""
        self.cuts.clear()
        self.changed += 1


def between(rng: random.Random, bounds: tuple[float, float]) -> float:
    return rng.uniform(*bounds)
