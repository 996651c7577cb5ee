"""Faults of the network: cuts, and links with worse properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, assert_never

from gossip.core import Message, PeerId
from gossip.faults import (
    Break,
    Corrupt,
    Delay,
    Duplicate,
    Fault,
    Flap,
    Loss,
    Narrow,
    NetworkFault,
    Partition,
    Reorder,
    Reset,
    Ring,
    Spike,
    Trickle,
    Unreadable,
    Weather,
    near,
    severed,
)

from .network import Link, LinkModel
from .observer import Observer

if TYPE_CHECKING:
    from .driver import AnySwarm

_PROOF: Mapping[type, str] = {
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


class NetworkFaults(Observer):
    """Injects faults of the network, and combines those that are present at the same time. It
    observes which faults took place: a fault did if it affected a message on one of its links.

    Attributes:
        cuts_seen: The different sets of links that were cut at the same time.
        proven: Indices of the faults that took place.
    """

    def __init__(self) -> None:
        self.cuts_seen: dict[tuple[Link, ...], bool] = {}
        self.proven: dict[int, bool] = {}
        self._present: dict[int, NetworkFault] = {}
        # Index of a present fault -> its links; missing while the links of a flap are whole.
        self._links: dict[int, dict[Link, bool]] = {}
        self._over = False

    def plan(self, swarm: AnySwarm, number: int, fault: NetworkFault) -> None:
        """Schedule the start and the end of a fault."""
        swarm.at(fault.at_s, partial(self._on, swarm, number, fault))
        swarm.at(fault.at_s + fault.for_s, partial(self._off, swarm, number, fault))

    def end(self, swarm: AnySwarm) -> None:
        """End all present faults, in the order of their indices in the schedule."""
        self._over = True
        for number, fault in sorted(self._present.items()):
            self._off(swarm, number, fault)

    def on_mishap(
        self, swarm: AnySwarm, peer: PeerId, to: PeerId, what: str, message: Message | None
    ) -> None:
        for number, links in self._links.items():
            fault = self._present[number]
            wanted = "queue_full" if drops(fault) else _PROOF[type(fault)]
            if what == wanted and (peer, to) in links:
                self.proven[number] = True

    def _on(self, swarm: AnySwarm, number: int, fault: NetworkFault) -> None:
        if self._over:
            return
        self._present[number] = fault
        swarm.announce(-1, f"begins: {fault}")
        if isinstance(fault, Flap):
            self._swing(swarm, number, fault)
        else:
            self._affect(swarm, number, fault)

    def _off(self, swarm: AnySwarm, number: int, fault: NetworkFault) -> None:
        if self._present.pop(number, None) is None:
            return  # already ended
        self._links.pop(number, None)
        swarm.announce(-1, f"ends: {fault}")
        self.reshape(swarm)
        if isinstance(fault, Narrow | Trickle):
            for link in near(fault, tuple(swarm.hosts)):
                swarm.let_go(*link)

    def _affect(self, swarm: AnySwarm, number: int, fault: NetworkFault) -> None:
        links = severed(fault) if isinstance(fault, Break) else near(fault, tuple(swarm.hosts))
        self._links[number] = dict.fromkeys(links, True)
        self.reshape(swarm)

    def _swing(self, swarm: AnySwarm, number: int, fault: Flap) -> None:
        if number not in self._present:
            return  # the fault has ended
        if self._links.pop(number, None) is None:
            self._affect(swarm, number, fault)
        else:
            self.reshape(swarm)
        swarm.at(swarm.now + fault.period_s / 2, partial(self._swing, swarm, number, fault))

    def reshape(self, swarm: AnySwarm) -> None:
        """Update the cuts and the properties of all links to those of all present faults."""
        peers, network = tuple(swarm.hosts), swarm.network
        wanted: dict[Link, bool] = {}
        network.models.clear()
        for number, fault in self._present.items():
            if isinstance(fault, Break):
                wanted.update(self._links.get(number, {}))
                continue
            for link in near(fault, peers):
                network.models[link] = _worse(network.models.get(link, network.default), fault)
        if wanted.keys() != network.cuts.keys():
            network.heal()
            network.cut(wanted)
        if wanted:
            self.cuts_seen[tuple(sorted(wanted))] = True


_WORSE: Mapping[type, Mapping[str, str]] = {
    Loss: {"loss": "share"},
    Duplicate: {"duplicate": "share"},
    Corrupt: {"corrupt": "share", "corrupt_payload": "share"},
    Reset: {"reset": "share"},
    Reorder: {"reorder": "share", "reorder_s": "held_s"},
    Spike: {"spike": "share", "spike_s": "spike_s"},
}
"""Kind of fault -> field of a link that it raises -> field of the fault with the new value."""


def _worse(model: LinkModel, fault: Weather) -> LinkModel:
    match fault:
        case Loss() | Duplicate() | Corrupt() | Reset() | Reorder() | Spike():
            raised = {
                name: max(getattr(model, name), getattr(fault, own))
                for name, own in _WORSE[type(fault)].items()
            }
            return replace(model, **raised)
        case Delay():
            least, most = model.delay_s
            return replace(model, delay_s=(least, max(most, fault.delay_s)))
        case Narrow() | Trickle():
            slowest = min(fault.bytes_per_s, model.bytes_per_s or inf)
            queue_bytes = fault.queue_bytes if isinstance(fault, Narrow) else model.queue_bytes
            return replace(model, bytes_per_s=slowest, queue_bytes=queue_bytes, slowed=True)
        case Unreadable():
            return replace(model, unreadable=True)
        case _:
            assert_never(fault)
