"""All checkers of a run behind one observer, which calls each only for what it looks at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gossip.core import Event, PeerId
from gossip_lab.simulation.world import AnySwarm, Observer, Watcher

from .base import Checker, Violation
from .liveness import Liveness
from .safety import NothingRaises
from .transitions import TableChecker, TableWatch, watch_life
from .watching import Watching

SLICE_S = 0.25  # of a calm phase, between two looks at whether all is well


class Panel(Observer):
    """Seventeen checkers for the price of three: a run has some ten thousand events, most of which
    concern one or two."""

    def __init__(self, checkers: Iterable[Watching]) -> None:
        self.checkers = tuple(checkers)
        self._tables = [checker for checker in self.checkers if isinstance(checker, TableChecker)]
        self._judges = [checker for checker in self.checkers if isinstance(checker, Checker)]
        self._watches: dict[PeerId, TableWatch] = {}
        self.observers: tuple[Observer, ...] = (self,)
        self._raises = [checker for checker in self.checkers if isinstance(checker, NothingRaises)]

    def watchers(self, moment: str, kind: type) -> tuple[Watcher, ...]:
        """The checkers' that look at ``kind``; tables are looked at by ourselves."""
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

    def on_resume(self, swarm: AnySwarm, peer: PeerId) -> None:
        for checker in self.checkers:
            checker.on_resume(swarm, peer)

    def on_crash(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._judge_transitions(swarm, peer, None)
        for checker in self.checkers:
            checker.on_crash(swarm, peer)

    # --- the calm phase, and the end --------------------------------------------------------------

    def begin_calm(self) -> None:
        """Every fault is over, and everybody who is to come back was told to start."""
        for checker in self._judges:
            checker.begin_calm()

    def settle(self, swarm: AnySwarm) -> float:
        """Run the calm phase, as the function ``settle``."""
        return settle([self], swarm)

    def finish(self) -> None:
        """The run is over: lets all judge. Raises Violation;
        ValueError when the calm phase was too short to tell."""
        for checker in self._judges:
            checker.finish()

    def settled(self) -> None:
        """In the calm, all has come about that must."""
        for checker in self._judges:
            checker.settled()

    def close(self) -> None:
        """Some time after all had settled: lets all judge once more, and nothing may be lacking
        again. Raises: Violation."""
        for checker in self._judges:
            if not isinstance(checker, Liveness):
                checker.finish()
            elif (shortcoming := checker.lacks()) is not None:
                peer, text = shortcoming
                raise checker.violated(f"{text}, though all had settled", peer)

    def blame(self, swarm: AnySwarm, error: Exception) -> Violation:
        """Return the violation of an exception that left ``swarm``: itself if it is a violation,
        else one of S14."""
        if isinstance(error, Violation):
            return error
        return (self._raises or [NothingRaises()])[0].blame(swarm, error)

    def judged(self) -> dict[str, int]:
        """How often each invariant was judged, by its number:
        what was never judged is not proven."""
        totals: dict[str, int] = {}
        for checker in self._judges:
            totals[checker.invariant] = totals.get(checker.invariant, 0) + checker.judged
        return totals

    def judged_by(self) -> dict[str, int]:
        """How often each checker has judged, by its name: several look at one invariant, and one
        may look in vain."""
        return {type(checker).__name__: checker.judged for checker in self._judges}

    def _judge_transitions(self, swarm: AnySwarm, peer: PeerId, event: Event | None) -> None:
        watch = self._watches.get(peer)
        if watch is None:
            return
        for transition in watch.fresh():
            for checker in self._tables:
                checker.select_peer(swarm, peer)
                checker.judge(transition, event)


def settle(panels: Sequence[Panel], swarm: AnySwarm) -> float:
    """Run the calm phase of all panels at once until every liveness checker is content, then let
    all judge.

    Returns: how long that took, virtual seconds. Raises: Violation: something did not come about in
        time.
    """
    began = swarm.now
    for panel in panels:
        panel.begin_calm()
    waiting = [each for panel in panels for each in panel.checkers if isinstance(each, Liveness)]
    lacking = waiting
    while lacking:
        swarm.run_for(SLICE_S)
        lacking = [checker for checker in waiting if checker.lacks() is not None]
        for checker in lacking:
            if swarm.now >= checker.deadline_at():
                checker.finish()
    for panel in panels:
        panel.finish()
        panel.settled()
    return swarm.now - began
