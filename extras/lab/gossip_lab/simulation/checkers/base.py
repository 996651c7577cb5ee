"""Parts that all checkers share: the violation that they raise, and the conditions under which they
judge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from gossip.core import CoreSettings, PeerId
from gossip.faults import CLAIM_ATTACKS, STATE_ATTACKS
from gossip_lab.simulation.world import AnySwarm

from .disturbances import Disturbances
from .hearing import Hearing
from .reach import Reach
from .watching import Watching

Record = TypeVar("Record")

Life = tuple[PeerId, int]
"""A process: a peer and its incarnation."""


class Violation(AssertionError):
    """An invariant does not hold.

    Attributes:
        invariant: its number, ``"S1"`` .. ``"S33"``, ``"L1"`` .. ``"L12"``.
        peer: where it was seen.
        now_s: virtual time, seconds.
        text: what is the case and what should be.
    """

    def __init__(self, invariant: str, peer: PeerId, now_s: float, text: str) -> None:
        # args mirror the signature: violations cross processes
        super().__init__(invariant, peer, now_s, text)
        self.invariant, self.peer, self.now_s, self.text = invariant, peer, now_s, text

    def __str__(self) -> str:
        return f"{self.invariant} at {self.now_s:.6f} s, peer {self.peer}: {self.text}"


REFUSALS = ("refused_result", "bad_commit")
"""Events by which a peer reports that it rejects a result."""

FORKING_ATTACKS = frozenset({"two_results", "forged_departures"})
"""By which honest peers come to apply two results of one round for a while. A server that tells
each another result is found out by the next round's hashes only, until results are compared. Who
forges others' farewells speaks in their name, which nothing prevents before there are keys, and
shrinks the roster until half of it is a majority."""

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
"""By which the liar holds another result than all others, who refused what it said. Peers that are
started again have forgotten what they held, too: of five, two that forgot and the liar are as good
as a majority. And whoever returns into that round takes the liar's result if the liar shows
it then as it is."""

INVENTING_ATTACKS = frozenset({"forged_incarnations"})
"""By which honest peers come to believe in lives that never were: of peers that have not spoken to
them, until they do; and in refutations that never were, which the peer then outbids."""

FATAL_ATTACKS = frozenset({"false_deaths"})
"""By which honest peers come to take for dead one that has never spoken to them: of such a one they
have others' word alone, and a single word that it died before they came is believed
until it speaks."""

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
"""By which nobody comes to believe anything of another's health: they are about updates, results
and states. All other lies may make an honest peer accuse another, or close a connection to it."""

TIMELY_ATTACKS = frozenset(
    ["sign_flip", "nan", "huge", "two_updates", "strangers", *STATE_ATTACKS]
) - {"far_states"}
"""Attacks that cost a round no time: an update is accepted or rejected, and a state is requested
beside the rounds."""

FALSE_STATES = frozenset({"wrong_states", "swapped_states", "far_states"})
"""By which one who takes a liar's word for its state gets a wrong one: where f = 0, or the word of
fewer than f + 1 was all that there was. Whoever took it over, and who took it over from that one,
holds other parameters than the rest."""


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Conditions of a run, as far as they decide what may be demanded of its peers.

    Attributes:
        attackers: Peers that lie, at least about their updates.
        forks: A commit may reach some peers and not others (loss, cuts, resets, delays of the
            order of a round timeout), so that two branches exist for a while. Otherwise at most one
            digest is ever applied for a round.
        equivocating: Peers whose node sends other claims than it holds: their own state is compared
            with no other.
        lies: Names of these claims (from ``gossip.inject.message_attacks``): each excuses what the
            sets above state, and no more.
        forgetting: Some peers are killed and restarted, and lose their promises; or their trainer
            hangs, so that they have no update of their own to compare a result with, and are passed
            over while they hold a result.
        faultless: Nothing at all is done to the peers.
        trickling: Peers whose payloads get through slowly, or not at all, while nothing else is
            done to any peer; empty if something else is.
        answering_falsely: Members of a pipeline stage that lie about micro-batches, or about the
            audits of others' micro-batches.
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
        attackers: Collection[PeerId] = (),
        *,
        equivocating: Collection[PeerId] = (),
        lies: Collection[str] = (),
        trickling: Collection[PeerId] = (),
        **conditions: bool,
    ) -> RunConditions:
        """Some lies fork the history like a network that loses commits. ``conditions``: the other
        attributes, by name."""
        found = RunConditions(
            attackers=frozenset(attackers),
            equivocating=frozenset(equivocating),
            lies=frozenset(lies),
            trickling=frozenset(trickling),
            answering_falsely=frozenset(),
            **conditions,
        )
        return replace(found, forks=found.forks or found.forking_lies)

    @property
    def forking_lies(self) -> bool:
        """A lie may come out long after it was told;
        what one peer holds and all others refuse, likewise."""
        if self.untolerated:
            return True
        return not FORKING_ATTACKS.isdisjoint(self.lies) or (
            self.forgetting and self.splitting_lies
        )

    @property
    def splitting_lies(self) -> bool:
        """Whether a liar may hold a result that all others refuse."""
        return not SPLITTING_ATTACKS.isdisjoint(self.lies)

    @property
    def defaming(self) -> bool:
        """Whether somebody lies so that an honest peer may come to accuse another."""
        return not QUIET_ATTACKS.issuperset(self.lies)

    @property
    def delaying(self) -> bool:
        """Whether somebody lies so that rounds take longer."""
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


class Onlookers(NamedTuple):
    """Observers that judge nothing themselves: checkers read what they have recorded."""

    disturbances: Disturbances
    hearing: Hearing
    reach: Reach

    @staticmethod
    def create() -> Onlookers:
        return Onlookers(Disturbances(), Hearing(), Reach())


class PerLife(Generic[Record]):
    """An attribute of a checker that each life of each peer has for itself: read and set, it is
    that of the present peer. ``make`` creates it when a life first needs it."""

    def __init__(self, make: Callable[[], Record]) -> None:
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
    """Raises ``Violation`` as soon as its invariant is broken.

    Attributes:
        judged: how often there was something to judge, which could have been wrong. A checker that
            never judged proves nothing.
    """

    invariant: ClassVar[str]
    kinds: ClassVar[list[type[Checker]]] = []
    """Every class that has an invariant of its own, as it is defined."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "invariant" in vars(cls):
            cls.kinds.append(cls)

    def __init__(
        self, circumstances: RunConditions | None = None, onlookers: Onlookers | None = None
    ) -> None:
        self.circumstances = circumstances or RunConditions()
        self.disturbances, self.hearing, self.reach = onlookers or Onlookers.create()
        self.judged = 0
        self.of_lives: dict[PeerId, dict[PerLife[Any], Any]] = defaultdict(dict)
        self._of_lives: list[tuple[dict[PeerId, Any], Callable[[], Any] | None]] = []
        self.make_records()

    def make_records(self) -> None:
        """Create what the checker records of a run."""

    def per_life(self, make: Callable[[], Record] | None = None) -> dict[PeerId, Record]:
        """Return records of each peer's present life: ``make`` creates one when a life begins.
        Without it a life begins with none."""
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
        """Every fault is over, and everybody who is to come back was told to start."""

    def settled(self) -> None:
        """In the calm, all has come about that must."""

    def finish(self) -> None:
        """The run is over."""

    @property
    def life(self) -> Life:
        return self.peer, self.host.incarnation

    def violated(self, text: str, peer: PeerId | None = None) -> Violation:
        where = self.peer if peer is None else peer
        return Violation(self.invariant, where, self.now, text)

    def demand(self, holds: bool, text: str, peer: PeerId | None = None) -> None:
        """Judge once more. Raises: Violation, at ``peer`` if it is not the present one."""
        self.judged += 1
        if not holds:
            raise self.violated(text, peer)


def keep_latest(records: dict[Any, Any], most: int) -> None:
    """Forget the oldest record if there are more than ``most``."""
    if len(records) > most:
        del records[next(iter(records))]


def updates_needed(
    settings: CoreSettings, roster: Iterable[PeerId], proven: Collection[PeerId]
) -> int:
    """Updates that are enough for the rule. Each that is proven to lie is one less
    for it to tolerate."""
    return settings.updates_needed(settings.f - sum(1 for peer in roster if peer in proven))


class TaintedStates:
    """Peers that hold a liar's state: they restored it from the liar, or from a peer that had done
    so, and have restored no other since.

    A peer is not among them if more than f peers have attested its state, and at most f peers are
    liars or misled.
    """

    def __init__(self, circumstances: RunConditions) -> None:
        self.circumstances = circumstances
        self._peers: dict[PeerId, None] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._peers

    def forget(self, peer: PeerId) -> None:
        """A new life begins."""
        self._peers.pop(peer, None)

    @property
    def lying(self) -> set[PeerId]:
        """Peers whose state is unreliable."""
        return {*self.circumstances.equivocating, *self._peers}

    def restores(self, swarm: AnySwarm, peer: PeerId) -> None:
        """``peer`` takes over the state of its donor."""
        core = swarm.inspections.get(peer)
        if core is None or not self.circumstances.false_states:
            return
        self._peers.pop(peer, None)
        lying, need = self.lying, core.recovery.need
        if core.recovery.donor in lying and (
            need == 1 or len(lying) >= need or has_unattested_state(swarm, peer)
        ):
            self._peers[peer] = None


def has_unattested_state(swarm: AnySwarm, peer: PeerId) -> bool:
    """Whether it has said so of the state that it is taking over."""
    for _, report in reversed(swarm.hosts[peer].reports):
        if report.event in ("recovering", "unattested_state"):
            return report.event == "unattested_state"
    return False
