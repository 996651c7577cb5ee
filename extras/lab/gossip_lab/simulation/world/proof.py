"""Proof that faults of the network took place: a message on a link of the fault was lost, cut, late
or queued."""

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
"""Effect on a message that proves each kind of fault."""

SHORT_QUEUE_BYTES = 64.0
"""A queue below this size is meant to overflow: a message must be dropped."""


def drops(fault: Fault) -> bool:
    """Whether the fault is a narrow link with a queue that is short enough to be full."""
    return isinstance(fault, Narrow) and fault.queue_bytes < SHORT_QUEUE_BYTES


class FaultEffects(Observer):
    """``proven``: the numbers of the faults that took place. Present faults are watched, each on
    its own links."""

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
