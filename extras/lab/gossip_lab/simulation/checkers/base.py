"""Common parts of all checkers: the violation, the conditions of a run, and the base class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from gossip.core import Committed, Contributed, CoreSettings, PeerId, Report, Restore
from gossip.faults import RESULT_ATTACKS, STATE_ATTACKS
from gossip_lab.simulation.world import SimProcess

from .disturbances import Disturbances
from .event_observer import (
    EventObserver,
    after_event as after_event,
    around_event as around_event,
    on_effect as on_effect,
    on_event as on_event,
    on_report as on_report,
)
from .probe_evidence import ProbeEvidence
from .reachability import Reachability

Record = TypeVar("Record")
Store = TypeVar("Store", bound="dict[PeerId, Any]")

IncarnationId = tuple[PeerId, int]
"""One process of a peer, as (peer, incarnation)."""


class Violation(AssertionError):
    """An invariant is broken.

    Attributes:
        invariant: Number of the invariant: ``"S1"`` to ``"S33"``, or ``"L1"`` to ``"L12"``.
        peer: Peer at which the invariant is broken.
        now_s: Virtual time, seconds.
        text: What happened, and what was expected.
    """

    def __init__(self, invariant: str, peer: PeerId, now_s: float, text: str) -> None:
        # ``args`` equals the arguments, so that a violation can be pickled.
        super().__init__(invariant, peer, now_s, text)
        self.invariant, self.peer, self.now_s, self.text = invariant, peer, now_s, text

    def __str__(self) -> str:
        return f"{self.invariant} at {self.now_s:.6f} s, peer {self.peer}: {self.text}"


ROUNDS_KEPT = 64

REFUSALS = ("refused_result", "bad_commit")
"""Events with which a peer reports that it rejects a result."""

FORKING_ATTACKS = frozenset({"two_results", "forged_departures"})
"""Attacks after which honest peers apply two results of one round for a while. If a server sends
different results to different peers, only the hashes of the next round reveal it. Without keys, a
peer can forge the leave messages of other peers. They shrink the roster until half of the peers are
a majority."""

SPLITTING_ATTACKS = frozenset({*RESULT_ATTACKS, "wrong_decisions"}) - {"two_results"}
"""Attacks after which the Byzantine peer stores a result that all other peers have rejected.
Restarted peers have lost the true result: of five peers, two restarted peers and the Byzantine peer
form a majority. If the attacker sends its false result unchanged, a peer that returns to this round
accepts it."""

INVENTING_ATTACKS = frozenset({"forged_incarnations"})
"""Attacks after which honest peers record incarnations that never existed. This concerns peers from
which they have received nothing yet. It also concerns forged refutations; the true peer then has to
raise its incarnation further."""

FATAL_ATTACKS = frozenset({"false_deaths"})
"""Attacks after which honest peers record a peer as dead from which they have received nothing yet.
Before they receive a message from the peer, they accept a single claim that it died before they
joined."""

QUIET_ATTACKS = frozenset(
    (
        *("sign_flip", "nan", "huge", "two_updates", "usurper"),
        *RESULT_ATTACKS,
        *STATE_ATTACKS,
        *("wrong_measures", "broken_measures", "kept_measures", "wrong_decisions"),
        "strangers",
    )
)
"""Attacks on updates, results and states. All other attacks may make an honest peer accuse another
honest peer, or close a connection to it."""

TIMELY_ATTACKS = frozenset(
    ["sign_flip", "nan", "huge", "two_updates", "strangers", *STATE_ATTACKS]
) - {"far_states"}
"""Attacks that do not delay a round: the server accepts or rejects a false update at once, and
states are requested outside of rounds."""

FALSE_STATES = frozenset({"wrong_states", "swapped_states", "far_states"})
"""Attacks in which a Byzantine donor sends a wrong state to a restoring peer. They succeed if f =
0, or if fewer than f + 1 peers have attested the state. The restoring peer, and peers that later
restore from it, then have wrong parameters."""


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Conditions of a run that determine the requirements on its peers.

    Attributes:
        attackers: Byzantine peers. Their updates are false; some also attack in other ways.
        forks: Whether a commit may reach only some peers, because of loss, cuts, resets, or delays
            of about a round timeout, so that two branches exist for a while. If neither this nor
            ``may_fork_by_attack``, at most one digest is ever applied for a round.
        equivocating: Peers that send other claims than the state of their core implies. So their
            own state is not compared with that of other peers.
        attacks: Names of the attacks of ``equivocating`` (from
            ``gossip.inject.message_attacks``). An attack excuses only what the sets of attacks
            above describe.
        loses_votes: Whether some peers are killed and restarted, and so lose their votes, or have a
            trainer that hangs. With such a trainer, a peer has no update to compare a result with,
            and is skipped although it holds a result.
        faultless: Whether no fault at all is injected.
        trickling: Peers whose payloads are slow or blocked, if this is the only fault of the run;
            else empty.
        stage_attackers: Members of a pipeline stage that send false micro-batches, or false
            audits of other peers' micro-batches.
        tampering: Whether some of ``stage_attackers`` send wrong activations or gradients.
        untolerated: Whether the rule tolerates fewer attackers than the run has, so that a majority
            may reject the result of an honest server.
    """

    attackers: frozenset[PeerId] = frozenset()
    forks: bool = False
    equivocating: frozenset[PeerId] = frozenset()
    attacks: frozenset[str] = frozenset()
    loses_votes: bool = False
    untolerated: bool = False
    faultless: bool = False
    trickling: frozenset[PeerId] = frozenset()
    stage_attackers: frozenset[PeerId] = frozenset()
    tampering: bool = False

    @staticmethod
    def of(
        attackers: Collection[PeerId] = (), **conditions: bool | Collection[PeerId | str]
    ) -> RunConditions:
        """Create conditions. ``conditions`` has the other attributes by name."""
        values: dict[str, Any] = {
            name: value if isinstance(value, bool) else frozenset(value)
            for name, value in conditions.items()
        }
        return RunConditions(frozenset(attackers), **values)

    @property
    def may_fork_by_attack(self) -> bool:
        """Whether an attack may fork the history. The fork may appear long after the attack."""
        if self.untolerated:
            return True
        return not FORKING_ATTACKS.isdisjoint(self.attacks) or (
            self.loses_votes and self.may_split_by_attack
        )

    @property
    def may_split_by_attack(self) -> bool:
        """Whether a Byzantine peer may store a result that all other peers reject."""
        return not SPLITTING_ATTACKS.isdisjoint(self.attacks)

    @property
    def allows_false_accusations(self) -> bool:
        """Whether an attack may make an honest peer accuse another honest peer."""
        return not QUIET_ATTACKS.issuperset(self.attacks)

    @property
    def allows_delays(self) -> bool:
        """Whether an attack makes rounds take longer."""
        return self.untolerated or not TIMELY_ATTACKS.issuperset(self.attacks)

    @property
    def invented_incarnations(self) -> bool:
        return not INVENTING_ATTACKS.isdisjoint(self.attacks)

    @property
    def unfounded_deaths(self) -> bool:
        return not FATAL_ATTACKS.isdisjoint(self.attacks)

    @property
    def false_states(self) -> bool:
        return not FALSE_STATES.isdisjoint(self.attacks)


class TaintedStates(EventObserver):
    """Peers with a tainted state: they have restored the state of a Byzantine peer, directly or
    from another tainted peer, and have not restored a state since.

    A restored state is not tainted if more than f peers have attested it, and at most f peers are
    Byzantine or tainted.
    """

    def __init__(self, conditions: RunConditions) -> None:
        self.conditions = conditions
        self._peers: dict[PeerId, None] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._peers

    @property
    def unreliable(self) -> set[PeerId]:
        """Byzantine and tainted peers, whose states are unreliable."""
        return {*self.conditions.equivocating, *self._peers}

    def begin_incarnation(self) -> None:
        self._peers.pop(self.peer, None)

    @on_effect
    def record(self, restore: Restore) -> None:
        if not self.conditions.false_states:
            return
        self._peers.pop(self.peer, None)
        lying, recovery = self.unreliable, self.core.recovery
        if recovery.donor in lying and (
            recovery.need == 1 or len(lying) >= recovery.need or has_unattested_state(self.host)
        ):
            self._peers[self.peer] = None


class Contributions(EventObserver):
    """Updates that the trainers have contributed to the latest rounds, of all incarnations."""

    def __init__(self) -> None:
        self._rounds: dict[PeerId, dict[int, list[Contributed]]] = defaultdict(dict)

    @on_event
    def record(self, event: Contributed) -> None:
        rounds = self._rounds[self.peer]
        rounds.setdefault(event.round_id, []).append(event)
        keep_latest(rounds, ROUNDS_KEPT)

    def of(self, peer: PeerId, round_id: int) -> list[Contributed]:
        return self._rounds[peer].get(round_id, [])


class Recorders(NamedTuple):
    """Observers that record facts for the checkers, and judge nothing themselves."""

    disturbances: Disturbances
    probe_evidence: ProbeEvidence
    reachability: Reachability
    tainted: TaintedStates
    contributions: Contributions

    @staticmethod
    def create(conditions: RunConditions | None = None) -> Recorders:
        tainted = TaintedStates(conditions or RunConditions())
        return Recorders(Disturbances(), ProbeEvidence(), Reachability(), tainted, Contributions())


class PerIncarnation(Generic[Record]):
    """Descriptor of a checker's attribute that has a separate value for each peer's present
    incarnation. It reads and sets the value of the checker's present peer. ``make`` creates the
    initial value of an incarnation, by default None."""

    def __init__(self, make: Callable[[], Record] = lambda: None) -> None:  # type: ignore[return-value, assignment]
        self.make = make

    def __get__(self, checker: Checker, owner: type[Checker]) -> Record:
        records = checker.incarnation_records[checker.peer]
        if self not in records:
            records[self] = self.make()
        record: Record = records[self]
        return record

    def __set__(self, checker: Checker, record: Record) -> None:
        checker.incarnation_records[checker.peer][self] = record


class Checker(EventObserver):
    """An observer that raises ``Violation`` as soon as its invariant is broken.

    Attributes:
        judged: Number of judgements that could have failed. A checker without judgements proves
            nothing.
        calm_at: Time at which the calm phase began, in seconds; None before.
    """

    invariant: ClassVar[str]
    kinds: ClassVar[list[type[Checker]]] = []
    """All checker classes that define ``invariant``, in the order of their definition."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "invariant" in vars(cls):
            cls.kinds.append(cls)

    def __init__(
        self, conditions: RunConditions | None = None, recorders: Recorders | None = None
    ) -> None:
        self.conditions = conditions or RunConditions()
        self.recorders = recorders or Recorders.create(self.conditions)
        self.disturbances, self.probe_evidence, self.reachability = self.recorders[:3]
        self.tainted, self.contributions = self.recorders[3:]
        self.judged = 0
        self.incarnation_records: dict[PeerId, dict[PerIncarnation[Any], Any]] = defaultdict(dict)
        self.calm_at: float | None = None
        self._stores: list[dict[PeerId, Any]] = []
        self.make_records()

    def make_records(self) -> None:
        """Create the attributes in which the checker records the run."""

    def per_incarnation(self, records: Store) -> Store:
        """Return ``records``, from which a peer's record is removed when its next incarnation
        begins."""
        self._stores.append(records)
        return records

    def begin_incarnation(self) -> None:
        self.incarnation_records[self.peer] = {}
        for records in self._stores:
            records.pop(self.peer, None)

    def begin_calm(self) -> None:
        """Handle the start of the calm phase: all faults have ended, and all returning peers have
        been started."""
        self.calm_at = self.now

    def settled(self) -> None:
        """Judge, in the calm phase, whether everything that is due has happened."""

    def finish(self) -> None:
        """Handle the end of the run."""

    @property
    def commits(self) -> list[Committed]:
        """Commits of the round that the peer is applying, one for each shard."""
        shards = max(1, len(self.core.rounds.shard_bytes))
        return [committed for _, committed in self.host.commits[-shards:]]

    @property
    def incarnation_id(self) -> IncarnationId:
        return self.peer, self.host.incarnation

    def rejected_senders(
        self, place: tuple[int, int], kinds: Collection[str] = REFUSALS
    ) -> set[PeerId]:
        """Return the senders of the results of a round and shard that the peer has rejected in its
        present incarnation, since it last restored a state."""
        found: set[PeerId] = set()
        for _, report in reversed(self.host.reports):
            if report.event == "recovering":
                break  # a restoring peer has no record of earlier rejections
            if report.event in kinds and place_of(report) == place:
                found.add(report.fields["from"])
        return found

    def violated(self, text: str, peer: PeerId | None = None) -> Violation:
        where = self.peer if peer is None else peer
        return Violation(self.invariant, where, self.now, text)

    def demand(self, holds: bool, text: str, peer: PeerId | None = None) -> None:
        """Count a judgement. Raises: Violation: ``holds`` is False. The violation names ``peer``,
        by default the present peer."""
        self.judged += 1
        if not holds:
            raise self.violated(text, peer)


def keep_latest(records: dict[Any, Any], most: int) -> None:
    """Drop the oldest record if there are more than ``most``."""
    if len(records) > most:
        del records[next(iter(records))]


def place_of(report: Report) -> tuple[int, int]:
    """Return the round and shard that a report names."""
    return report.fields["round"], report.fields["shard"]


def last_report_at(host: SimProcess[Any], *events: str) -> float:
    """Return the time of a process's last report of one of these events, or else the time of its
    start."""
    times = (at for at, report in reversed(host.reports) if report.event in events)
    return next(times, host.started_at)


def updates_needed(
    settings: CoreSettings, roster: Iterable[PeerId], proven: Collection[PeerId]
) -> int:
    """Return the number of updates that the rule needs. Each proven Byzantine peer in the roster
    reduces the f of the rule by one."""
    return settings.updates_needed(settings.f - sum(1 for peer in roster if peer in proven))


def has_unattested_state(host: SimProcess[Any]) -> bool:
    """Whether the peer has reported that the state that it is restoring is unattested."""
    for _, report in reversed(host.reports):
        if report.event in ("recovering", "unattested_state"):
            return report.event == "unattested_state"
    return False
