"""Network between simulated peers. It delays, loses, duplicates or damages messages, or carries
no messages."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gossip.core import PeerId

Link = tuple[PeerId, PeerId]
"""Sender and receiver: each direction is its own link."""


@dataclass(frozen=True, slots=True)
class LinkModel:
    """One direction between two peers. Probabilities are per message, and drawn even if they cannot
    matter.

    TCP itself loses no messages: they are lost with their connection (``reset``) or at a
    full queue (``queue_bytes``). ``loss``, ``duplicate``, ``reorder`` and ``corrupt`` are harsher
    than that.
    """

    delay_s: tuple[float, float] = (0.0002, 0.001)  # uniform between the two
    spike: float = 0.0  # extra delay of a message, uniform up to ``spike_s``
    spike_s: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    # a message is delayed, uniform up to ``reorder_s``, and later ones overtake it
    reorder: float = 0.0
    reorder_s: float = 0.0
    corrupt: float = 0.0  # one bit of the encoded message flips
    corrupt_payload: float = 0.0  # one bit of the payload flips, which the transport detects
    # the connection breaks, loses its messages, and is opened again; both ends get an event
    reset: float = 0.0
    # bandwidth of the bulk lane; None if payloads take no longer than other messages
    bytes_per_s: float | None = None
    # maximum extra delay of other messages while payloads move: queues and retransmissions
    queue_s: float = 0.0
    # high-water mark: a payload is dropped if the queue is longer
    queue_bytes: float | None = None
    # ``bytes_per_s`` is a fault: payloads in transit at its end are delivered at once
    slowed: bool = False
    unreadable: bool = False  # no payload arrives, but all other messages do
    numbered_shares: tuple[tuple[int, float], ...] = field(init=False, repr=False, compare=False)
    """Share of the messages for each numbered effect of ``wire``."""
    disturbs: bool = field(init=False, repr=False, compare=False)
    """Whether the link affects a message by more than time and bandwidth."""

    def __post_init__(self) -> None:
        shares = (
            self.loss,
            self.duplicate,
            self.corrupt,
            self.reset,
            self.reorder,
            self.spike,
            self.corrupt_payload,
        )
        object.__setattr__(self, "numbered_shares", tuple(enumerate(shares, 1)))
        object.__setattr__(self, "disturbs", any(shares))


@dataclass(slots=True)
class Network:
    """All links of a swarm. Change it at any time while the swarm runs.

    A lane is first in, first out, as TCP is, unless ``fifo`` is false. ``closing_s`` is the time
    until the others detect that a process has ended. ``heartbeat_s`` is the time until a silent
    link counts as down (None: never).
    """

    default: LinkModel = field(default_factory=LinkModel)
    fifo: bool = True
    closing_s: tuple[float, float] = (0.001, 0.003)
    heartbeat_s: tuple[float, float] | None = (0.3, 0.4)
    reconnect_s: float = 0.1
    models: dict[Link, LinkModel] = field(default_factory=dict)
    cuts: dict[Link, bool] = field(default_factory=dict)  # an ordered set
    # time until which payloads are in transit, on links with a ``queue_s``
    loaded_until_ns: int = 0
    changed: int = 0  # counts changes of ``cuts``, so that the swarm detects them

    def model(self, link: Link) -> LinkModel:
        return self.models.get(link, self.default)

    def shape(self, links: Iterable[Link], **changes: object) -> None:
        """Change some links' model, for example ``loss=0.2``, and leave its other fields."""
        for link in links:
            self.models[link] = replace(self.model(link), **changes)  # type: ignore[arg-type]

    def is_cut(self, link: Link) -> bool:
        return link in self.cuts

    def cut(self, a: PeerId, b: PeerId, both_ways: bool = True) -> None:
        """Cut the link from a to b, and back if ``both_ways``."""
        self.cuts[a, b] = True
        if both_ways:
            self.cuts[b, a] = True
        self.changed += 1

    def mend(self, a: PeerId, b: PeerId) -> None:
        self.cuts.pop((a, b), None)
        self.cuts.pop((b, a), None)
        self.changed += 1

    def partition(self, *sides: Iterable[PeerId], one_way: bool = False) -> None:
        """Cut every pair of peers on different sides. ``one_way``: only from an earlier side to a
        later one.

        A peer on no side reaches all peers: a bridge.
        """
        groups = [tuple(side) for side in sides]
        for i, left in enumerate(groups):
            for right in groups[i + 1 :]:
                for a in left:
                    for b in right:
                        self.cut(a, b, both_ways=not one_way)

    def ring(self, peers: Iterable[PeerId], reach: int = 1) -> None:
        """Cut links so that every peer reaches only the next ``reach`` peers on either side:
        connected, but with no two equal views."""
        order = tuple(peers)
        for i, a in enumerate(order):
            for j, b in enumerate(order[i + 1 :], i + 1):
                if min(j - i, len(order) - (j - i)) > reach:
                    self.cut(a, b)

    def heal(self) -> None:
        """Remove every cut."""
        self.cuts.clear()
        self.changed += 1


def between(rng: random.Random, bounds: tuple[float, float]) -> float:
    return rng.uniform(*bounds)
