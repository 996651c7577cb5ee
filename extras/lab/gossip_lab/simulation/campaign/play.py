"""Plays one schedule: runs a swarm with faults and checkers, then a calm phase without faults, and
returns the result.

outcome = run(generate(17)) assert outcome.violation is None, outcome.violation
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan, sqrt
from statistics import median_high
from typing import Any, NamedTuple

from gossip import topologies
from gossip.core import (
    AddressLearned,
    CoreSettings,
    Effect,
    Event,
    MembershipSettings,
    Peer,
    PeerId,
    PipelineSettings,
    RoundSettings,
    TrustSettings,
)
from gossip.errors import ConfigError
from gossip.faults import (
    STATE_ATTACKS,
    ActivationFault,
    CrashBroadcast,
    CrashMidway,
    Duplicate,
    Fault,
    FaultPlan,
    Hang,
    HangTrainer,
    LateTrainer,
    NetworkFault,
    NodeAttack,
    Restart,
    Rewritten,
    Trickle,
    Unreadable,
)
from gossip.inject import FAR_ROUNDS
from gossip.topologies import Plan, Roster, Topology
from gossip_lab.simulation.checkers import (
    AllPeersEnd,
    CheckerSuite,
    DonorsStayReachable,
    FinalRoundReplies,
    IdenticalFinalStates,
    PipelineSuite,
    RepeatedAttestationRequests,
    RunConditions,
    TaintedStates,
    Violation,
    as_violation,
    every_checker,
    pipeline_suite,
    rule_has_enough,
)
from gossip_lab.simulation.schedules import PEERS_MAX, Schedule
from gossip_lab.simulation.world import (
    PREPARE_S,
    Aggregator,
    LinkModel,
    Nemesis,
    Network,
    Observer,
    OptimizerTurns,
    RuleRunner,
    StageTrainer,
    Swarm,
    ToyPace,
    ToyRule,
    ToyTrainer,
    address,
    mean,
)
from gossip_pipelines.protocol import StagePeer

from .endings import play_end, play_gossip_end, toys_of

AT_ONCE_S = 0.5  # round trips and the rest of a probe, in a round without a wait
HEARTBEAT_S = 0.1  # interval of tests for expired links
LONGER = 2.0  # maximum duration of a run, as a multiple of the schedule's
SLICE_S = 0.25
EVENTS_LEAST = 100_000  # number of events that every run may have
RATES = (1.0,)  # learning rates of every trainer
SAMPLES = 997  # per epoch; a prime, so that the last round is incomplete

TRUST = TrustSettings(quarantine_rounds=12, parole_rounds=8)
"""Trust settings with short periods, so that a peer passes through quarantine and parole within the
rounds of a run."""

END_OF_RUN_CHECKERS = (
    TaintedStates
    | IdenticalFinalStates
    | AllPeersEnd
    | RepeatedAttestationRequests
    | FinalRoundReplies
    | DonorsStayReachable
)
"""Checkers of invariants that also hold during an attack in the last round, and the observer that
they read."""

VOTE_LOSING_FAULTS = Restart | CrashMidway | CrashBroadcast | HangTrainer


@dataclass(frozen=True, slots=True)
class ViolationRecord:
    """A violation as plain data that can be pickled or written as JSON."""

    invariant: str
    peer: PeerId
    at_s: float
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at_s:.6f} s, peer {self.peer}: {self.text}"


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Result of one run.

    Attributes:
        rounds: Round that half of the peers have reached at the end. The maximum would be wrong,
            because an attacker may send a single peer to any round.
        struck: Kind of fault -> number of times that the fault took place.
        cuts: Number of different ways in which the network was cut.
        counts: Fate of messages (``sent``, ``delivered``, ``lost``, ``cut``, ...) -> number of
            messages. ``lied_to_at_last`` is the number of peers to which a false result was sent in
            the last round.
        reports: Event -> number of reports of the peers, before the attack in the last round.
        judged: Invariant -> number of judgements.
        judged_by: Name of a checker -> number of judgements that could have failed.
        left: Median distance of the peers' parameters from the optimum at the end, as a share of
            the distance at the start.
    """

    schedule: Schedule
    violation: ViolationRecord | None
    trace_hash: str
    rounds: int
    simulated_s: float
    struck: Mapping[str, int]
    cuts: int
    counts: Mapping[str, int]
    reports: Mapping[str, int]
    judged: Mapping[str, int]
    judged_by: Mapping[str, int] = field(default_factory=dict)
    left: float = nan


Folder = dict[PeerId, tuple[int, str, str]]
"""Peer -> its present incarnation, control address and bulk address. In a real run, a folder of
files has this content."""


PLANS_KEPT = 256


class CachedTopology(Topology):
    """A topology with a cache of the latest plans. A topology is a pure function, and most peers of
    a swarm request the same plan."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology.function, topology.name, topology.rolling, topology.bound)
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def __call__(self, roster: Roster, round_id: int, seed: int, **options: Any) -> Plan:
        key = roster, round_id, seed, *options.items()
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = super().__call__(roster, round_id, seed, **options)
            if len(self._plans) > PLANS_KEPT:
                del self._plans[next(iter(self._plans))]
        return plan


class _SeedingPeer(Peer):
    """A peer that, like a node, writes its address into the folder when it starts, and reads the
    addresses of the other peers. It also validates its state after each event."""

    def __init__(self, folder: Folder, *arguments: Any, **addresses: Any) -> None:
        super().__init__(*arguments, **addresses)
        self._folder = folder
        self._addresses = (addresses["control"], addresses["bulk"])

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = super().handle(event, now)
        self.validate_state()
        return effects

    def _on_started(self, now: float) -> list[Effect]:
        effects = super()._on_started(now)
        self._folder[self.local] = (self.membership.incarnation, *self._addresses)
        for peer, (incarnation, control, bulk) in sorted(self._folder.items()):
            effects += self._dispatch(AddressLearned(peer, control, bulk, incarnation), now)
        return effects


class _SeedingStagePeer(_SeedingPeer, StagePeer):
    """A ``_SeedingPeer`` in a pipeline."""


def run(schedule: Schedule, observers: Iterable[Observer] = ()) -> SimulationResult:
    """Play a schedule to its end or to its first violation.

    Args:
        observers: Observers in addition to the checkers.
    """
    nemesis, suite = Nemesis(schedule), suite_of(schedule)
    swarm = make_swarm(schedule, nemesis)
    swarm.hooks.extend([*suite.observers, *observers])
    rounds = schedule.duration_s / schedule.compute_s[0]
    most = int(
        EVENTS_LEAST
        + schedule.everybody * (500 * schedule.duration_s + 40 * schedule.everybody * rounds)
    )
    swarm.dispatcher.handled_max = min(most, swarm.dispatcher.handled_max)
    violation: ViolationRecord | None = None
    found: tuple[int, float, float, dict[str, int]] | None = None  # state before the last round
    lied_to = 0
    try:
        nemesis.begin(swarm)
        swarm.run_for(schedule.active_s)
        nemesis.end(swarm)
        suite.settle(swarm)
        since_s, begun = swarm.now, _reached(schedule, swarm)
        swarm.run_for(max(0.0, schedule.duration_s - swarm.now))
        while (
            _reached(schedule, swarm) < schedule.rounds_min
            and swarm.now < LONGER * schedule.duration_s
        ):
            swarm.run_for(SLICE_S)
        suite.close()
        judge_pace(schedule, swarm, since_s, begun)
        found = _state(schedule, swarm)
        if isinstance(suite, CheckerSuite):
            swarm.hooks.remove(suite)  # the attack in the last round forks the history
            at_the_end = [each for each in suite.checkers if isinstance(each, END_OF_RUN_CHECKERS)]
            swarm.hooks.extend(at_the_end)
            lied_to = play_end(swarm, suite.find(IdenticalFinalStates))
            play_gossip_end(swarm, suite.find(AllPeersEnd))
    except Exception as error:  # noqa: BLE001
        # An exception in a core is a violation, and must not end the search.
        found_by = as_violation(swarm, error)
        violation = ViolationRecord(
            found_by.invariant, found_by.peer, found_by.now_s, found_by.text
        )
    rounds, simulated_s, left, reports = found or _state(schedule, swarm)
    return SimulationResult(
        schedule,
        violation,
        swarm.trace_hash,
        rounds,
        simulated_s,
        dict(nemesis.totals(swarm)),
        len(nemesis.network.cuts_seen),
        {**swarm.counts, "delivered": swarm.dispatcher.handled, "lied_to_at_last": lied_to},
        reports,
        suite.judged(),
        suite.judged_by(),
        left,
    )


def suite_of(schedule: Schedule) -> CheckerSuite | PipelineSuite:
    """Return the suite with all checkers of a run."""
    excused = conditions(schedule)
    if schedule.stages:
        return pipeline_suite(schedule.members, schedule.micro_batches, excused)
    return CheckerSuite(every_checker(excused))


def _state(schedule: Schedule, swarm: Swarm[Peer]) -> tuple[int, float, float, dict[str, int]]:
    """Return ``rounds``, ``simulated_s``, ``left`` and ``reports`` of the result."""
    reports = Counter(report.event for life in swarm.lives for _, report in life.reports)
    return _reached(schedule, swarm), swarm.now, _left(swarm), dict(reports)


def judge_pace(schedule: Schedule, swarm: Swarm[Peer], since_s: float, begun: int) -> None:
    """L2: once the swarm has settled, undisturbed peers advance as fast as they compute. In
    addition to the compute time, a round may take the time of the rule, of some round trips, and of
    the rest of a probe.

    Args:
        since_s: Time at which the swarm had settled, in seconds.
        begun: Round that half of the peers had reached at this time.
    """
    running = {
        peer: core
        for peer, host in swarm.hosts.items()
        if host.running and (core := host.inspection) is not None
    }
    if not running or not all(rule_has_enough(core, running) for core in running.values()):
        return
    round_s = schedule.compute_s[1] + schedule.rule_s + schedule.travel_s + AT_ONCE_S
    least = int((swarm.now - since_s) / round_s) - 1
    done = _reached(schedule, swarm) - begun
    if done < least:
        text = (
            f"half of the peers have done {done} rounds since {since_s:.2f} s, when all had "
            f"settled; {least} at least"
        )
        raise Violation("L2", min(swarm.hosts), swarm.now, text)


def _reached(schedule: Schedule, swarm: Swarm[Peer]) -> int:
    """Return the round that half of the running peers have reached, or half of all peers if no peer
    runs. Peers that a false state has sent far ahead are left out, unless all peers are far
    ahead."""
    most = swarm.now / schedule.compute_s[0] + 1
    running = [host for host in swarm.hosts.values() if host.running]
    rounds = [host.core.rounds.round_id for host in running or swarm.hosts.values()]
    return median_high(
        [round_id for round_id in rounds if round_id <= most]
        or [round_id % FAR_ROUNDS for round_id in rounds]
    )


def _left(swarm: Swarm[Peer]) -> float:
    """Return the value of ``SimulationResult.left``; NaN if no peer runs."""
    trainers = [trainer for peer, trainer in toys_of(swarm).items() if swarm.hosts[peer].running]
    if not trainers:
        return nan
    started_at = sqrt(float((trainers[0].target.astype(float) ** 2).mean()))
    return median_high([trainer.distance for trainer in trainers]) / started_at


def _trickling(schedule: Schedule) -> tuple[PeerId, ...]:
    """Return the peers with payloads that trickle or cannot be read. Return none if the schedule
    has other faults too, or if at least half of the peers are affected."""
    trickles = [fault for fault in schedule.faults if isinstance(fault, Trickle | Unreadable)]
    peers = {peer for fault in trickles for peer in fault.peers}
    alone = len(trickles) == len(schedule.faults) and not schedule.joins_s
    return tuple(peers) if alone and 2 * len(peers) < schedule.peers else ()


def _may_fork(fault: Fault) -> bool:
    """Whether the fault may prevent a commit from reaching some peers. Duplication does not."""
    return isinstance(fault, NetworkFault) and not isinstance(fault, Duplicate)


def _may_part(schedule: Schedule) -> bool:
    """Whether one of two peers may continue alone while a result of the other peer is in transit.
    This may happen if the sender hangs: the link may time out before it has carried a large result,
    and two peers need no majority."""
    stops = FaultPlan(schedule.faults).of_kind(Hang)
    return bool(stops) and schedule.bytes_per_s > 0 and schedule.peers < 3


def conditions(schedule: Schedule) -> RunConditions:
    """Return the conditions of a schedule's run, which excuse some violations. Flipped bits excuse
    no false claim, because a checksum detects all of them."""
    plan = FaultPlan(schedule.faults)
    attacks = plan.of_kind(NodeAttack)
    answering = plan.of_kind(ActivationFault)
    equivocating = [peer for fault in attacks for peer in fault.peers]
    rewriting = [peer for fault in plan.of_kind(Rewritten) for peer in fault.peers]
    return RunConditions.of(
        (*plan.attackers, *equivocating, *rewriting),
        forks=_may_part(schedule) or any(map(_may_fork, plan)),
        equivocating=equivocating,
        attacks=[fault.lie for fault in attacks],
        loses_votes=any(isinstance(fault, VOTE_LOSING_FAULTS) for fault in plan),
        trickling=_trickling(schedule),
        faultless=not schedule.faults and not schedule.joins_s,
        untolerated=bool(plan.attackers) and schedule.aggregator == "mean" and schedule.f > 0,
        stage_attackers=[peer for fault in answering for peer in fault.peers],
        tampering=any(fault.lies_about != "audit" for fault in answering),
    )


def make_swarm(schedule: Schedule, nemesis: Nemesis) -> Swarm[Peer]:
    """Return the swarm of a schedule, before its first event.

    Raises: ConfigError: There is no such topology or rule.
    """
    topology = CachedTopology(topologies.load(schedule.weighted_topology))
    attackers = tolerated(schedule)
    rule = rule_of(schedule.aggregator, attackers)
    settings = CoreSettings(
        b"simulate",
        b"lineage!",
        seed=schedule.seed,
        peers=tuple(range(schedule.peers)),
        room=schedule.everybody if schedule.joins_s else 0,
        f=attackers,
        updates_for=rule.updates_for,
        batch_policy=schedule.batch_policy,
        cross_shard=rule.cross_shard and topology.rolling and len(schedule.shards) > 1,
        local_steps=schedule.local_steps > 1,
        slices="equal" if schedule.overlap and schedule.local_steps > 1 else "speed",
        membership=MembershipSettings(
            probe_interval_s=schedule.probe_interval_s, link_timeout_s=schedule.link_timeout_s
        ),
        rounds=RoundSettings(
            quorum=schedule.quorum,
            round_timeout_s=schedule.round_timeout_s,
            start_timeout_s=schedule.start_timeout_s,
            min_peers=schedule.min_peers,
            patience_s=schedule.patience_s,
            commit_log=schedule.commit_log,
        ),
        trust=TRUST,
        pipeline=PipelineSettings(schedule.members, schedule.micro_batches, audit=schedule.audit)
        if schedule.stages
        else None,
    )
    kind = _SeedingStagePeer if schedule.stages else _SeedingPeer
    folder: Folder = {}
    saved: dict[int, tuple[int, bytes]] = {}  # stage -> checkpoint
    made: list[Swarm[Peer]] = []

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        control, bulk = address(peer, 0 if schedule.stable_addresses else incarnation)
        known = replace(settings, had_round=max([had_round(swarm) for swarm in made], default=0))
        return kind(folder, peer, incarnation, known, topology, control=control, bulk=bulk)

    plan = FaultPlan(schedule.faults)
    late = {fault.peer: fault.at_s for fault in plan.of_kind(LateTrainer)}

    def make_trainer(peer: PeerId, incarnation: int) -> ToyTrainer:
        stage = next((at for at, members in enumerate(schedule.members) if peer in members), 0)
        kind = (
            partial(
                StageTrainer,
                stage=stage,
                stages=len(schedule.stages),
                micro_batches=schedule.micro_batches,
                lies=plan.activation_lies(peer),
                saved=saved,
            )
            if schedule.stages
            else ToyTrainer
        )
        return kind(
            peer,
            schedule.seed,
            incarnation=incarnation,
            sizes=schedule.shards,
            pace=ToyPace(
                schedule.compute_s,
                schedule.rule_s,
                nemesis.slowness(peer),
                prepare_s=schedule.prepare_s if incarnation else late.get(peer, PREPARE_S),
            ),
            lie=nemesis.lies.get(peer),
            rule=ToyRule(
                rule.aggregate, nemesis.second_reading if plan.of_kind(Rewritten) else None
            ),
            samples_total=None if schedule.stages else SAMPLES,
            rates=RATES if topology.rolling else (),
            initial=peer + PEERS_MAX * incarnation if schedule.apart else None,
            piece_bytes=schedule.piece_bytes,
            local_steps=schedule.local_steps,
            overlap=schedule.overlap,
            fragments=schedule.fragments,
            turns=OptimizerTurns(schedule.further_every),
        )

    link = LinkModel(
        schedule.delay_s, bytes_per_s=schedule.bytes_per_s or None, queue_s=schedule.queue_s
    )
    network = Network(
        link, heartbeat_s=(schedule.link_timeout_s, schedule.link_timeout_s + HEARTBEAT_S)
    )
    swarm = Swarm(
        make_core,
        schedule.peers,
        schedule.seed,
        network,
        make_trainer=make_trainer,
        progress_s=schedule.probe_interval_s,  # the interval of a real node
        stable_addresses=schedule.stable_addresses,
        absent=schedule.absent,
    )
    swarm.copies_per_s = schedule.copies_per_s
    swarm.travel_s = schedule.travel_s
    made.append(swarm)
    return swarm


def had_round(swarm: Swarm[Peer]) -> int:
    """Return the furthest round that a peer has reported. In a real run, peers record it in the
    run's folder."""
    rounds = [
        report.fields["round"]
        for life in swarm.lives
        for _, report in life.reports
        if report.event == "round"
    ]
    return max(rounds, default=0)


def tolerated(schedule: Schedule) -> int:
    """Return the f of a schedule. With the mean it is ``schedule.f``. With any other rule it is at
    least 1, at least the number of attackers on updates, and at least the number of attackers on
    states."""
    plan = FaultPlan(schedule.faults)
    lies = [fault for fault in plan.of_kind(NodeAttack) if fault.lie in STATE_ATTACKS]
    donors = {peer for fault in lies for peer in fault.peers}
    if schedule.aggregator == "mean":
        return schedule.f
    return max(schedule.f, 1, len(plan.attackers), len(donors))


class RunRule(NamedTuple):
    """Rule of a run.

    Attributes:
        updates_for: Number of updates that the rule needs at least if 0, 1, ..., f of them are
            Byzantine.
        cross_shard: Whether the servers of shards can run the rule together.
    """

    aggregate: Aggregator
    updates_for: tuple[int, ...]
    cross_shard: bool


def rule_of(aggregator: str, f: int) -> RunRule:
    """Return the rule with this name, for a run with ``f`` Byzantine peers. The mean needs no
    torch. All other rules are run by the code of a real node.

    Raises: ConfigError: There is no such rule, its options cover fewer Byzantine peers, or it needs
    an input that simulated trainers lack.
    """
    if aggregator == "mean":
        return RunRule(mean, (1,), False)
    import torch

    from gossip import aggregators

    # The vectors have only eight elements, and the threads of parallel searches would compete for
    # processors.
    torch.set_num_threads(1)
    rule = aggregators.load(aggregator)
    if rule.needs_trainer:
        raise ConfigError(
            f"{rule.name} requests the loss from the trainer, but simulated trainers have none",
            "gossip demo runs it",
        )
    if rule.needs_center:
        raise ConfigError(
            f"{rule.name} needs the peer's own update, which simulated trainers do not have",
            "gossip demo --topology random-k runs it",
        )
    needs = tuple([rule.at_least(fewer) for fewer in range(f + 1)])
    rule.check(f, needs[f])
    return RunRule(RuleRunner(rule, centered=False).run, needs, rule.cross_shard)


RunFunction = Callable[[Schedule], SimulationResult]
"""Type of ``run``, for functions that are passed in place of it."""
