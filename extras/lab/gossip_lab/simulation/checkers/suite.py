"""All checkers of a run as one observer. This observer calls a checker only for the events and
effects that the checker watches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from gossip.core import Event, Message, PeerId
from gossip_lab.simulation.world import AnySwarm, Observer, Watcher

from .base import Checker
from .event_observer import EventObserver
from .liveness import Liveness
from .reachability import Reachability
from .transitions import TableChecker, TableWatch, watch_life

C = TypeVar("C", bound=Checker)
SLICE_S = 0.25  # interval of the tests whether a calm phase may end


class CheckerSuite(Observer):
    """Checkers of a run, and the observers that they read. A run has tens of thousands of events;
    most events concern only one or two checkers.

    Args:
        has_recorders: Whether this suite calls the observers that its checkers read; if not,
            another suite does.
    """

    def __init__(self, checkers: Iterable[EventObserver], has_recorders: bool = True) -> None:
        given = list(checkers)
        judges = [each for each in given if has_recorders and isinstance(each, Checker)]
        read = [recorder for judge in judges for recorder in judge.recorders]
        self.checkers = tuple(dict.fromkeys([*read, *given]))
        self._tables = [checker for checker in self.checkers if isinstance(checker, TableChecker)]
        self._judges = [checker for checker in self.checkers if isinstance(checker, Checker)]
        self._watches: dict[PeerId, TableWatch] = {}
        self.observers: tuple[Observer, ...] = (self,)
        self._reachability = [each for each in self.checkers if isinstance(each, Reachability)]

    def find(self, kind: type[C]) -> C:
        return next(each for each in self.checkers if isinstance(each, kind))

    def watchers(self, moment: str, kind: type) -> tuple[Watcher, ...]:
        """Return the functions of all checkers that watch ``kind`` at this moment. The suite itself
        watches the membership tables."""
        tables = [self._check_table] if moment == "after_event" else []
        found = [watcher for each in self.checkers for watcher in each.watchers(moment, kind)]
        return (*tables, *found)

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        watch_life(self._watches, swarm, peer)
        for checker in self.checkers:
            checker.on_start(swarm, peer)

    def _check_table(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        watch = self._watches.get(peer)
        if watch is not None and (watch.sink or len(watch.members) != watch.count):
            self._judge_transitions(swarm, peer, event)

    def on_flood(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        for checker in self.checkers:
            checker.on_flood(swarm, peer, event)

    def on_mishap(
        self, swarm: AnySwarm, peer: PeerId, to: PeerId, what: str, message: Message | None
    ) -> None:
        for reach in self._reachability:
            reach.on_mishap(swarm, peer, to, what, message)

    def on_resume(self, swarm: AnySwarm, peer: PeerId) -> None:
        for checker in self.checkers:
            checker.on_resume(swarm, peer)

    def on_crash(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._judge_transitions(swarm, peer, None)
        for checker in self.checkers:
            checker.on_crash(swarm, peer)

    # --- the calm phase, and the end --------------------------------------------------------------

    def begin_calm(self) -> None:
        """Handle the start of the calm phase: all faults have ended, and all returning peers have
        been started."""
        for checker in self._judges:
            checker.begin_calm()

    def settle(self, swarm: AnySwarm) -> float:
        """Run the calm phase of this suite alone, see the function ``settle``."""
        return settle([self], swarm)

    def finish(self) -> None:
        """Let all checkers judge the whole run.

        Raises:
            Violation: An invariant is broken.
            ValueError: The calm phase was too short for a judgement.
        """
        for checker in self._judges:
            checker.finish()

    def settled(self) -> None:
        """Judge, in the calm phase, whether everything that is due has happened."""
        for checker in self._judges:
            checker.settled()

    def close(self) -> None:
        """Let all checkers judge again, some time after the swarm has settled. Raises: Violation:
        An invariant is broken, or a requirement of liveness is no longer met."""
        for checker in self._judges:
            if not isinstance(checker, Liveness):
                checker.finish()
            elif (shortcoming := checker.find_shortcoming()) is not None:
                peer, text = shortcoming
                raise checker.violated(f"{text}, although the swarm had settled", peer)

    def judged(self) -> dict[str, int]:
        """Return the number of judgements of each invariant. An invariant without a judgement was
        not tested."""
        totals: dict[str, int] = {}
        for checker in self._judges:
            totals[checker.invariant] = totals.get(checker.invariant, 0) + checker.judged
        return totals

    def judged_by(self) -> dict[str, int]:
        """Return the number of judgements of each checker; the key is its name. Several checkers
        may judge the same invariant, so ``judged`` does not show that one of them never judged."""
        return {type(checker).__name__: checker.judged for checker in self._judges}

    def _judge_transitions(self, swarm: AnySwarm, peer: PeerId, event: Event | None) -> None:
        watch = self._watches.get(peer)
        if watch is None:
            return
        for transition in watch.fresh():
            for checker in self._tables:
                if not checker.fields or transition.field in checker.fields:
                    checker.select_peer(swarm, peer)
                    checker.cause = event
                    checker.judge(transition)


def settle(suites: Sequence[CheckerSuite], swarm: AnySwarm) -> float:
    """Run a common calm phase of all suites until the requirements of all liveness checkers are
    met. Then let all checkers judge.

    Returns: The duration of the calm phase, in virtual seconds. Raises: Violation: A requirement
    was not met before its deadline.
    """
    began = swarm.now
    for suite in suites:
        suite.begin_calm()
    waiting = [each for suite in suites for each in suite.checkers if isinstance(each, Liveness)]
    lacking = waiting
    while lacking:
        swarm.run_for(SLICE_S)
        lacking = [checker for checker in waiting if checker.find_shortcoming() is not None]
        for checker in lacking:
            if swarm.now >= checker.deadline_at():
                checker.finish()
    for suite in suites:
        suite.finish()
        suite.settled()
    return swarm.now - began
