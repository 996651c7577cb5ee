"""Peers that trained alone: they finished without a connection to any other peer of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .run_model import RunModel

UNTRIED = "no connection was made; try gossip doctor --to ADDRESS, from one host to the other"


def trained_alone(view: RunModel, first: int, finished: Collection[int]) -> list[dict[str, Any]]:
    """Return the peers that trained alone. Each entry lists the peers that it never met, with the
    best known reasons.

    Args:
        first: Number of initial peers of the run.
        finished: Peers that have finished.
    """
    peers = range(first) if first > 1 else ()
    alone = view.lives.ready.difference(view.lives.met).intersection(finished, peers)
    return [
        {
            "peer": peer,
            "never_met": [
                {"peer": other, "why": _why(view, peer, other)} for other in peers if other != peer
            ],
        }
        for peer in sorted(alone)
    ]


def _why(view: RunModel, peer: int, other: int) -> str:
    """Return why ``peer`` never met ``other``: the notice of one of them about the other one, else
    the end of ``other``, else the result of the last connection to the address of ``other``."""
    row, lives = view.rows.get(other), view.lives
    ended = f"it ended: {row.exit}" if row is not None and row.state == "gone" else ""
    said = lives.notices.get(frozenset((peer, other)))
    return said or ended or lives.unreached.get(other, UNTRIED)


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
        [*found, "  each of them has its own model: nothing was exchanged"]
        if len(found) > 1
        else found
    )
