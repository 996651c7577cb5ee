"""Crash of a tenth of a large swarm of memberships: the time until each survivor has
recorded it, and the traffic of all peers in bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gossip.core import (
    Change,
    Effect,
    Event,
    MembershipSettings,
    PeerId,
    Started,
    table_interval_s,
)
from gossip_lab.simulation.world import (
    MemberCore,
    Network,
    SimulationStuck,
    Swarm,
    all_fine,
    member_swarm,
)

from .measuring import TrafficMeter, advance

SILENT = {"closing_s": (1e9, 1e9), "heartbeat_s": None}
"""The kernel reports nothing, as when a cable is pulled: only probes can detect it."""

# peers: in larger swarms the initial storm of rumors takes longer than the whole measurement
ACQUAINTED_ABOVE = 128
# time within which every peer has sent its first table, for any n
FIRST_TABLES_S = 6.0
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class MassCrash:
    """A mass crash. ``connections_close``: the kernels of the crashed peers close their
    connections, as after SIGKILL; otherwise no peer gets a report."""

    n: int
    seed: int
    connections_close: bool
    crashed_share: float = 0.1

    @property
    def victims(self) -> tuple[PeerId, ...]:
        return tuple(range(0, self.n, round(1.0 / self.crashed_share)))


class ConnectedMemberCore(MemberCore):
    """A core that has met all peers before it starts, as after an hour in the same run."""

    def _dispatch(self, event: Event, now: float) -> list[Effect]:
        effects = super()._dispatch(event, now)
        if isinstance(event, Started):
            for member in self.membership.view.others():
                self.membership.view.place(member, member.status, met=True)
        return effects


@dataclass(frozen=True, slots=True)
class MassCrashResult:
    """Seconds count from the crash. Bytes are those of encoded messages, without the framing of
    ZeroMQ, TCP and IP."""

    victims: int
    suspected_median_s: float  # first suspicion of a victim by any peer, median over victims
    suspected_last_s: float
    dead_first_median_s: float  # first peer that declares a victim dead
    known_median_s: float  # over all pairs of a survivor and a victim
    known_all_s: float  # the last survivor has recorded the last victim
    converged_s: float  # the same, without suspicions or skips of live peers
    false_deaths: int
    false_suspicions: int  # of survivors, by survivors
    # while nothing happens, over one whole interval between table exchanges
    calm_bytes_per_peer_s: float
    calm_table_bytes_per_peer_s: float  # tables alone
    calm_messages_per_peer_s: float
    crash_bytes_per_peer_s: float  # by a survivor, from the crash until all deaths are recorded
    crash_bytes_per_peer: float


@dataclass(slots=True)
class Deaths:
    """Times at which each survivor recorded each victim's death, and false accusations."""

    victims: dict[PeerId, None]
    crashed: bool = False
    dead: dict[tuple[PeerId, PeerId], float] = field(default_factory=dict)
    suspected: dict[PeerId, float] = field(default_factory=dict)
    false_deaths: int = 0
    false_suspicions: int = 0

    def listen(self, now: float, by: PeerId, change: Change) -> None:
        if change.what not in ("dead", "suspect"):
            return
        true = self.crashed and change.peer in self.victims
        if change.what == "dead":
            if true:
                self.dead.setdefault((by, change.peer), now)
            else:
                self.false_deaths += 1
        elif true:
            self.suspected.setdefault(change.peer, now)
        else:
            self.false_suspicions += 1


def mass_crash(world: MassCrash) -> MassCrashResult:
    """Play a mass crash. Raises: SimulationStuck: The survivors do not all agree within a minute of
    virtual time."""
    deaths = Deaths(dict.fromkeys(world.victims))
    swarm = started(world, deaths)
    meter = TrafficMeter()
    swarm.outgoing = meter
    calm_s = table_interval_s(world.n, MembershipSettings())
    swarm.run_for(calm_s)
    swarm.outgoing = after = TrafficMeter()

    crashed_at, deaths.crashed = swarm.now, True
    for victim in world.victims:
        swarm.crash(victim)
    survivors = world.n - len(world.victims)
    pairs = survivors * len(world.victims)
    _advance(swarm, lambda: len(deaths.dead) == pairs, f"{pairs} deaths must be recorded", deaths)
    known_all_s = max(deaths.dead.values()) - crashed_at
    crash_bytes = after.by_peer.total() / survivors
    until_s = swarm.now - crashed_at
    _advance(
        swarm,
        lambda: all_fine(swarm),
        "every peer must see all live peers, and no others",
        deaths,
    )
    converged_s = swarm.now - crashed_at
    # A peer that was wrongly accused in this time could be declared dead by now.
    swarm.run_for(2.0)
    first: dict[PeerId, float] = {}
    for (_, victim), at in deaths.dead.items():
        first[victim] = min(at, first.get(victim, math.inf))
    return MassCrashResult(
        victims=len(world.victims),
        suspected_median_s=median(deaths.suspected.values()) - crashed_at,
        suspected_last_s=max(deaths.suspected.values()) - crashed_at,
        dead_first_median_s=median(first.values()) - crashed_at,
        known_median_s=median(deaths.dead.values()) - crashed_at,
        known_all_s=known_all_s,
        converged_s=converged_s,
        false_deaths=deaths.false_deaths,
        false_suspicions=deaths.false_suspicions,
        calm_bytes_per_peer_s=meter.by_peer.total() / world.n / calm_s,
        calm_table_bytes_per_peer_s=meter.by_kind["PushPull"] / world.n / calm_s,
        calm_messages_per_peer_s=meter.sent.total() / world.n / calm_s,
        crash_bytes_per_peer_s=crash_bytes / until_s,
        crash_bytes_per_peer=crash_bytes,
    )


def started(world: MassCrash, deaths: Deaths) -> Swarm[MemberCore]:
    """Return a swarm in which all peers have met and have no rumors left to send."""
    network = Network() if world.connections_close else Network(**SILENT)  # type: ignore[arg-type]
    make = ConnectedMemberCore if world.n > ACQUAINTED_ABOVE else MemberCore
    swarm = member_swarm(
        world.n, world.seed, network, encoded=False, listen=deaths.listen, make=make
    )
    swarm.run_for(FIRST_TABLES_S)
    _advance(
        swarm,
        lambda: not any(len(core.membership.rumors) for core in swarm.cores.values()),
        "silence",
        deaths,
    )
    if not all_fine(swarm):
        raise SimulationStuck(
            f"n={world.n}: after {swarm.now:.1f} s not all peers have met\n{swarm.summary()[:2000]}"
        )
    return swarm


def _advance(swarm: Swarm[MemberCore], predicate: Any, what: str, deaths: Deaths) -> None:
    def describe() -> str:
        return f"{what}; {len(deaths.dead)} deaths were recorded"

    advance(swarm, predicate, describe, LIMIT_S)
