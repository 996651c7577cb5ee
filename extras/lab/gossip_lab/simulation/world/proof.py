"""Detection which faults of the network took place: the fault affected a message on one of its
links."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gossip.core import Message, PeerId
from gossip.faults import (
    Corrupt,
    Delay,
    Duplicate,
    Fault,
    Flap,
    Loss,
    Narrow,
    Partition,
    Reorder,
    Reset,
    Ring,
    Spike,
    Trickle,
    Unreadable,
)

from .network import Link
from .observer import Observer

if TYPE_CHECKING:
    from .driver import AnySwarm

_PROOF: dict[type, str] = {
    Loss: "lost",
    Duplicate: "duplicated",
    Corrupt: "corrupted",
    Reset: "reset",
    Reorder: "reordered",
    Spike: "spiked",
    Delay: "delayed",
    Narrow: "queued",
    Trickle: "slowed",
    Unreadable: "unreadable",
    Partition: "cut",
    Ring: "cut",
    Flap: "cut",
}
"""Kind of fault -> effect on a message that proves that the fault took place."""

SHORT_QUEUE_BYTES = 64.0
"""A fault with a queue below this size takes place only if the queue overflows and a message is
dropped."""


def drops(fault: Fault) -> bool:
    """Whether the fault is a narrow link with a queue that is meant to overflow."""
    return isinstance(fault, Narrow) and fault.queue_bytes < SHORT_QUEUE_BYTES


class FaultEffects(Observer):
    """Observer that detects which faults took place. Their indices are in ``proven``. A fault is
    watched on its own links, while it is present."""

    def __init__(self) -> None:
        self.proven: dict[int, bool] = {}
        self._watched: dict[int, tuple[str, dict[Link, bool]]] = {}

    def watch(self, number: int, fault: Fault, links: Iterable[Link]) -> None:
        """Watch a fault from its start, on these links."""
        if number not in self.proven:
            what = "queue_full" if drops(fault) else _PROOF[type(fault)]
            self._watched[number] = what, dict.fromkeys(links, True)

    def rest(self, number: int) -> None:
        """Stop watching a fault at its end."""
        self._watched.pop(number, None)

    def on_mishap(
        self, swarm: AnySwarm, peer: PeerId, to: PeerId, what: str, message: Message | None
    ) -> None:
        for number, (wanted, links) in tuple(self._watched.items()):
            if what == wanted and (peer, to) in links:
                self.proven[number] = True
                del self._watched[number]
