"""All checkers of a run behind one observer, which calls each only for what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, get_args

from gossip.core.events import Effect, Event, Received, Send
from gossip.core.messages import Message, PeerId
from gossip.sim.observer import Observer

from .base import Checker, Onlooker, Violation
from .hygiene import NothingRaises
from .liveness import Liveness
from .transitions import TableChecker, Watch, watch_life

if TYPE_CHECKING:
    from gossip.sim.driver import Swarm

SLICE_S = 0.25  # of a calm phase, between two looks at whether all is well

EVENTS, EFFECTS, MESSAGES = get_args(Event), get_args(Effect), get_args(Message)


class Panel(Observer):
    """Seventeen checkers for the price of three: a run has some ten thousand events, most of which concern one or two."""

    def __init__(self, checkers: Iterable[Onlooker]) -> None:
        self.checkers = tuple(checkers)
        self._tables = [checker for checker in self.checkers if isinstance(checker, TableChecker)]
        self._judges = [checker for checker in self.checkers if isinstance(checker, Checker)]
        self._watches: dict[PeerId, Watch] = {}
        self._raises = [checker for checker in self.checkers if isinstance(checker, NothingRaises)]
        self._events = {kind: self._hooks("on_event", "events", kind) for kind in (*EVENTS, *MESSAGES)}
        self._effects = {kind: self._hooks("on_effect", "effects", kind) for kind in (*EFFECTS, *MESSAGES)}
        self._afters = {kind: self._hooks("after_event", "afters", kind) for kind in (*EVENTS, *MESSAGES)}

    def _hooks(self, method: str, wants: str, kind: type) -> tuple[Callable[[Swarm[Any], PeerId, Any], None], ...]:
        """The methods that look at ``kind``, an event, an effect or a message; tables are looked at by ourselves."""
        carrier = {"on_effect": Send}.get(method, Received) if kind in MESSAGES else kind
        return tuple(
            getattr(checker, method)
            for checker in self.checkers
            if getattr(type(checker), method) is not getattr(Observer, method)
            and not (method == "after_event" and isinstance(checker, TableChecker))
            and not (method == "on_event" and isinstance(checker, NothingRaises))
            and (not getattr(checker, wants) or kind in getattr(checker, wants) or carrier in getattr(checker, wants))
        )

    def on_start(self, swarm: Swarm[Any], peer: PeerId) -> None:
        watch_life(self._watches, swarm, peer)
        for checker in self.checkers:
            if isinstance(checker, TableChecker):
                checker.born(swarm, peer)
            else:
                checker.on_start(swarm, peer)

    def on_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        for checker in self._raises:
            checker.handling, checker.sends = (peer, event), 0
        for see in self._events[type(event.message) if type(event) is Received else type(event)]:
            see(swarm, peer, event)

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        for see in self._effects[type(effect.message) if type(effect) is Send else type(effect)]:
            see(swarm, peer, effect)

    def after_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        watch = self._watches.get(peer)
        if watch is not None and (watch.sink or len(watch.members) != watch.count):
            self._look(swarm, peer, event)
        for see in self._afters[type(event.message) if type(event) is Received else type(event)]:
            see(swarm, peer, event)

    def on_crash(self, swarm: Swarm[Any], peer: PeerId) -> None:
        self._look(swarm, peer, None)
        for checker in self.checkers:
            if not isinstance(checker, TableChecker):
                checker.on_crash(swarm, peer)

    # --- the calm phase, and the end ----------------------------------------------------------------------------------------

    def begin_calm(self, swarm: Swarm[Any]) -> None:
        """Every fault is over, and everybody who is to come back was told to start."""
        for checker in self._judges:
            checker.begin_calm(swarm)

    def settle(self, swarm: Swarm[Any]) -> float:
        """The calm phase: runs until every liveness checker is content, then lets all judge.

        Returns: how long that took, virtual seconds. Raises: Violation: something did not come about in time.
        """
        self.begin_calm(swarm)
        began = swarm.now
        waiting: list[Liveness] = [checker for checker in self._judges if isinstance(checker, Liveness)]
        lacking = waiting
        while lacking:
            swarm.run_for(SLICE_S)
            lacking = [checker for checker in waiting if checker.lacks(swarm) is not None]
            for checker in lacking:
                if swarm.now >= checker.deadline_at(swarm):
                    checker.finish(swarm)
        self.finish(swarm)
        return swarm.now - began

    def finish(self, swarm: Swarm[Any]) -> None:
        """The run is over: lets all judge. Raises Violation; ValueError when the calm phase was too short to tell."""
        for checker in self._judges:
            checker.finish(swarm)

    def blame(self, swarm: Swarm[Any], error: Exception) -> Violation:
        """What an exception that left ``swarm`` amounts to: itself if it is a violation, else one of S14."""
        if isinstance(error, Violation):
            return error
        return (self._raises or [NothingRaises()])[0].blame(swarm, error)

    def judged(self) -> dict[str, int]:
        """How often each invariant was judged, by its number: what was never judged is not proven."""
        totals: dict[str, int] = {}
        for checker in self._judges:
            totals[checker.invariant] = totals.get(checker.invariant, 0) + checker.judged
        return totals

    def _look(self, swarm: Swarm[Any], peer: PeerId, event: Event | None) -> None:
        watch = self._watches.get(peer)
        if watch is None:
            return
        for transition in watch.fresh():
            for checker in self._tables:
                checker.judge(swarm, peer, transition, event)
