"""States of each peer over time: from the events of a run to spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gossip.observe import Event, PeerEvent, SubjectEvent, events, select

from .charts import STATES, Span
from .downsampling import Buckets, Floats
from .recorded import RecordedRun

ORDER = {state: at for at, state in enumerate(STATES)}
"""Rank of each state. If a peer is in several states at a time, the highest is drawn."""
PRESENT = ("training", "quarantined", "done")
OWN: Mapping[type[Event], tuple[tuple[str, ...], tuple[str, ...]]] = {
    events.Spawned: (("starting",), ("gone", "done", "stopped", "dead", "paused", "training")),
    events.Started: (("starting",), ("gone", "done", "stopped", "dead", "paused", "training")),
    events.Ready: (("training",), ("starting",)),
    events.Recovering: (("starting",), ()),
    events.Restored: (("training",), ("starting",)),
    events.StageRebuilt: (("training",), ("starting",)),
    events.KeptOwnState: (("training",), ("starting",)),
    events.Paused: (("paused",), ()),
    events.Resumed: ((), ("paused",)),
    events.Continued: ((), ("stopped",)),
}
"""Event of a peer about itself -> which states begin, and which end."""
ABOUT: Mapping[type[Event], tuple[tuple[str, ...], tuple[str, ...]]] = {
    events.Quarantined: (("quarantined",), ()),
    events.Parole: ((), ("quarantined",)),
    events.Trusted: ((), ("quarantined",)),
}
"""Event that others write about a peer -> the same. The first to say so counts: it follows from
commits, so all agree on it."""
HOLDS_DEAD: Mapping[type[Event], bool] = {
    events.Dead: True,
    events.AliveAgain: False,
    events.Joined: False,
}
"""Event that others write about a peer -> whether it is dead for the writer from then on."""
WITHOUT_VOTE = frozenset(("gone", "done", "stopped", "paused"))
"""States in which a peer does not train. A peer in one of these has no vote on which peers are
dead."""


@dataclass(slots=True)
class _Life:
    """The spans of one peer so far, and the states that it is in."""

    spans: list[Span] = field(default_factory=list)
    states: dict[str, float] = field(default_factory=dict)  # since when
    since: float = 0.0
    held_dead_by: set[int] = field(default_factory=set)

    @property
    def votes(self) -> bool:
        """Whether it counts who is dead for this peer."""
        return WITHOUT_VOTE.isdisjoint(self.states)

    def _shown(self) -> str | None:
        return max(self.states, key=lambda state: ORDER[state], default=None)

    def change(self, t: float, begin: Iterable[str], end: Iterable[str]) -> None:
        before = self._shown()
        for state in end:
            self.states.pop(state, None)
        for state in begin:
            self.states.setdefault(state, t)
        if self._shown() != before:
            self._cut(t, before)

    def _cut(self, t: float, state: str | None) -> None:
        if state is not None and t > self.since:
            self.spans.append(Span(self.since, t, state))
        self.since = t

    def close(self, t: float) -> tuple[Span, ...]:
        self._cut(t, self._shown())
        return tuple(self.spans)


def spans(run: RecordedRun) -> dict[int, tuple[Span, ...]]:
    """Return the states of each peer, in order of time and without gaps from its first row on."""
    lives = _Lives()
    for event in select(run.events, PeerEvent):
        t, kind = run.since(event.t), type(event)
        if change := OWN.get(kind) or _own_end(event):
            lives.change(t, event.peer, *change)
        if isinstance(event, SubjectEvent):
            if kind in HOLDS_DEAD:
                lives.hold_dead(t, event.peer, event.subject, HOLDS_DEAD[kind])
            if kind in ABOUT and event.subject in lives.of:
                lives.of[event.subject].change(t, *ABOUT[kind])
    for peer in run.series.steps.peers:
        if peer not in lives.of:  # its first events are lost
            lives.of[peer].change(run.since(float(run.series.steps.x(peer)[0])), ("training",), ())
    return {peer: lives.of[peer].close(run.duration_s) for peer in sorted(lives.of)}


class _Lives:
    """Lives of all peers. A peer is dead in the report while most of the peers that train hold it
    for dead. In a partition, each side holds the other for dead."""

    def __init__(self) -> None:
        self.of: dict[int, _Life] = defaultdict(_Life)
        self._voters: set[int] = set()

    def change(self, t: float, peer: int, begin: Iterable[str], end: Iterable[str]) -> None:
        """Apply a change of a peer's states that the peer or its launcher has reported."""
        life = self.of[peer]
        life.change(t, begin, end)
        voted = peer in self._voters
        (self._voters.add if life.votes else self._voters.discard)(peer)
        if "dead" in end:  # a new life, or an end, which the others have not noticed yet
            life.held_dead_by.clear()
            for other in self.of.values():
                other.held_dead_by.discard(peer)
        if voted != life.votes or "dead" in end:
            for subject in [each for each, other in self.of.items() if other.held_dead_by]:
                self._count(t, subject)

    def hold_dead(self, t: float, by: int, subject: int, dead: bool) -> None:
        """Whether a peer is dead for another, as that one says."""
        if subject not in self.of:
            return
        held = self.of[subject].held_dead_by
        (held.add if dead else held.discard)(by)
        self._count(t, subject)

    def _count(self, t: float, subject: int) -> None:
        life = self.of[subject]
        if 2 * len(life.held_dead_by & self._voters) > len(self._voters):
            life.change(t, ("dead",), ())
        else:
            life.change(t, (), ("dead",))


def _own_end(event: PeerEvent) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the change of states by a fault, or by the end of a process."""
    match event:
        case events.Fault(kind="hang"):
            return ("stopped",), ()
        case events.Fault(kind="crash" | "restart"):
            return ("gone",), ("paused", "quarantined")
        case events.Exited():
            return (("done",) if event.code == 0 else ("gone",)), ("paused", "quarantined")
        case events.Halted(exit_code=0):
            return ("done",), ("paused", "dead")
    return None


def counts(found: Mapping[int, tuple[Span, ...]], buckets: Buckets) -> dict[str, Floats]:
    """State -> ``(buckets,)``: how many peers were in it in the middle of each bucket."""
    at = buckets.centers
    sums = {state: np.zeros(buckets.count) for state in STATES}
    for each in found.values():
        for span in each:
            sums[span.state] += (span.start <= at) & (at < span.stop)
    return sums


def away_s(each: Iterable[Span]) -> float:
    """For how long a peer was not there, or not able to train, after it had begun."""
    known = list(each)
    begun = known[1:] if known and known[0].state == "starting" else known
    return sum(span.stop - span.start for span in begun if span.state not in PRESENT)


def quarantined_s(each: Iterable[Span]) -> float:
    """For how long its updates were left out."""
    return sum(span.stop - span.start for span in each if span.state == "quarantined")
