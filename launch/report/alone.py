"""Peers that trained alone: they finished without a connection to any other peer of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gossip.observe import Event, events

UNTRIED = "no connection came about: gossip doctor --to ADDRESS, from the one host to the other"


def trained_alone(
    happened: Iterable[Event], first: int, finished: Collection[int]
) -> list[dict[str, Any]]:
    """Return the peers that trained alone, each with the peers that it never met and the best known
    reason.

    Args:
        happened: Events from the files on this machine, in order.
        first: Number of peers that the run began with.
        finished: Peers that have finished.
    """
    seen = list(happened)
    alone, met = set(), set()
    for event in seen:
        match event:
            case events.Ready() if event.present == [event.peer]:
                alone.add(event.peer)
            case events.Ready() | events.Restored():
                met.add(event.peer)
            case events.Round():
                there = {event.peer, *(event.contributors or ())}
                if len(there) > 1 or (event.alive_count or 0) > 1:
                    met.add(event.peer)
    everybody = range(first)
    return [
        {
            "peer": peer,
            "never_met": [
                {"peer": other, "why": _why(seen, peer, other)}
                for other in everybody
                if other != peer
            ],
        }
        for peer in sorted(alone.difference(met).intersection(finished, everybody))
        if first > 1
    ]


def _why(happened: Iterable[Event], peer: int, other: int) -> str:
    """Return the notice of one of the two peers about the other. Without one, return how the other
    ended, or else the result of the last connection to its address."""
    said = ended = tried = ""
    for event in happened:
        match event:
            case events.Notice() if {event.peer, event.about} == {peer, other}:
                said = f"{event.message} ({event.hint})"
            case events.Exited() if event.peer == other and event.code != 0:
                ended = f"it ended: {event.how}"
            case events.Unmet() if event.subject == other:
                tried = str(event.why)
    return said or ended or tried or UNTRIED


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
