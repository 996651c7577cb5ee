"""Network between simulated peers. It may delay, lose, duplicate or corrupt messages, or be cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gossip.core import PeerId
from gossip.faults import Partition, severed

Link = tuple[PeerId, PeerId]
"""(sender, receiver). The two directions between two peers are two links."""


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Properties of one link, which is one direction between two peers. All probabilities are per
    message.

    Over TCP, messages are lost only if their connection breaks (``reset``) or a queue is full
    (``queue_bytes``). ``loss``, ``duplicate``, ``reorder`` and ``corrupt`` are worse than a real
    network.
    """

    delay_s: tuple[float, float] = (0.0002, 0.001)  # bounds of the uniform delay
    spike: float = 0.0  # probability of an extra delay of up to ``spike_s``
    spike_s: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    # Probability of a delay of up to ``reorder_s``, in which later messages overtake the message.
    reorder: float = 0.0
    reorder_s: float = 0.0
    corrupt: float = 0.0  # probability of a flipped bit in the encoded message
    corrupt_payload: float = 0.0  # same in the payload; the transport detects it
    # Probability that the connection breaks and loses its messages. It is opened again.
    reset: float = 0.0
    # Bandwidth of the bulk lane; None if it is unlimited.
    bytes_per_s: float | None = None
    # Maximum extra delay of other messages while payloads are in transit, by queues and
    # retransmissions.
    queue_s: float = 0.0
    # High-water mark: if the queue is longer, a payload is dropped.
    queue_bytes: float | None = None
    # Whether ``bytes_per_s`` is a fault. When it ends, payloads in transit are delivered at once.
    slowed: bool = False
    unreadable: bool = False  # whether payloads are lost, but no other messages

    @property
    def shares(self) -> tuple[float, ...]:
        """Probabilities of the effects on a message, in the order of their numbers in ``wire``."""
        return (
            self.loss,
            self.duplicate,
            self.corrupt,
            self.reset,
            self.reorder,
            self.spike,
            self.corrupt_payload,
        )


@dataclass(slots=True)
class Network:
    """All links of a swarm. It may be changed at any time while the swarm runs.

    A lane is first in, first out, like TCP, unless ``fifo`` is False. ``closing_s`` has the bounds
    of the time until other peers detect that a process has ended. ``heartbeat_s`` has the bounds of
    the timeout of a silent link; None means no timeout.
    """

    default: LinkModel = field(default_factory=LinkModel)
    fifo: bool = True
    closing_s: tuple[float, float] = (0.001, 0.003)
    heartbeat_s: tuple[float, float] | None = (0.3, 0.4)
    reconnect_s: float = 0.1
    models: dict[Link, LinkModel] = field(default_factory=dict)
    cuts: dict[Link, bool] = field(default_factory=dict)  # used as an ordered set
    # Time until which payloads are in transit on links with a ``queue_s``.
    loaded_until_ns: int = 0
    changed: int = 0  # number of changes of ``cuts``, so that the swarm detects them

    def model(self, link: Link) -> LinkModel:
        return self.models.get(link, self.default)

    def shape(self, links: Iterable[Link], **changes: object) -> None:
        """Change some fields in the models of these links, for example ``loss=0.2``."""
        for link in links:
            self.models[link] = replace(self.model(link), **changes)  # type: ignore[arg-type]

    def is_cut(self, link: Link) -> bool:
        return link in self.cuts

    def cut(self, links: Iterable[Link]) -> None:
        self.cuts.update(dict.fromkeys(links, True))
        self.changed += 1

    def mend(self, links: Iterable[Link]) -> None:
        for link in links:
            self.cuts.pop(link, None)
        self.changed += 1

    def partition(self, *sides: Iterable[PeerId], one_way: bool = False) -> None:
        """Cut all links between peers on different sides. With ``one_way``, cut only links from an
        earlier side to a later side.

        A peer that is on no side is a bridge: it still reaches all peers.
        """
        self.cut(severed(Partition(tuple([tuple(side) for side in sides]), 0.0, 0.0, one_way)))

    def heal(self) -> None:
        """Remove all cuts."""
        self.mend(tuple(self.cuts))
