"""States of each peer over time, from the model of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gossip.launch.report.peer_row import PeerRow
from gossip.launch.report.run_model import RunModel
from gossip.observe import Event, SubjectEvent

from .charts import STATES, Span

PRESENT = {"training", "quarantined", "done"}


class Presence:
    """Changes of the peers' states, recorded while events are applied to the model."""

    def __init__(self, view: RunModel) -> None:
        self._view = view
        self._changes: dict[int, list[tuple[float, str]]] = {}

    def record(self, event: Event) -> None:
        """Record the new states of the peers that an event is about. The model must have applied
        the event."""
        if event.peer is None:
            return
        self._record_state(event.t, event.peer)
        if isinstance(event, SubjectEvent):
            self._record_state(event.t, event.subject)

    def _record_state(self, t: float, peer: int) -> None:
        row = self._view.rows[peer]
        if row.state == "elsewhere":
            return
        state, changes = self._state(row), self._changes.setdefault(peer, [])
        if not changes or changes[-1][1] != state:
            changes.append((t, state))

    def _state(self, row: PeerRow) -> str:
        if row.state in ("gone", "done", "stopped"):
            return row.state
        if row.receiving:
            return "starting"
        if row.pause:
            return "paused"
        if self._is_lost(row):
            return "dead"
        if row.state != "training":
            return "starting"
        return "quarantined" if row.quarantined else "training"

    def _is_lost(self, row: PeerRow) -> bool:
        """Whether most of the training peers skip the peer. Peers that wait for a quorum do not
        count as training: in a partition, each side skips the other."""
        if not row.skipped_by:
            return False
        training = {
            each.peer
            for each in self._view.rows.values()
            if each.state == "training" and not each.pause
        }
        return 2 * len(row.skipped_by & training) > len(training)

    def spans(self, began: float, ended: float) -> dict[int, tuple[Span, ...]]:
        """Return the states of each peer in order of time, without gaps after the first event about
        the peer."""
        found = {}
        for peer, changes in sorted(self._changes.items()):
            ends = [*(t for t, _ in changes[1:]), ended]
            found[peer] = tuple(
                Span(max(start - began, 0.0), stop - began, state)
                for (start, state), stop in zip(changes, ends, strict=True)
                if stop > max(start, began)
            )
        return found


def away_s(each: Iterable[Span]) -> float:
    """Return how long a peer was absent or unable to train after its first start, in seconds."""
    known = list(each)
    begun = known[1:] if known and known[0].state == "starting" else known
    return time_in(begun, STATES.keys() - PRESENT)


def time_in(each: Iterable[Span], states: Collection[str]) -> float:
    """Return the total time of a peer in these states, in seconds."""
    return sum(span.stop - span.start for span in each if span.state in states)
