"""Parts that all checkers share: the violation that they raise, and the conditions of the run that
they judge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from gossip.core import Committed, CoreSettings, PeerId, Report, Restore
from gossip.faults import CLAIM_ATTACKS, STATE_ATTACKS
from gossip_lab.simulation.world import AnySwarm, SimProcess

from .disturbances import Disturbances
from .hearing import Hearing
from .reach import Reach
from .watching import Watching, on_effect

Record = TypeVar("Record")

Life = tuple[PeerId, int]
"""Process of a peer: the peer and its incarnation."""


class Violation(AssertionError):
    """An invariant does not hold.

    Attributes:
        invariant: Its number, ``"S1"`` .. ``"S33"``, ``"L1"`` .. ``"L12"``.
        peer: The peer at which it is broken.
        now_s: Virtual time, seconds.
        text: The actual and the expected facts.
    """

    def __init__(self, invariant: str, peer: PeerId, now_s: float, text: str) -> None:
        # args mirror the signature: violations are pickled between processes
        super().__init__(invariant, peer, now_s, text)
        self.invariant, self.peer, self.now_s, self.text = invariant, peer, now_s, text

    def __str__(self) -> str:
        return f"{self.invariant} at {self.now_s:.6f} s, peer {self.peer}: {self.text}"


ROUNDS_KEPT = 64

REFUSALS = ("refused_result", "bad_commit")
"""Events by which a peer reports that it rejects a result."""

FORKING_ATTACKS = frozenset({"two_results", "forged_departures"})
"""Attacks by which honest peers apply two results of one round for a while. If a server sends
each peer a different result, only the hashes of the next round reveal it.
Without keys nothing prevents a peer from forging the farewells of others, which shrink the roster
until half of it is a majority."""

SPLITTING_ATTACKS = frozenset(
    (
        *(
            "wrong_results",
            "scaled_results",
            "slightly_wrong_results",
            "broken_results",
            "nan_results",
        ),
        *("kept_results", "strange_roster", "wrong_decisions"),
        *CLAIM_ATTACKS,
    )
)
"""Attacks in which the Byzantine peer holds another result than all others, which have rejected its
own. Restarted peers have also lost their results: of five peers, two restarted ones and the
Byzantine peer form a majority. A peer that returns into that round accepts the false result if the
attacker sends it unchanged."""

INVENTING_ATTACKS = frozenset({"forged_incarnations"})
"""Attacks by which honest peers record incarnations that never existed: those of peers from which
they have received nothing yet, and refutations, which the peer then outbids."""

FATAL_ATTACKS = frozenset({"false_deaths"})
"""Attacks that make honest peers record as dead a peer from which they have received nothing. Until
it sends something, a single claim that it died before they joined is accepted."""

QUIET_ATTACKS = frozenset(
    (
        *("sign_flip", "nan", "huge", "two_updates"),
        *(
            "wrong_results",
            "scaled_results",
            "slightly_wrong_results",
            "broken_results",
            "nan_results",
        ),
        *("kept_results", "two_results", "strange_roster", "usurper"),
        *CLAIM_ATTACKS,
        *STATE_ATTACKS,
        *("wrong_measures", "broken_measures", "kept_measures", "wrong_decisions"),
        "strangers",
    )
)
"""Attacks that do not concern the health of a peer: they concern updates, results and states. All
other attacks may make an honest peer accuse another, or close a connection to it."""

TIMELY_ATTACKS = frozenset(
    ["sign_flip", "nan", "huge", "two_updates", "strangers", *STATE_ATTACKS]
) - {"far_states"}
"""Attacks that do not delay a round: an update is accepted or rejected, and a state is requested
outside of the rounds."""

FALSE_STATES = frozenset({"wrong_states", "swapped_states", "far_states"})
"""Attacks that send a wrong state to a peer that restores from a Byzantine donor: if f = 0, or if
fewer than f + 1 peers have attested the state. The peer, and those that restore from it, have other
parameters than the rest."""


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Conditions of a run that determine the requirements on its peers.

    Attributes:
        attackers: Byzantine peers; at least their updates are false.
        forks: A commit may reach some peers and not others (loss, cuts, resets, delays of the order
            of a round timeout), so that two branches exist for a while. Otherwise at most one
            digest is ever applied for a round.
        equivocating: Peers whose claims differ from the state of their node, so that their own
            state is compared with no other.
        lies: Names of these attacks (from ``gossip.inject.message_attacks``). Each attack excuses
            exactly the facts that the sets above state.
        forgetting: Some peers are killed and restarted, and lose their votes. Or their trainer
            hangs: they have no update of their own to compare a result with, and are skipped while
            they hold a result.
        faultless: No fault at all is injected.
        trickling: Peers with a slow or blocked path for payloads, if this is the only fault of the
            run; else empty.
        answering_falsely: Members of a pipeline stage with false micro-batches, or false audits of
            others' micro-batches.
        tampering: Some of these send wrong activations or gradients.
        untolerated: The rule tolerates fewer attackers than the run has, so a majority may reject
            the result of an honest server.
    """

    attackers: frozenset[PeerId] = frozenset()
    forks: bool = False
    equivocating: frozenset[PeerId] = frozenset()
    lies: frozenset[str] = frozenset()
    forgetting: bool = False
    untolerated: bool = False
    faultless: bool = False
    trickling: frozenset[PeerId] = frozenset()
    answering_falsely: frozenset[PeerId] = frozenset()
    tampering: bool = False

    @staticmethod
    def of(
        attackers: Collection[PeerId] = (), **conditions: bool | Collection[PeerId | str]
    ) -> RunConditions:
        """Create conditions. Some attacks fork the history like a network that loses commits.
        ``conditions``: the other attributes, by name."""
        values: dict[str, Any] = {
            name: value if isinstance(value, bool) else frozenset(value)
            for name, value in conditions.items()
        }
        found = RunConditions(frozenset(attackers), **values)
        return replace(found, forks=found.forks or found.forking_lies)

    @property
    def forking_lies(self) -> bool:
        """Whether an attack may fork the history. The fork may appear long after the attack, as may
        a result that one peer has and all others reject."""
        if self.untolerated:
            return True
        return not FORKING_ATTACKS.isdisjoint(self.lies) or (
            self.forgetting and self.splitting_lies
        )

    @property
    def splitting_lies(self) -> bool:
        """Whether a Byzantine peer may hold a result that all others reject."""
        return not SPLITTING_ATTACKS.isdisjoint(self.lies)

    @property
    def defaming(self) -> bool:
        """Whether an attack may make an honest peer accuse another."""
        return not QUIET_ATTACKS.issuperset(self.lies)

    @property
    def delaying(self) -> bool:
        """Whether an attack makes rounds take longer."""
        return self.untolerated or not TIMELY_ATTACKS.issuperset(self.lies)

    @property
    def invented_lives(self) -> bool:
        return not INVENTING_ATTACKS.isdisjoint(self.lies)

    @property
    def unfounded_deaths(self) -> bool:
        return not FATAL_ATTACKS.isdisjoint(self.lies)

    @property
    def false_states(self) -> bool:
        return not FALSE_STATES.isdisjoint(self.lies)


class TaintedStates(Watching):
    """Peers that hold the state of a Byzantine peer: they restored it from the attacker, or from a
    peer that had done so, and have restored no other since.

    A peer is not among them if more than f peers have attested its state, and at most f peers are
    Byzantine or misled.
    """

    def __init__(self, circumstances: RunConditions) -> None:
        self.circumstances = circumstances
        self._peers: dict[PeerId, None] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._peers

    @property
    def lying(self) -> set[PeerId]:
        """Peers with an unreliable state."""
        return {*self.circumstances.equivocating, *self._peers}

    def begin_life(self) -> None:
        self._peers.pop(self.peer, None)

    @on_effect
    def record(self, restore: Restore) -> None:
        if not self.circumstances.false_states:
            return
        self._peers.pop(self.peer, None)
        lying, recovery = self.lying, self.core.recovery
        if recovery.donor in lying and (
            recovery.need == 1
            or len(lying) >= recovery.need
            or has_unattested_state(self.swarm, self.peer)
        ):
            self._peers[self.peer] = None


class Refusals(Watching):
    """Results that each peer has rejected in its present incarnation, since it last restored a
    state, by its reports."""

    def senders(
        self, peer: PeerId, place: tuple[int, int], kinds: Collection[str] = REFUSALS
    ) -> set[PeerId]:
        """Return the peers with a result of a round and shard that ``peer`` has rejected."""
        found: set[PeerId] = set()
        for _, report in reversed(self.swarm.hosts[peer].reports):
            if report.event == "recovering":
                break  # a peer that returns to its round has no record of them
            if report.event in kinds and place_of(report) == place:
                found.add(report.fields["from"])
        return found


class Onlookers(NamedTuple):
    """Observers that judge nothing themselves; checkers read their records."""

    disturbances: Disturbances
    hearing: Hearing
    reach: Reach
    misled: TaintedStates
    refusals: Refusals

    @staticmethod
    def create(circumstances: RunConditions | None = None) -> Onlookers:
        misled = TaintedStates(circumstances or RunConditions())
        return Onlookers(Disturbances(), Hearing(), Reach(), misled, Refusals())


class PerLife(Generic[Record]):
    """An attribute of a checker with one value for each incarnation of each peer. It reads and sets
    the value of the present peer. ``make`` creates the value when an incarnation first needs it:
    None by default."""

    def __init__(self, make: Callable[[], Record] = lambda: None) -> None:  # type: ignore[return-value, assignment]
        self.make = make

    def __get__(self, checker: Checker, owner: type[Checker]) -> Record:
        records = checker.of_lives[checker.peer]
        if self not in records:
            records[self] = self.make()
        record: Record = records[self]
        return record

    def __set__(self, checker: Checker, record: Record) -> None:
        checker.of_lives[checker.peer][self] = record


class Checker(Watching):
    """An observer that raises ``Violation`` as soon as its invariant is broken.

    Attributes:
        judged: Number of judgements that could have failed. A checker without judgements proves
            nothing.
    """

    invariant: ClassVar[str]
    kinds: ClassVar[list[type[Checker]]] = []
    """All classes with their own invariant, in the order of their definition."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "invariant" in vars(cls):
            cls.kinds.append(cls)

    def __init__(
        self, circumstances: RunConditions | None = None, onlookers: Onlookers | None = None
    ) -> None:
        self.circumstances = circumstances or RunConditions()
        self.onlookers = onlookers or Onlookers.create(self.circumstances)
        self.disturbances, self.hearing, self.reach = self.onlookers[:3]
        self.misled, self.refusals = self.onlookers[3:]
        self.judged = 0
        self.of_lives: dict[PeerId, dict[PerLife[Any], Any]] = defaultdict(dict)
        self._of_lives: list[tuple[dict[PeerId, Any], Callable[[], Any] | None]] = []
        self.make_records()

    def make_records(self) -> None:
        """Create the records that the checker keeps of a run."""

    def per_life(self, make: Callable[[], Record] | None = None) -> dict[PeerId, Record]:
        """Return records of each peer's present incarnation. ``make`` creates one when an
        incarnation begins; without it an incarnation begins with none."""
        records: dict[PeerId, Record] = {}
        self._of_lives.append((records, make))
        return records

    def begin_life(self) -> None:
        self.of_lives[self.peer] = {}
        for records, make in self._of_lives:
            if make is None:
                records.pop(self.peer, None)
            else:
                records[self.peer] = make()

    def begin_calm(self) -> None:
        """Handle the start of the calm phase: every fault is over, and all peers that return were
        started."""

    def settled(self) -> None:
        """Judge, in the calm phase, that everything due has happened."""

    def finish(self) -> None:
        """Handle the end of the run."""

    @property
    def commits(self) -> list[Committed]:
        """Commits of the round that the peer applies, one of each shard."""
        shards = max(1, len(self.core.rounds.shard_bytes))
        return [committed for _, committed in self.host.commits[-shards:]]

    @property
    def life(self) -> Life:
        return self.peer, self.host.incarnation

    def violated(self, text: str, peer: PeerId | None = None) -> Violation:
        where = self.peer if peer is None else peer
        return Violation(self.invariant, where, self.now, text)

    def demand(self, holds: bool, text: str, peer: PeerId | None = None) -> None:
        """Count a judgement. Raises: Violation: It fails, at ``peer`` or else at the present
        one."""
        self.judged += 1
        if not holds:
            raise self.violated(text, peer)


def keep_latest(records: dict[Any, Any], most: int) -> None:
    """Drop the oldest record if there are more than ``most``."""
    if len(records) > most:
        del records[next(iter(records))]


def place_of(report: Report) -> tuple[int, int]:
    """Return the round and shard that a report is about."""
    return report.fields["round"], report.fields["shard"]


def last_report_at(host: SimProcess[Any], *events: str) -> float:
    """Return when a process made its last report of these events, or when it started."""
    times = (at for at, report in reversed(host.reports) if report.event in events)
    return next(times, host.started_at)


def updates_needed(
    settings: CoreSettings, roster: Iterable[PeerId], proven: Collection[PeerId]
) -> int:
    """Return the number of updates that are enough for the rule. Each peer that is proven Byzantine
    reduces the number that the rule has to tolerate by one."""
    return settings.updates_needed(settings.f - sum(1 for peer in roster if peer in proven))


def has_unattested_state(swarm: AnySwarm, peer: PeerId) -> bool:
    """Whether the peer has reported that the state that it restores is unattested."""
    for _, report in reversed(swarm.hosts[peer].reports):
        if report.event in ("recovering", "unattested_state"):
            return report.event == "unattested_state"
    return False
