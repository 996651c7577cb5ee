"""Injects the faults of a schedule into a swarm, ends them for the calm phase, and counts the
faults that took place.

A fault is not counted if it had no effect, for example because its peer was already dead, or
because no message was sent in its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, TypeAlias, assert_never

import numpy as np

from gossip.core import (
    Aggregate,
    Commit,
    Effect,
    PeerEnded,
    PeerExpected,
    PeerId,
    Row,
    Send,
    StartRound,
)
from gossip.errors import BadFault
from gossip.faults import (
    ActivationFault,
    Blow,
    Crash,
    CrashBroadcast,
    CrashMidway,
    Drift,
    Fault,
    FaultPlan,
    Hang,
    HangServer,
    HangTrainer,
    KillTrainer,
    LateStart,
    LateTimers,
    Leave,
    Narrow,
    NetworkFault,
    NeverStarts,
    NodeAttack,
    Partition,
    ProcessFault,
    RealFault,
    Rewritten,
    ServerFault,
    Slow,
    SlowNode,
    StartFault,
    Starve,
    WorldFault,
)
from gossip_lab.simulation.schedules import Schedule

from .launchers import ON_ITS_WAY_S, SEEN_AFTER_S, Launchers
from .liars import ByzantinePeers
from .network_faults import NetworkFaults, drops
from .observer import Observer
from .stage_trainer import StageTrainer
from .toy_lies import PerReceiverAttack, ToyAttack
from .toy_payloads import Vector
from .toy_trainer import ToyTrainer

if TYPE_CHECKING:
    from .driver import AnySwarm


CarriedOut: TypeAlias = WorldFault | RealFault | ActivationFault
"""Kinds of fault that can be injected into simulated swarms."""
EVENT_S = 0.001
"""Processor time that a starved node needs for an event, in seconds."""


def name_of(fault: Fault) -> str:
    """Return the key under which a fault is counted."""
    match fault:
        case NodeAttack():
            return f"lie_{fault.lie}"
        case Partition(one_way=True):
            return "partition_one_way"
        case Narrow() if drops(fault):
            return "queue_full"
        case _:
            return fault.kind


class Nemesis(Observer):
    """Injects the faults of one run.

    Attributes:
        struck: Kind of fault -> number of times that the fault took place.
        network: Faults of the network.

    Raises: BadFault: The schedule has a fault that the simulator cannot carry out.
    """

    def __init__(self, schedule: Schedule) -> None:
        for fault in schedule.faults:
            if not isinstance(fault, CarriedOut):
                raise BadFault(
                    f"the simulator cannot carry out {fault}: it has no {type(fault).__name__}",
                    "leave it out, or add it to extras/lab/gossip_lab/simulation/world/nemesis.py",
                )
        self.schedule = schedule
        self.struck: Counter[str] = Counter()
        self.network = NetworkFaults()
        self.plan = plan = FaultPlan(schedule.faults)
        self.lies = {p: ToyAttack(lie, p, schedule) for p, lie in plan.attackers.items()}
        self._slow = plan.of_kind(Slow)
        self._slow_now = [fault for fault in self._slow if fault.at_s is None]
        # Faults that wait until their peer, or any server, reaches a round.
        self._at_round: list[Blow] = []
        # Peer -> (effects before the crash, fault).
        self._midway: dict[PeerId, tuple[int, CrashMidway]] = {}
        self._servers: list[ServerFault] = []  # faults for the next server
        # Last sent commit: (server, round, shard, number of receivers so far).
        self._told: tuple[PeerId, int, int, int] = (-1, -1, -1, 0)
        # (Fault that made a node slow, number of events that had waited at this node before.)
        self._slow_nodes: list[tuple[SlowNode | Starve, int]] = []
        self._attackers: ByzantinePeers | None = None
        self._launchers = Launchers() if schedule.told else None
        self._calm = False
        self._rewritten: dict[Rewritten, bool] = {}  # overwritten updates that were read

    def slowness(self, peer: PeerId) -> float:
        """Return the factor by which the peer computes more slowly."""
        if self._calm:
            return 1.0
        return prod([fault.factor for fault in self._slow_now if fault.peer == peer])

    def second_reading(self, row: Row, round_id: int, now: float) -> Vector:
        """Return the update of a row as it is in its owner's memory when a server aggregates."""
        vector: Vector = row.payload.data
        for fault in self.plan.of_kind(Rewritten):
            if row.peer in fault.peers and not self._calm:
                assert fault.at_s is not None
                if fault.at_s <= now < fault.at_s + fault.for_s:
                    self._rewritten[fault] = True
                    # in a third of the cases, the update is not finite
                    return vector * np.float32(3.0 if (round_id + row.peer) % 3 else np.nan)
        return vector

    def begin(self, swarm: AnySwarm) -> None:
        """Schedule all faults with a time in a new swarm, and prepare the others.

        The nemesis becomes an observer only if a fault waits for an event. It is then the last
        observer, so that the other observers receive an effect before the peer is killed.
        """
        self._arm_attackers(swarm)
        if any(
            isinstance(f, CrashMidway | ServerFault)
            or getattr(f, "peer", 0) == "server"
            or getattr(f, "round", None) is not None
            for f in self.schedule.faults
        ):
            swarm.hooks.append(self)
        if any(isinstance(fault, NetworkFault) for fault in self.schedule.faults):
            swarm.hooks.append(self.network)
        for number, fault in enumerate(self.schedule.faults):
            self._plan(swarm, number, fault)
        if self._launchers is not None:
            swarm.hooks.append(self._launchers)
        for newcomer, at_s in enumerate(self.schedule.joins_s, self.schedule.peers):
            if self._launchers is not None:
                self._launchers.report(swarm, PeerExpected(newcomer), at_s - ON_ITS_WAY_S)
            swarm.at(at_s, partial(self._join, swarm, newcomer))

    def _arm_attackers(self, swarm: AnySwarm) -> None:
        attacks = self.plan.of_kind(NodeAttack)
        attackers = {p: self.plan.lies_of(p) for fault in attacks for p in fault.peers}
        if attackers:
            swarm.outgoing = self._attackers = ByzantinePeers(swarm, attackers)
        apart = {peer: lie for peer, lie in self.lies.items() if lie.is_per_receiver}
        if apart:
            swarm.outgoing = PerReceiverAttack(apart, swarm.outgoing)

    def _plan(self, swarm: AnySwarm, number: int, fault: Fault) -> None:
        """Schedule a fault, or let it wait for its event. Trainers handle the other faults."""
        if isinstance(fault, NetworkFault):
            self.network.plan(swarm, number, fault)
        elif isinstance(fault, ProcessFault):
            self.later(swarm, fault.at_s, partial(self._strike, swarm, fault))
        elif isinstance(fault, StartFault):
            if not isinstance(fault, NeverStarts):
                swarm.at(fault.at_s, partial(self._come, swarm, fault))
        elif isinstance(fault, ServerFault):
            self.later(swarm, fault.at_s, partial(self._servers.append, fault))
        elif isinstance(fault, Slow) and fault.at_s is not None:
            self.later(swarm, fault.at_s, partial(self._slow_down, swarm, fault, True))
            if fault.for_s is not None:
                until = fault.at_s + fault.for_s
                self.later(swarm, until, partial(self._slow_down, swarm, fault, False))
        elif isinstance(fault, Blow):
            if fault.at_s is None:
                self._at_round.append(fault)
            else:
                self.later(swarm, fault.at_s, partial(self._blow, swarm, fault))

    def _slow_down(self, swarm: AnySwarm, fault: Slow, begins: bool) -> None:
        """Begin or end a slowdown of the trainer."""
        (self._slow_now.append if begins else self._slow_now.remove)(fault)
        host = swarm.hosts.get(fault.peer)
        if host is not None and isinstance(host.trainer, ToyTrainer | StageTrainer):
            host.trainer.pace.slowness = self.slowness(fault.peer)
            self.struck["slow"] += begins
        swarm.announce(fault.peer, f"{fault}{'' if begins else ' is over'}")

    def _come(self, swarm: AnySwarm, fault: StartFault) -> None:
        """Count a fault of the start as it ends, if other peers have ended a round without this
        peer, or in a pipeline have begun one; after a late start, start the peer."""
        others = [host.core.rounds for peer, host in swarm.hosts.items() if peer != fault.peer]
        waited_for = self.schedule.stages and any(rounds.mode == "active" for rounds in others)
        if waited_for or any(rounds.round_id > 0 for rounds in others):
            self.struck[name_of(fault)] += 1
        swarm.announce(fault.peer, str(fault))
        if isinstance(fault, LateStart):
            self._join(swarm, fault.peer)

    def _join(self, swarm: AnySwarm, peer: PeerId) -> None:
        """Start a peer, and apply the present link faults to its links."""
        swarm.announce(peer, "joins")
        swarm.join(peer)
        self.network.reshape(swarm)

    def end(self, swarm: AnySwarm) -> None:
        """End all faults: repair the network, and resume paused peers and hanging trainers.
        Permanently crashed peers are not restarted, and Byzantine trainers remain Byzantine."""
        self.network.end(swarm)
        for fault in self.plan.of_kind(NeverStarts):
            self._come(swarm, fault)
        self._calm = True
        swarm.announce(-1, "all faults are over")
        if self._attackers is not None:
            self._attackers.active = False
        self._at_round.clear()
        self._midway.clear()
        self._servers.clear()
        for peer, host in swarm.hosts.items():
            if host.trainer_stopped:
                swarm.resume_trainer(peer)
            if host.state == "paused":
                swarm.resume(peer)
            swarm.drift(peer, 1.0)
            swarm.make_timers_late(peer, 0.0)
            swarm.slow_down(peer, 1.0)
            if isinstance(host.trainer, ToyTrainer):
                host.trainer.pace.slowness = 1.0

    def totals(self, swarm: AnySwarm) -> Counter[str]:
        """Return ``struck`` with the counts of all faults that are detected elsewhere."""
        found = Counter(self.struck)
        found.update(name_of(self.schedule.faults[number]) for number in self.network.proven)
        found.update(map(name_of, self._rewritten))
        for fault, before in self._slow_nodes:
            found[fault.kind] += swarm.machines[fault.peer].waited > before
        for lie in self.lies.values():
            found[lie.attacker.kind] += lie.told > 0
        for host in swarm.lives:
            if isinstance(host.trainer, StageTrainer):
                found.update(host.trainer.told.keys())
        if self._attackers is not None:
            found.update(
                {f"lie_{lie}": 1 for lie, times in self._attackers.count_attacks().items() if times}
            )
        for peer in {fault.peer for fault in self._slow if fault.at_s is None}:
            lives = [host for host in swarm.lives if host.peer == peer]
            found["slow"] += any(
                isinstance(life.trainer, ToyTrainer) and bool(life.trainer.history.computed)
                for life in lives
            )
        return +found

    # --- blows to a process -----------------------------------------------------------------------

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if self._midway and peer in self._midway:
            left, midway = self._midway[peer]
            self._midway[peer] = (left - 1, midway)
            if left <= 0:
                del self._midway[peer]
                self._kill(swarm, midway, peer)
                return
        if self._servers:
            self._strike_server(swarm, peer, effect)
        if self._at_round and isinstance(effect, StartRound | Aggregate):
            for fault in [each for each in self._at_round if _is_due(each, peer, effect)]:
                self._at_round.remove(fault)
                if isinstance(fault, Hang):
                    swarm.at(swarm.now, partial(self._hang, swarm, fault, peer))
                else:
                    self._kill(swarm, fault, peer)

    def _strike_server(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        fault = self._servers[0]
        match fault, effect:
            case HangServer(), Aggregate():
                swarm.at(swarm.now, partial(self._hang, swarm, fault, peer))
            case CrashBroadcast(told=told), Send(
                message=Commit(server=maker, round_id=round_id, shard=shard)
            ) if maker == peer:
                before = self._told[3] if self._told[:3] == (peer, round_id, shard) else 0
                self._told = (peer, round_id, shard, before + 1)
                if before < told:
                    return
                self._kill(swarm, fault, peer)
            case _:
                return
        self._servers.remove(fault)

    def _hang(self, swarm: AnySwarm, fault: Hang | HangServer, peer: PeerId) -> None:
        if peer in swarm.hosts and swarm.hosts[peer].state == "up":
            swarm.announce(peer, str(fault))
            swarm.pause_for(peer, fault.for_s)
            self.struck[name_of(fault)] += 1

    def _blow(self, swarm: AnySwarm, fault: Blow) -> None:
        """Inject a crash, restart or hang that is due."""
        if fault.peer == "server":
            self._at_round.append(Crash("server"))  # waits for the next server
        elif isinstance(fault, Hang):
            self._hang(swarm, fault, fault.peer)
        elif fault.peer in swarm.hosts:  # false before the peer has started
            self._kill(swarm, fault, fault.peer)

    def _kill(self, swarm: AnySwarm, fault: Fault, peer: PeerId) -> None:
        """Kill a peer, and restart it if the fault includes a restart."""
        if not swarm.hosts[peer].running:
            return
        self.struck[name_of(fault)] += 1
        swarm.announce(peer, str(fault))
        swarm.crash(peer)
        again_after_s: float | None = getattr(fault, "after_s", None)
        if again_after_s is not None:
            # Restart it after the present event, which belongs to the killed incarnation.
            swarm.at(swarm.now, partial(swarm.restart, peer, again_after_s))
        elif self._launchers is not None:
            self._launchers.report(swarm, PeerEnded(peer), swarm.now + SEEN_AFTER_S)

    def _strike(self, swarm: AnySwarm, fault: ProcessFault) -> None:
        peer, host = fault.peer, swarm.hosts.get(fault.peer)
        if host is None or host.state != "up" or host.trainer is None:
            return
        swarm.announce(peer, str(fault))
        until_s = swarm.now + getattr(fault, "for_s", 0.0)
        match fault:
            case CrashMidway():
                self._midway[peer] = (fault.effect, fault)
                return  # counted when the peer crashes
            case HangTrainer():
                swarm.stop_trainer(peer)
                swarm.at(
                    until_s, lambda: swarm.resume_trainer(peer) if host.trainer_stopped else None
                )
            case KillTrainer():
                swarm.lose_trainer(peer)
                swarm.at(swarm.now, partial(swarm.restart, peer, fault.after_s))
            case Leave():
                swarm.stop(peer, "asked to leave")
            case Drift():
                swarm.drift(peer, fault.rate)
                # only if this incarnation still runs
                mend = lambda: swarm.drift(peer, 1.0) if swarm.hosts[peer] is host else None  # noqa: E731
                self.later(swarm, until_s, mend)
            case LateTimers():
                swarm.make_timers_late(peer, fault.late_s)
                self.later(swarm, until_s, partial(swarm.make_timers_late, peer, 0.0))
            case SlowNode() | Starve():
                slowness = 1.0 / fault.share if isinstance(fault, Starve) else 1.0
                busy_s = fault.handling_s if isinstance(fault, SlowNode) else EVENT_S * slowness
                swarm.slow_down(peer, slowness, busy_s)
                self._slow_nodes.append((fault, host.machine.waited))
                self.later(swarm, until_s, partial(swarm.slow_down, peer, 1.0))
                return  # counted if an event has to wait
            case _:
                assert_never(fault)
        self.struck[name_of(fault)] += 1

    def later(self, swarm: AnySwarm, t: float, act: Callable[[], None]) -> None:
        """Schedule a call. It is dropped if the calm phase has begun by then."""
        swarm.at(t, lambda: act() if not self._calm else None)


def _is_due(fault: Blow, peer: PeerId, effect: StartRound | Aggregate) -> bool:
    """Whether the effect is the one that the fault waits for: the start of its round at its peer,
    or an aggregation by a server."""
    if fault.peer == "server":
        return (
            isinstance(effect, Aggregate)
            and effect.shard == 0
            and effect.step in ("whole", "measure")
            and fault.round in (None, effect.round_id)
        )
    is_start = fault.peer == peer and isinstance(effect, StartRound)
    return is_start and fault.round is not None and fault.round <= effect.round_id
