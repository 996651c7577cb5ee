"""Swarm of cores with a membership only, for large swarms and long runs, in which rounds
would only take time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gossip.core import (
    TIMERS,
    Change,
    Effect,
    Event,
    Member,
    Membership,
    MembershipSettings,
    PeerId,
    Timers,
    events,
)

from .driver import Swarm, address, node_rng
from .network import Network

Listener = Callable[[float, PeerId, Change], None]
"""``(when, peer that noticed it, change)``."""


@dataclass(frozen=True, slots=True)
class MemberSetup:
    """Arguments that all cores of a swarm share.

    Attributes:
        listen: Callback for every change. Without it each core keeps its own changes in
            ``changes``.
    """

    n: int
    seed: int
    timers: Callable[[], Timers[Any]] = Timers
    listen: Listener | None = None


class MemberCore:
    """A core that has all first addresses from the start, as from a folder of seeds."""

    def __init__(self, peer: PeerId, incarnation: int, setup: MemberSetup) -> None:
        self.peer, self.n, self.listen = peer, setup.n, setup.listen
        self.timers = setup.timers()
        self.membership = Membership(
            Member.own(peer, incarnation, *address(peer, incarnation)),
            MembershipSettings(),
            self.timers,
            node_rng(setup.seed, peer, incarnation),
            frozenset(range(setup.n)),
        )
        self.changes: list[tuple[float, Change]] = []

    def __repr__(self) -> str:
        members = self.membership.members.values()
        return f"<{', '.join(f'{m.peer}: {m.status} {m.standing} {m.skip}' for m in members)}>"

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = self._dispatch(event, now)
        for change in self.membership.drain():
            if self.listen is None:
                self.changes.append((now, change))
            else:
                self.listen(now, self.peer, change)
        return effects + self.membership.schedule_gossip(now)

    def _start(self, now: float) -> list[Effect]:
        effects = self.membership.start(now)
        for peer in range(self.n):
            effects += self.membership.learn(peer, *address(peer), 0, now)
        return effects

    def _dispatch(self, event: Event, now: float) -> list[Effect]:
        match event:
            case events.Started():
                return self._start(now)
            case events.Received(sender, incarnation):
                if not self.membership.accept_sender(sender, incarnation, now):
                    return []
                message: Any = event.message
                return self.membership.on_message(sender, incarnation, message, now)
            case events.LinkUp(peer):
                return self.membership.on_link(peer, True, "", now)
            case events.LinkDown(peer, reason):
                return self.membership.on_link(peer, False, reason, now)
            case events.TimerFired(token):
                what = self.timers.fire(token)
                assert what is None or isinstance(what, TIMERS)
                return [] if what is None else self.membership.on_timer(what, now)
            case events.ClockJumped(late_s):
                return self.membership.on_clock_jump(late_s, now)
            case events.Stop():
                return [*self.membership.leave(now), events.Halt("stopped")]
            case events.TrainerLost(reason):
                return [*self.membership.announce_own_death(reason, now), events.Halt(reason, 1)]
        raise AssertionError(event)


# Tests and campaigns vary these by name.
def member_swarm(  # noqa: PLR0913
    n: int,
    seed: int,
    network: Network | None = None,
    *,
    encoded: bool = True,
    timers: Callable[[], Timers[Any]] = Timers,
    listen: Listener | None = None,
    make: type[MemberCore] = MemberCore,
) -> Swarm[MemberCore]:
    setup = MemberSetup(n, seed, timers, listen)
    return Swarm(lambda peer, life: make(peer, life, setup), n, seed, network, encoded=encoded)


class StallBlindCore(MemberCore):
    """A core with a driver that reports no pauses: it must detect them by its own late timers."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        return [] if isinstance(event, events.ClockJumped) else super().handle(event, now)


def all_fine(swarm: Swarm[MemberCore]) -> bool:
    """Whether all peers have started, and all running peers record exactly each other as alive and
    usable."""
    up = set(swarm.up)
    return not any(host.state == "starting" for host in swarm.hosts.values()) and all(
        set(swarm.cores[peer].membership.view.alive()) == up
        and not any(swarm.cores[peer].membership.view.skip_reason(other) for other in up)
        for peer in up
    )
