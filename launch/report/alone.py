"""Peers that trained alone: they finished without a connection to any other peer of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gossip.observe import events

if TYPE_CHECKING:
    from .run_model import RunModel

UNTRIED = "no connection came about: gossip doctor --to ADDRESS, from the one host to the other"


class Meetings:
    """Connections between peers.

    Attributes:
        without_others: Peers that began alone. ``met``: peers that later met others.
    """

    def __init__(self, run: RunModel) -> None:
        self._run = run
        self.without_others: set[int] = set()
        self.met: set[int] = set()
        self._notices: dict[frozenset[int | None], str] = {}
        self._tried: dict[int | None, str] = {}

    def _on_ready(self, event: events.Ready) -> None:
        alone = event.present == [event.peer]
        (self.without_others if alone else self.met).add(event.peer)

    def _on_restored(self, event: events.Restored) -> None:
        self.met.add(event.peer)

    def _on_round(self, event: events.Round) -> None:
        there = {event.peer, *(event.contributors or ())}
        if len(there) > 1 or (event.alive_count or 0) > 1:
            self.met.add(event.peer)

    def _on_notice(self, event: events.Notice) -> None:
        about = frozenset((event.peer, event.about))
        self._notices[about] = f"{event.message} ({event.hint})"

    def _on_unmet(self, event: events.Unmet) -> None:
        self._tried[event.subject] = str(event.why)

    def trained_alone(self, first: int, finished: Collection[int]) -> list[dict[str, Any]]:
        """Return the peers that trained alone, each with the peers that it never met and the best
        known reason.

        Args:
            first: Number of peers that the run began with.
            finished: Peers that have finished.
        """
        peers = range(first) if first > 1 else ()
        alone = self.without_others.difference(self.met).intersection(finished, peers)
        return [
            {
                "peer": peer,
                "never_met": [
                    {"peer": other, "why": self._why(peer, other)}
                    for other in peers
                    if other != peer
                ],
            }
            for peer in sorted(alone)
        ]

    def _why(self, peer: int, other: int) -> str:
        """Return the notice of one of the two peers about the other. Without one, return how the
        other ended, or else the result of the last connection to its address."""
        row = self._run.rows.get(other)
        ended = f"it ended: {row.exit}" if row is not None and row.state == "gone" else ""
        said = self._notices.get(frozenset((peer, other)), "")
        return said or ended or self._tried.get(other, "") or UNTRIED


def format_lines(alone: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return lines for the end of a run."""
    found = []
    for row in alone:
        never = row["never_met"]
        first, more = (
            never[0],
            f", nor {len(never) - 1} others"
            if len(never) > 2
            else ", nor another"
            if len(never) > 1
            else "",
        )
        found.append(
            f"! peer {row['peer']} trained alone; never met peer {first['peer']}{more}: "
            f"{first['why']}"
        )
    return (
        [*found, "  each of them has a model of its own: nothing was exchanged"]
        if len(found) > 1
        else found
    )
