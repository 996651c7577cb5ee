"""Peers that finished the training without having met any other, though the run began with others,
and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

UNTRIED = "no connection came about: gossip doctor --to ADDRESS, from the one host to the other"


def trained_alone(
    events: Iterable[Mapping[str, Any]], first: int, finished: Collection[int]
) -> list[dict[str, Any]]:
    """Return the peers that trained alone, each with the peers that it never met and the best known
    reason.

    Args:
        events: Rows of all peers and launchers whose files are here, in order.
        first: Number of peers that the run began with.
        finished: Peers that have finished.
    """
    rows = list(events)
    alone, met = set(), set()
    for row in rows:
        if isinstance(peer := row.get("peer"), int):
            if row.get("event") == "ready" and row.get("present") == [peer]:
                alone.add(peer)
            elif _shows_others(row, peer):
                met.add(peer)
    everybody = range(first)
    return [
        {
            "peer": peer,
            "never_met": [
                {"peer": other, "why": _why(rows, peer, other)}
                for other in everybody
                if other != peer
            ],
        }
        for peer in sorted(alone.difference(met).intersection(finished, everybody))
        if first > 1
    ]


def _shows_others(row: Mapping[str, Any], peer: int) -> bool:
    match row.get("event"):
        case "ready":
            return True  # with others: that it was without them is the other case
        case "round":
            alive = row.get("alive")
            count = len(alive) if isinstance(alive, list) else alive
            return (isinstance(count, int) and count > 1) or not {peer}.issuperset(
                row.get("contributors") or ()
            )
        case "restored":
            return True
    return False


def _why(rows: Iterable[Mapping[str, Any]], peer: int, other: int) -> str:
    """Return the notice of one of the two peers about the other. Else return how the other ended,
    or else the result of the last connection to its address."""
    said = ended = tried = ""
    for row in rows:
        match row.get("event"):
            case "notice" if (row.get("peer"), row.get("about")) in ((peer, other), (other, peer)):
                said = f"{row.get('message')} ({row.get('hint')})"
            case "exited" if row.get("peer") == other and row.get("code") != 0:
                ended = f"it ended: {row.get('how')}"
            case "unmet" if row.get("subject") == other:
                tried = str(row.get("why"))
    return said or ended or tried or UNTRIED


def format_lines(alone: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines for the end of a run."""
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
