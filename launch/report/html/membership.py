"""What each peer did when: from the events of a run to spans of time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gossip.run import whole

from .charts import STATES, Span
from .downsampling import Buckets, Floats
from .recorded import RecordedRun

ORDER = {state: at for at, state in enumerate(STATES)}
"""Of several states at a time the one that comes last is drawn."""
PRESENT = ("training", "quarantined", "done")
OWN: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "spawned": (("starting",), ("gone", "done", "stopped", "dead", "paused", "training")),
    "started": (("starting",), ("gone", "done", "stopped", "dead", "paused", "training")),
    "ready": (("training",), ("starting",)),
    "recovering": (("starting",), ()),
    "restored": (("training",), ("starting",)),
    "kept_own_state": (("training",), ("starting",)),
    "paused": (("paused",), ()),
    "resumed": ((), ("paused",)),
    "continued": ((), ("stopped",)),
}
"""Event of a peer about itself -> which states begin, and which end."""
ABOUT: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "dead": (("dead",), ()),
    "alive_again": ((), ("dead",)),
    "joined": ((), ("dead",)),
    "quarantined": (("quarantined",), ()),
    "parole": ((), ("quarantined",)),
    "trusted": ((), ("quarantined",)),
}
"""Event that others write about a peer -> the same. The first to say so counts."""


@dataclass(slots=True)
class _Life:
    """The spans of one peer so far, and the states that it is in."""

    spans: list[Span] = field(default_factory=list)
    states: dict[str, float] = field(default_factory=dict)  # since when
    since: float = 0.0

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
    """Of each peer what it did, in order of time and without gaps from its first word on."""
    lives: dict[int, _Life] = defaultdict(_Life)
    for row in run.events:
        t, name = run.since(row["t"]), str(row.get("event"))
        peer, subject = whole(row.get("peer")), whole(row.get("subject"))
        if peer is not None:
            if name in OWN:
                lives[peer].change(t, *OWN[name])
            elif change := _own_end(name, row):
                lives[peer].change(t, *change)
        if subject is not None and subject in lives and name in ABOUT:
            lives[subject].change(t, *ABOUT[name])
    for peer in run.steps.peers:
        if peer not in lives:  # somebody has lost its first words
            lives[peer].change(run.since(float(run.steps.x(peer)[0])), ("training",), ())
    return {peer: lives[peer].close(run.duration_s) for peer in sorted(lives)}


def _own_end(name: str, row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Faults, and ends of processes."""
    if name == "fault":
        kind = row.get("kind")
        if kind == "hang":
            return ("stopped",), ()
        return (("gone",), ("paused", "quarantined")) if kind in ("crash", "restart") else None
    if name == "exited":
        return (("done",) if row.get("code") == 0 else ("gone",)), ("paused", "quarantined")
    if name == "halted":
        return (("done",), ("paused", "dead")) if row.get("exit_code") == 0 else None
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
