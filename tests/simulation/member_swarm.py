"""Swarms of cores with a membership only, in which rounds would only take time."""

from __future__ import annotations

from random import Random
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
from gossip_lab.simulation.checkers import CheckerSuite, membership_checkers
from gossip_lab.simulation.world import Network, Swarm, address


class MemberCore:
    """A core that has all first addresses from the start, as from a folder of seeds. It keeps the
    changes of its table, each with its time."""

    def __init__(self, peer: PeerId, incarnation: int, n: int, seed: int) -> None:
        self.n, self.timers = n, Timers[Any]()
        self.membership = Membership(
            Member.own(peer, incarnation, *address(peer, incarnation)),
            MembershipSettings(),
            self.timers,
            Random(f"node/{seed}/{peer}/{incarnation}"),
            frozenset(range(n)),
        )
        self.changes: list[tuple[float, Change]] = []

    def __repr__(self) -> str:
        members = self.membership.members.values()
        return f"<{', '.join(f'{m.peer}: {m.status} {m.standing} {m.skip}' for m in members)}>"

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = self._dispatch(event, now)
        self.changes += [(now, change) for change in self.membership.drain()]
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
        raise AssertionError(event)


class StallBlindCore(MemberCore):
    """A core with a driver that reports no pauses: it must detect them by its own late timers."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        return [] if isinstance(event, events.ClockJumped) else super().handle(event, now)


def member_swarm(
    n: int,
    seed: int,
    network: Network | None = None,
    *,
    encoded: bool = True,
    make: type[MemberCore] = MemberCore,
) -> Swarm[MemberCore]:
    return Swarm(lambda peer, life: make(peer, life, n, seed), n, seed, network, encoded=encoded)


def checked(swarm: Swarm[MemberCore]) -> CheckerSuite:
    """Return all checkers of memberships, which watch the swarm from now on."""
    suite = CheckerSuite(membership_checkers())
    swarm.hooks.append(suite)
    return suite


def all_fine(swarm: Swarm[MemberCore]) -> bool:
    """Whether all peers have started, and all running peers record exactly each other as alive and
    usable."""
    up = set(swarm.up)
    return not any(host.state == "starting" for host in swarm.hosts.values()) and all(
        set(swarm.cores[peer].membership.view.alive()) == up
        and not any(swarm.cores[peer].membership.view.skip_reason(other) for other in up)
        for peer in up
    )


def find_changes(
    swarm: Swarm[MemberCore], what: str, since: float = 0.0, about: PeerId | None = None
) -> list[tuple[float, PeerId, Change]]:
    """(when, by whom noticed, change), of all present lives."""
    return [
        (at, peer, change)
        for peer, core in swarm.cores.items()
        for at, change in core.changes
        if change.what == what and at >= since and about in (None, change.peer)
    ]
