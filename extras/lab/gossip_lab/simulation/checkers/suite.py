"""All checkers of a run as one observer. This observer calls a checker only for the events and
effects that the checker watches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from gossip.core import Event, Message, PeerId
from gossip_lab.simulation.world import AnySwarm, Observer, Watcher

from .base import Checker
from .event_observer import EventObserver
from .liveness import Liveness
from .transitions import TableChecker, TableWatch

C = TypeVar("C", bound=Checker)
SLICE_S = 0.25  # interval of the tests whether a calm phase may end


class CheckerGroup:
    """Checkers that judge one run together.

    Attributes:
        judges: The checkers.
    """

    judges: Sequence[Checker]

    def begin_calm(self) -> None:
        """Handle the start of the calm phase: all faults have ended, and all returning peers have
        been started."""
        for checker in self.judges:
            checker.begin_calm()

    def settle(self, swarm: AnySwarm) -> float:
        """Run the calm phase until the requirements of all liveness checkers are met. Then let all
        checkers judge.

        Returns: The duration of the calm phase, in virtual seconds. Raises: Violation: A
        requirement was not met before its deadline.
        """
        began = swarm.now
        self.begin_calm()
        lacking = waiting = [each for each in self.judges if isinstance(each, Liveness)]
        while lacking:
            swarm.run_for(SLICE_S)
            lacking = [checker for checker in waiting if checker.find_shortcoming() is not None]
            for checker in lacking:
                if swarm.now >= checker.deadline_at():
                    checker.finish()
        self.finish()
        for judge in self.judges:
            judge.settled()
        return swarm.now - began

    def finish(self) -> None:
        """Let all checkers judge the whole run.

        Raises:
            Violation: An invariant is broken.
            ValueError: The calm phase was too short for a judgement.
        """
        for checker in self.judges:
            checker.finish()

    def close(self) -> None:
        """Let all checkers judge again, some time after the swarm has settled. Raises: Violation:
        An invariant is broken, or a requirement of liveness is no longer met."""
        for checker in self.judges:
            if not isinstance(checker, Liveness):
                checker.finish()
            elif (shortcoming := checker.find_shortcoming()) is not None:
                peer, text = shortcoming
                raise checker.violated(f"{text}, although the swarm had settled", peer)

    def judged(self) -> Counter[str]:
        """Return the number of judgements of each invariant. An invariant without a judgement was
        not tested."""
        totals: Counter[str] = Counter()
        for checker in self.judges:
            totals[checker.invariant] += checker.judged
        return totals

    def judged_by(self) -> Counter[str]:
        """Return the number of judgements of each checker; the key is its name. Several checkers
        may judge the same invariant, so ``judged`` does not show that one of them never judged."""
        totals: Counter[str] = Counter()
        for checker in self.judges:
            totals[type(checker).__name__] += checker.judged
        return totals


class CheckerSuite(CheckerGroup, Observer):
    """Checkers of a run, and the observers that they read. A run has tens of thousands of events;
    most events concern only one or two checkers.

    Args:
        has_recorders: Whether this suite calls the observers that its checkers read; if not,
            another suite does.
    """

    def __init__(self, checkers: Iterable[EventObserver], has_recorders: bool = True) -> None:
        given = list(checkers)
        self.judges = [each for each in given if isinstance(each, Checker)]
        read = [each for judge in self.judges for each in judge.recorders] if has_recorders else []
        self.checkers = tuple(dict.fromkeys([*read, *given]))
        self._tables = [checker for checker in self.checkers if isinstance(checker, TableChecker)]
        self._watches: dict[PeerId, TableWatch | None] = {}
        self.observers: tuple[Observer, ...] = (self,)

    def find(self, kind: type[C]) -> C:
        return next(each for each in self.checkers if isinstance(each, kind))

    def watchers(self, moment: str, kind: type) -> tuple[Watcher, ...]:
        """Return the functions of all checkers that watch ``kind`` at this moment. The suite itself
        watches the membership tables."""
        tables = [self._judge_transitions] if moment == "after_event" else []
        found = [watcher for each in self.checkers for watcher in each.watchers(moment, kind)]
        return (*tables, *found)

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        membership = swarm.hosts[peer].membership
        self._watches[peer] = None if membership is None else TableWatch(membership)
        for checker in self.checkers:
            checker.on_start(swarm, peer)

    def on_flood(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        for checker in self.checkers:
            checker.on_flood(swarm, peer, event)

    def on_mishap(
        self, swarm: AnySwarm, peer: PeerId, to: PeerId, what: str, message: Message | None
    ) -> None:
        for checker in self.checkers:
            checker.on_mishap(swarm, peer, to, what, message)

    def on_resume(self, swarm: AnySwarm, peer: PeerId) -> None:
        for checker in self.checkers:
            checker.on_resume(swarm, peer)

    def on_crash(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._judge_transitions(swarm, peer, None)
        for checker in self.checkers:
            checker.on_crash(swarm, peer)

    def _judge_transitions(self, swarm: AnySwarm, peer: PeerId, event: Event | None) -> None:
        watch = self._watches.get(peer)
        for transition in () if watch is None else watch.fresh():
            for checker in self._tables:
                if not checker.fields or transition.field in checker.fields:
                    checker.select_peer(swarm, peer)
                    checker.cause = event
                    checker.judge(transition)
