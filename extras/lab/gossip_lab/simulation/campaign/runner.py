"""Plays many schedules in several processes, and sums up their results."""

from __future__ import annotations

import gc
import itertools
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from multiprocessing.synchronize import Event

from gossip.errors import ConfigError, LocalError, TooFewUpdates
from gossip.faults import FaultPlan
from gossip.interpreter import spawn_context
from gossip_lab.simulation.schedules import PEERS, ROUNDS_MIN, Schedule, generate, generate_pipeline
from gossip_lab.workers import end_with_parent

from . import play
from .play import SimulationResult

INTERRUPTIBLE_S = 0.2
BATCH = 2  # number of schedules per task of a worker: about one second
ENOUGH = 8  # a kind of fault that this many schedules have must occur
CUTS_MIN = 2  # minimum number of different partitions in a campaign
EXPECTED_REPORTS = ("suspect", "dead", "alive_again", "skip")
"""Events that must be reported in a large campaign. If one is missing, the faults were too weak to
prove anything."""
LARGE = 200  # number of schedules of a large campaign
OF_GOSSIP_ROUNDS = ("L12",)
"""Invariants that are judged only in gossip rounds."""
OF_ONE_STAGE = ("L7", "L10", "L11", "S27")
"""Invariants that generated schedules of pipelines do not test, because no peer joins or is
requested to leave, no payload trickles, and the model has no fragments."""
EVERY_CHECKER = 1000  # number of schedules after which each checker must have judged


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """Schedules to search: one for each seed from ``first`` on. The other fields replace random
    choices of the generator.

    Attributes:
        count: Number of seeds; None means unlimited.
        plan: Faults and settings of the swarm, in place of generated ones.
        pipelines: Whether to generate a pipeline for each seed. The other fields are then None.
    """

    first: int = 0
    count: int | None = None
    peers: int | None = None
    topology: str | None = None
    aggregator: str | None = None
    plan: FaultPlan | None = None
    pipelines: bool = False

    def schedule(self, seed: int) -> Schedule:
        """Return the schedule of one seed. Raises: ConfigError: The plan is not valid for a
        simulation, or the seed or the number of peers is out of range."""
        if seed < 0:
            raise ConfigError(f"seed {seed}: it must be 0 or greater")
        if self.pipelines:
            return generate_pipeline(seed)
        # These checks come first, because the generator needs a valid number of peers.
        if self.plan is not None:
            Schedule(seed).with_plan(replace(self.plan, faults=()))
        if self.peers is not None:
            replace(Schedule(seed), peers=self.peers).checked()
        if self.plan is None:
            return generate(
                seed, peers=self.peers, topology=self.topology, aggregator=self.aggregator
            ).checked()
        world = self.plan.simulate
        # The generator would choose a rule for generated attackers. The plan has attackers of its
        # own, so a rule is fixed here.
        aggregator = self.aggregator or world.get("aggregator") or Schedule(seed).aggregator
        drawn = generate(
            seed,
            peers=self.peers or world.get("peers"),
            topology=self.topology or world.get("topology"),
            aggregator=aggregator,
        )
        given = {
            "peers": drawn.peers,
            "topology": drawn.topology,
            "aggregator": aggregator,
            "seed": seed,
        }
        return replace(drawn, faults=()).with_plan(replace(self.plan, simulate={**world, **given}))

    def check_rule(self, seed: int) -> None:
        """Check the requested rule, if all schedules have the same rule.

        Raises: ConfigError: The rule cannot tolerate the attackers of this seed's schedule, or can
        never get enough updates.
        """
        schedule = self.schedule(seed)
        if schedule.aggregator == self.aggregator or self.plan is not None:
            f = play.tolerated(schedule)
            needed = play.rule_of(schedule.aggregator, f).updates_for[f]
            most = self.peers or (schedule.peers if self.plan is not None else max(PEERS))
            # A single schedule is not checked, because shrinking may have removed peers.
            if needed > most and self.count != 1:
                raise TooFewUpdates(schedule.aggregator, f, needed, most)

    @property
    def seeds(self) -> Iterator[int]:
        return iter(
            itertools.count(self.first)
            if self.count is None
            else range(self.first, self.first + self.count)
        )


def search(question: SearchQuery, jobs: int) -> Iterator[SimulationResult]:
    """Play the schedules and yield their results, in no particular order.

    Args:
        jobs: Number of processes; 1 means that everything runs in this process.
        Raises: LocalError: A process was killed.
    """
    if jobs <= 1:
        for seed in question.seeds:
            yield play.run(question.schedule(seed))
        return
    seeds = question.seeds
    with ExitStack() as stack:
        context = stack.enter_context(spawn_context())
        over = context.Event()
        pool = stack.enter_context(
            ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin_work, initargs=(over,))
        )
        # A dictionary rather than a set, so that the order of the results does not depend on
        # addresses in memory.
        pending: dict[Future[list[SimulationResult]], bool] = {}
        try:
            while True:
                while len(pending) < 2 * jobs and (batch := list(itertools.islice(seeds, BATCH))):
                    with _uninterrupted():
                        future = pool.submit(_play, question, batch)
                    pending[future] = True
                if not pending:
                    return
                # Interrupts are blocked here: one could leave a lock of the pool locked, and the
                # command would never end.
                with _uninterrupted():
                    wait(pending, INTERRUPTIBLE_S, return_when=FIRST_COMPLETED)
                    finished = [future for future in pending if future.done()]
                    outcomes = [outcome for future in finished for outcome in future.result()]
                    for future in finished:
                        del pending[future]
                yield from outcomes
        except BrokenProcessPool as error:
            raise LocalError(
                f"a process of the search was killed, perhaps for lack of memory ({jobs} jobs)"
            ) from error
        finally:
            over.set()  # workers then skip the rest of their task
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block interrupts, because the start of a process must not be interrupted. The process
    inherits the mask, so only the parent receives Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _SearchWorker:
    """State of a worker process of a search."""

    over: Event | None = None


def _begin_work(over: Event) -> None:
    _SearchWorker.over = over
    end_with_parent()
    # A run creates many objects but almost no cycles. Garbage collection would take a twentieth of
    # the time.
    gc.freeze()
    gc.disable()


def _play(question: SearchQuery, seeds: list[int]) -> list[SimulationResult]:
    played = []
    for seed in seeds:
        if _SearchWorker.over is not None and _SearchWorker.over.is_set():
            break
        played.append(play.run(question.schedule(seed)))
    gc.collect()  # swarms do contain cycles
    return played


@dataclass(slots=True)
class CampaignTally:
    """Totals of a campaign so far."""

    schedules: int = 0
    simulated_s: float = 0.0
    rounds: list[int] = field(default_factory=list)  # of each schedule without violation
    violations: list[SimulationResult] = field(default_factory=list)
    # Kind of fault -> number of schedules that include it.
    drawn: Counter[str] = field(default_factory=Counter)
    # Number of schedules in which it took place.
    occurred: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)  # total number of times
    counts: Counter[str] = field(default_factory=Counter)
    reports: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)
    judged_by: Counter[str] = field(default_factory=Counter)  # checker -> number of judgements
    topologies: Counter[str] = field(default_factory=Counter)
    pipelines: int = 0  # number of schedules with a pipeline
    aggregators: Counter[str] = field(default_factory=Counter)
    # ``SimulationResult.left`` of each schedule in which a peer runs at the end.
    left: list[float] = field(default_factory=list)
    cuts: int = 0
    # Number of kinds of fault that took place in a schedule -> number of schedules.
    kinds: Counter[int] = field(default_factory=Counter)

    def add(self, outcome: SimulationResult) -> None:
        from gossip_lab.simulation.world import name_of

        self.schedules += 1
        self.simulated_s += outcome.simulated_s
        if outcome.violation is not None:
            self.violations.append(outcome)
        else:
            self.rounds.append(outcome.rounds)
            if isfinite(outcome.left):
                self.left.append(outcome.left)
            self.kinds[len(outcome.struck)] += 1
            self.drawn.update({name_of(fault): 1 for fault in outcome.schedule.faults}.keys())
        self.occurred.update(outcome.struck.keys())
        for name in ("struck", "counts", "reports", "judged", "judged_by"):
            getattr(self, name).update(getattr(outcome, name))
        self.topologies[outcome.schedule.topology.split(":")[0]] += 1
        self.aggregators[outcome.schedule.aggregator] += 1
        self.pipelines += bool(outcome.schedule.stages)
        self.cuts += outcome.cuts

    def idle(self, drawn_min: int) -> list[str]:
        """Return the kinds of fault that at least ``drawn_min`` schedules include but that never
        took place."""
        return [
            kind
            for kind in sorted(self.drawn)
            if self.drawn[kind] >= drawn_min and not self.occurred[kind]
        ]

    @property
    def long_share(self) -> float:
        """Among the schedules without violation, the share that reached ``ROUNDS_MIN`` rounds."""
        return sum(rounds >= ROUNDS_MIN for rounds in self.rounds) / max(1, len(self.rounds))

    @property
    def vacuous(self) -> list[str]:
        """Texts about tests that this campaign should have performed but did not."""
        found = [
            f"{kind} was drawn in {self.drawn[kind]} schedules but never took place"
            for kind in self.idle(ENOUGH)
        ]
        if (
            self.drawn["partition"] + self.drawn["partition_one_way"] >= ENOUGH
            and self.cuts < CUTS_MIN
        ):
            found.append(f"the network was cut in {self.cuts} different ways")
        if self.rounds and not self.judged_by.get("RuleAvailability", 1):
            found.append(f"{' and '.join(sorted(self.aggregators))} never had enough updates")
        if len(self.rounds) >= LARGE and self.drawn:
            found += [
                f"no peer ever reported {event!r}"
                for event in EXPECTED_REPORTS
                if not self.reports[event]
            ]
            excused: set[str] = set()
            if not self.topologies.keys() - {"rolling"}:
                excused.update(OF_GOSSIP_ROUNDS)
            if self.pipelines == self.schedules:
                excused.update(OF_ONE_STAGE)
            found += [
                f"{invariant} was never judged"
                for invariant in sorted(self.judged)
                if not self.judged[invariant] and invariant not in excused
            ]
        if (
            len(self.rounds) >= EVERY_CHECKER
            and self.drawn
            and {"rolling", "random-k"} <= self.topologies.keys()
        ):
            found += [
                f"{checker} has never judged"
                for checker in sorted(self.judged_by)
                if not self.judged_by[checker]
            ]
        return found
