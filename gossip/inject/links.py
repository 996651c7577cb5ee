"""Injects network faults at one node, from the plan and drills."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from gossip.core import PeerId
from gossip.faults import (
    Delay,
    FaultPlan,
    Flap,
    LinkFault,
    Loss,
    Partition,
    Ring,
    Slow,
    Trickle,
    near,
    severed,
)
from gossip.run import Journal

from .claims import ClaimFiles
from .lasting import LastingFaults
from .sieve import LinkCondition

LOOK_EVERY_S = 0.01


class LinkFaults:
    """Injector of faults into this peer's links. On a broken link, the peer drops the messages that
    it sends and the messages that still arrive. It also records when slow steps of its trainer
    begin and end. The trainer itself delays its steps."""

    def __init__(
        self, plan: FaultPlan, peer: PeerId, peers: int, claims: ClaimFiles, journal: Journal
    ) -> None:
        self._peer, self._peers, self._claims = peer, range(peers), claims
        planned = [
            (index, fault)
            for index, fault in enumerate(plan)
            if isinstance(fault, LinkFault)
            or (isinstance(fault, Slow) and fault.peer == peer and fault.at_s is not None)
        ]
        self._lasting = LastingFaults(planned, claims, journal)
        self._now: dict[PeerId, LinkCondition] = {}
        self._look_at = 0.0
        self.on_change: Callable[[Mapping[PeerId, LinkCondition]], None] = lambda faults: None

    def tick(
        self, now: float, began: float | None, round_id: int, drilled: Iterable[Any] = ()
    ) -> None:
        """Apply all faults that are due. The caller calls this at each poll. ``began``: time when
        the run began; None if unknown."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        on = [fault for fault in drilled if isinstance(fault, LinkFault)]
        if self.planned and began is None:
            began = self._claims.began()
        if began is not None:
            planned = self._lasting.on(now - began, round_id)
            on += [
                fault
                for fault, passed_s in planned
                if isinstance(fault, LinkFault) and _is_broken(fault, passed_s)
            ]
        faults = links_at(self._peer, self._peers, on)
        if faults != self._now:
            self._now = faults
            self.on_change(faults)

    @property
    def planned(self) -> bool:
        """Whether the plan has a lasting fault of this peer."""
        return bool(self._lasting.planned)


def _is_broken(fault: LinkFault, passed_s: float) -> bool:
    return not isinstance(fault, Flap) or passed_s % fault.period_s < fault.period_s / 2


def links_at(
    local: PeerId, peers: Iterable[PeerId], faults: Iterable[LinkFault]
) -> dict[PeerId, LinkCondition]:
    """Return peer -> condition of the link from ``local`` to this peer, for all links that the
    faults affect. If several faults affect one link, its condition has the worst value of each
    kind."""
    everybody = tuple(peers)
    found: dict[PeerId, LinkCondition] = {}
    for fault in faults:
        match fault:
            case Partition() | Ring() | Flap():
                for a, b in severed(fault):
                    if local in (a, b):
                        other = b if a == local else a
                        known = found.get(other, LinkCondition())
                        found[other] = replace(
                            known, mute=known.mute or a == local, deaf=known.deaf or b == local
                        )
            case Loss() | Delay() | Trickle():
                for a, b in near(fault, everybody):
                    if b == local:
                        found[a] = _worse(found.get(a, LinkCondition()), fault)
    return found


def _worse(known: LinkCondition, fault: Loss | Delay | Trickle) -> LinkCondition:
    match fault:
        case Loss():
            return replace(known, loss=max(known.loss, fault.share))
        case Delay():
            return replace(known, delay_s=max(known.delay_s, fault.delay_s))
        case Trickle():
            return replace(known, bytes_per_s=min(known.bytes_per_s, fault.bytes_per_s))
