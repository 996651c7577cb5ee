"""Network between simulated peers. It delays, loses, repeats or damages a message, or never carries
it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gossip.core import PeerId

Link = tuple[PeerId, PeerId]
"""Sender and receiver: each direction is a link of its own."""


@dataclass(frozen=True, slots=True)
class LinkModel:
    """One direction between two peers. Probabilities are per message,
    drawn whether they can matter or not.

    TCP itself loses nothing: what gets lost there goes with its connection (``reset``) or at a full
    queue (``queue_bytes``). ``loss``, ``duplicate``,
    ``reorder`` and ``corrupt`` are harsher than that.
    """

    delay_s: tuple[float, float] = (0.0002, 0.001)  # uniform between the two
    spike: float = 0.0  # a message takes longer, by a time uniform up to ``spike_s``
    spike_s: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    # a message is held up, uniform up to ``reorder_s``, and those behind it overtake
    reorder: float = 0.0
    reorder_s: float = 0.0
    corrupt: float = 0.0  # one bit of the encoded message flips
    corrupt_payload: float = 0.0  # one bit of the payload flips; the transport's checksum finds it
    # the connection breaks: all that is on its way is lost, both ends see it, it is opened again
    reset: float = 0.0
    # of the bulk lane; None: payloads take no longer than anything else
    bytes_per_s: float | None = None
    # while payloads move, other messages take up to so much longer: queues, and segments sent again
    queue_s: float = 0.0
    # a payload that finds more than this waiting is dropped: the high-water mark
    queue_bytes: float | None = None
    # ``bytes_per_s`` is a fault: what is on its way when that ends gets through at once
    slowed: bool = False
    unreadable: bool = False  # no payload arrives, and all else does
    disturbs: bool = field(init=False, repr=False, compare=False)
    """Whether anything but time and bandwidth befalls a message."""

    def __post_init__(self) -> None:
        shares = (
            self.spike,
            self.loss,
            self.duplicate,
            self.reorder,
            self.corrupt,
            self.corrupt_payload,
            self.reset,
        )
        object.__setattr__(self, "disturbs", any(shares))


@dataclass(slots=True)
class Network:
    """All links of a swarm. Change it at any time while the swarm runs.

    A lane is first in, first out, as TCP is, unless ``fifo`` is false. ``closing_s`` is how long it
    takes until the others see that a process is gone; ``heartbeat_s`` until a link over which
    nothing comes counts as down (None: never).
    """

    default: LinkModel = field(default_factory=LinkModel)
    fifo: bool = True
    closing_s: tuple[float, float] = (0.001, 0.003)
    heartbeat_s: tuple[float, float] | None = (0.3, 0.4)
    reconnect_s: float = 0.1
    models: dict[Link, LinkModel] = field(default_factory=dict)
    cuts: dict[Link, bool] = field(default_factory=dict)  # an ordered set
    # payloads are on their way until then, on links that have a ``queue_s``
    loaded_until_ns: int = 0
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

    def partition(self, *sides: Iterable[PeerId], one_way: bool = False) -> None:
        """Cuts every pair of peers that are on different sides. ``one_way``: only what an earlier
        side says to a later one.

        Whoever is on no side reaches everybody: a bridge.
        """
        groups = [tuple(side) for side in sides]
        for i, left in enumerate(groups):
            for right in groups[i + 1 :]:
                for a in left:
                    for b in right:
                        self.cut(a, b, both_ways=not one_way)

    def ring(self, peers: Iterable[PeerId], reach: int = 1) -> None:
        """Everybody reaches only the ``reach`` next on either side: connected,
        and with no two views alike."""
        order = tuple(peers)
        for i, a in enumerate(order):
            for j, b in enumerate(order[i + 1 :], i + 1):
                if min(j - i, len(order) - (j - i)) > reach:
                    self.cut(a, b)

    def heal(self) -> None:
        """Mends every cut."""
        self.cuts.clear()
        self.changed += 1


def between(rng: random.Random, bounds: tuple[float, float]) -> float:
    return rng.uniform(*bounds)
