"""Checks that no live peer is declared dead: swarms of memberships with lossy links or paused
peers, and the count of false deaths.

A *false death* is an entry in any table with the status dead, or left, of a peer whose present
incarnation runs and has not been disturbed. Every change of every table is checked instead of the
reports, so an entry that is corrected within the same event also counts.

    seen = rain(LossySwarm(n=8, seed=3))
    assert not seen.false_deaths, seen.false_deaths
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle

from gossip.core import Event, PeerId
from gossip_lab.simulation.checkers import TableWatch, watch_life
from gossip_lab.simulation.world import (
    AnySwarm,
    LinkModel,
    MemberCore,
    Network,
    Observer,
    Swarm,
    all_fine,
    member_swarm,
)

LOSS, DUPLICATION, JITTER_S = 0.2, 0.2, 0.1
CHURN_S = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # consecutive pauses of a sleeper on lossy links
STARTED_S = 2.0
CALM_S = 15.0  # without loss: a table exchange, two suspicions and their spread
MEET_S = 10.0
WORST_WITHIN_S = 60.0  # Within this time an observer suspects a peer, or the run is wrong.


@dataclass(frozen=True, slots=True)
class FalseDeath:
    """``by`` declared ``peer`` gone at ``at_s`` of virtual time; ``origin`` claimed it first."""

    at_s: float
    by: PeerId
    peer: PeerId
    status: str
    origin: PeerId


class FalseDeaths(Observer):
    """Checks every change of every table.

    Args:
        excused: Peers that are disturbed on purpose. Their deaths are counted as ``excused``, and
            are not mistakes.
    """

    def __init__(self, excused: Collection[PeerId] = ()) -> None:
        self.excused = tuple(excused)
        self.found: list[FalseDeath] = []
        self.counts: Counter[str] = Counter()
        self._watches: dict[PeerId, TableWatch] = {}

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        watch_life(self._watches, swarm, peer)

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        watch = self._watches[peer]
        if not watch.sink and len(watch.members) == watch.count:
            return
        for change in watch.fresh():
            if change.field not in ("status", "enlisted"):
                continue
            self.counts[change.status] += change.field == "status"
            if change.status not in ("dead", "left"):
                continue
            subject = swarm.hosts[change.subject]
            if not subject.running or subject.incarnation != change.incarnation:
                self.counts["true deaths"] += 1
            elif change.subject in self.excused:
                self.counts["excused"] += 1
            else:
                origin = watch.members[change.subject].origin
                self.found.append(
                    FalseDeath(swarm.now, peer, change.subject, change.status, origin)
                )


@dataclass(slots=True)
class FalseDeathCounts:
    """Counts of one run, or their sum over several."""

    node_seconds: float = 0.0
    false_deaths: list[FalseDeath] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: FalseDeathCounts) -> None:
        self.node_seconds += other.node_seconds
        self.false_deaths += other.false_deaths
        self.counts.update(other.counts)


@dataclass(frozen=True, slots=True)
class LossySwarm:
    """A swarm on lossy links.

    Attributes:
        node_seconds: Sum of the virtual seconds of all peers.
        in_order: Whether links keep the order of messages, as TCP does.
        sleepers: Number of peers that pause repeatedly, each time for ``CHURN_S``, and are
            restarted occasionally. Neither their own deaths nor their seconds count.
        core: Core of every peer.
    """

    n: int
    seed: int
    node_seconds: float = 4000.0
    in_order: bool = True
    sleepers: int = 0
    loss: float = LOSS
    duplication: float = DUPLICATION
    jitter_s: float = JITTER_S
    core: type[MemberCore] = MemberCore


def rain(world: LossySwarm) -> FalseDeathCounts:
    """Play a swarm on lossy links, then end the loss: then all peers must see each other
    again.

    Raises: SimulationStuck: They do not.
    """
    model = LinkModel(delay_s=(0.0, world.jitter_s), loss=world.loss, duplicate=world.duplication)
    network = Network(model, fifo=world.in_order)
    swarm = member_swarm(world.n, world.seed, network, make=world.core)
    deaths = FalseDeaths(excused=range(world.sleepers))
    swarm.hooks.append(deaths)
    seconds = world.node_seconds / (world.n - world.sleepers)
    if world.sleepers:
        _disturb(swarm, world, seconds)
    else:
        swarm.run_for(seconds)
    seen = FalseDeathCounts(
        (world.n - world.sleepers) * seconds, counts=deaths.counts + swarm.counts
    )
    network.default = LinkModel()
    swarm.run_until(lambda: all_fine(swarm), CALM_S)
    seen.false_deaths = deaths.found
    return seen


def _is_up(swarm: Swarm[MemberCore], peer: PeerId) -> bool:
    return swarm.hosts[peer].state == "up"


def _disturb(swarm: Swarm[MemberCore], world: LossySwarm, seconds: float) -> None:
    naps = cycle(CHURN_S)
    for turn in range(1_000_000):
        if swarm.now + 12.0 > seconds:
            break
        for stalled_peer in range(world.sleepers):
            if swarm.hosts[stalled_peer].state == "up":
                if turn % 5 == 4:
                    swarm.restart(stalled_peer, next(naps))
                else:
                    swarm.pause_for(stalled_peer, next(naps))
        swarm.run_for(swarm.rng.uniform(1.0, 9.0))
    swarm.run_for(seconds - swarm.now)
    for stalled_peer in range(world.sleepers):
        swarm.run_until(partial(_is_up, swarm, stalled_peer), 10.0)


@dataclass(frozen=True, slots=True)
class Pause:
    """Observers pause for ``pause_s``, all at the same time.

    The worst moment is when one of them suspects a peer: the accusation is then the last message
    that it receives before it can judge. On lossy links the run waits for this moment. Without loss
    there is no such moment, so it is arbitrary.

    Attributes:
        observers: Number of observers among the ``n`` peers; those with the highest ids.
        loss: Share of lost messages, all the time: so suspicions are open when the observers pause,
            and they miss refutations.
        deaf: Whether messages to them during the pause are lost, including refutations. Otherwise
            they receive them first when they resume, as a stopped process does.
        core: Core of every peer.
    """

    n: int
    seed: int
    pause_s: float
    observers: int = 1
    loss: float = 0.0
    deaf: bool = False
    core: type[MemberCore] = MemberCore


def pause(world: Pause) -> FalseDeathCounts:
    """Play a pause of observers. Afterwards all peers must see each other again.

    The observers may be declared dead. Any other declaration of death is a false
    death. Raises: SimulationStuck: The peers do not see each other again.
    """
    assert 0 < world.observers < world.n, (
        f"{world.observers} of {world.n} sleep: no peer is left that could be declared dead"
    )
    weather = LinkModel(loss=world.loss, delay_s=(0.0, JITTER_S)) if world.loss else LinkModel()
    network = Network(weather)
    swarm = member_swarm(world.n, world.seed, network, make=world.core)
    sleepers = range(world.n - world.observers, world.n)
    deaths = FalseDeaths(excused=sleepers)
    swarm.hooks.append(deaths)
    swarm.run_for(STARTED_S + swarm.rng.uniform(0.0, 1.0))  # at a random phase of the probes
    if world.loss:
        swarm.run_until(
            lambda: any(
                _suspects_one_awake(swarm, stalled_peer, sleepers) for stalled_peer in sleepers
            ),
            WORST_WITHIN_S,
        )
    for stalled_peer in sleepers:
        swarm.pause(stalled_peer)
    swarm.run_for(world.pause_s)
    for stalled_peer in sleepers:
        if world.deaf:
            swarm.hosts[stalled_peer].inbox.clear()
        swarm.resume(stalled_peer)
    # After the pause the observers judge with the loss of the pause.
    swarm.run_for(5.0)
    network.default = LinkModel()
    swarm.run_until(lambda: all_fine(swarm), MEET_S)
    return FalseDeathCounts(world.n * swarm.now, deaths.found, deaths.counts + swarm.counts)


def _suspects_one_awake(
    swarm: Swarm[MemberCore], observer: PeerId, sleepers: Collection[PeerId]
) -> bool:
    """Whether the observer is about to declare a death: it has a suspicion with evidence
    of its own, and no ack since."""
    members = swarm.cores[observer].membership.members.values()
    return any(
        m.suspicion is not None and m.suspicion.proven for m in members if m.peer not in sleepers
    )
