"""Faults of the network: cuts, and links with worse properties."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Protocol, assert_never

from gossip.core import PeerId
from gossip.faults import (
    Break,
    Corrupt,
    Delay,
    Duplicate,
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
from .proof import FaultEffects

if TYPE_CHECKING:
    from .driver import AnySwarm


class FaultClock(Protocol):
    """The part of ``Nemesis`` that network faults use."""

    def later(self, swarm: AnySwarm, t: float, act: Callable[[], None]) -> None: ...

    def announce(self, swarm: AnySwarm, peer: PeerId, text: str) -> None: ...


class NetworkFaults:
    """Injects faults of the network, and combines those that are present at the same time.

    Attributes:
        cuts_seen: The different sets of links that were cut at the same time.
        proofs: Observer that detects which faults took place.
    """

    def __init__(self, nemesis: FaultClock) -> None:
        self.nemesis = nemesis
        self.cuts_seen: dict[tuple[Link, ...], bool] = {}
        self.proofs = FaultEffects()
        self._on_now: dict[int, NetworkFault] = {}
        self._weather: dict[int, Weather] = {}
        self._cuts: dict[int, tuple[Link, ...]] = {}

    def plan(self, swarm: AnySwarm, number: int, fault: NetworkFault) -> None:
        """Schedule the start and the end of a fault."""
        later, until_s = self.nemesis.later, fault.at_s + fault.for_s
        later(swarm, fault.at_s, partial(self._on, swarm, number, fault))
        later(swarm, until_s, partial(self._off, swarm, number, fault))

    def end(self, swarm: AnySwarm) -> None:
        """End all present faults, in the order of their indices in the schedule."""
        for number, fault in sorted(self._on_now.items()):
            self._off(swarm, number, fault)

    def _on(self, swarm: AnySwarm, number: int, fault: NetworkFault) -> None:
        self._on_now[number] = fault
        self.nemesis.announce(swarm, -1, f"begins: {fault}")
        if isinstance(fault, Flap):
            self._swing(swarm, number, fault)
        elif isinstance(fault, Partition | Ring):
            self._break(swarm, number, fault, severed(fault))
        else:
            self._weather[number] = fault
            self.proofs.watch(number, fault, near(fault, tuple(swarm.hosts)))
            self.reshape(swarm)

    def _off(self, swarm: AnySwarm, number: int, fault: NetworkFault) -> None:
        if self._on_now.pop(number, None) is None:
            return  # already ended
        self.proofs.rest(number)
        self.nemesis.announce(swarm, -1, f"ends: {fault}")
        if isinstance(fault, Break):
            self._cuts.pop(number, None)
            self._cut(swarm)
        else:
            del self._weather[number]
            self.reshape(swarm)
            if isinstance(fault, Narrow | Trickle):
                for link in near(fault, tuple(swarm.hosts)):
                    swarm.let_go(*link)

    def _break(self, swarm: AnySwarm, number: int, fault: Break, links: Iterable[Link]) -> None:
        self._cuts[number] = tuple(links)
        self.proofs.watch(number, fault, self._cuts[number])
        self._cut(swarm)

    def _swing(self, swarm: AnySwarm, number: int, fault: Flap) -> None:
        if number not in self._on_now:
            return  # the fault has ended
        if number in self._cuts:
            del self._cuts[number]
            self.proofs.rest(number)
            self._cut(swarm)
        else:
            self._break(swarm, number, fault, severed(fault))
        self.nemesis.later(
            swarm, swarm.now + fault.period_s / 2, partial(self._swing, swarm, number, fault)
        )

    def _cut(self, swarm: AnySwarm) -> None:
        """Update the cuts of the network to those of all present faults."""
        wanted = {link: True for links in self._cuts.values() for link in links}
        for link in [link for link in swarm.network.cuts if link not in wanted]:
            del swarm.network.cuts[link]
            swarm.network.changed += 1
        for link in [link for link in wanted if link not in swarm.network.cuts]:
            swarm.network.cut(*link, both_ways=False)
        if wanted:
            self.cuts_seen[tuple(sorted(wanted))] = True

    def reshape(self, swarm: AnySwarm) -> None:
        """Update the properties of all links to the combined effect of all present faults."""
        peers, network = tuple(swarm.hosts), swarm.network
        network.models.clear()
        for fault in self._weather.values():
            for link in near(fault, peers):
                network.models[link] = _worse(network.models.get(link, network.default), fault)


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
