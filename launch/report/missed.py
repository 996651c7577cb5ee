"""Faults of the plan that never took place, and why: a run that ended before them shows nothing
about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gossip.faults import (
    ActivationFault,
    Blow,
    ByzantineFault,
    Fault,
    FaultPlan,
    LinkFault,
    NodeAttack,
    Restart,
    Slow,
)
from gossip.observe import Event, events

from .run_model import RunModel
from .words import named

TRAINS = (events.Ready, events.Restored, events.Round)
"""Events that only peers report that take part in rounds, or are about to."""


def missed(
    plan: FaultPlan,
    happened: Sequence[Event],
    view: RunModel,
    last: int,
    elsewhere: Collection[int],
) -> list[dict[str, Any]]:
    """Faults of the plan, in its order, that no peer has told of; and who was killed and never came
    back, though it should have.

    Args:
        happened: Events of all peers whose files are here, in order of time.
        view: View to which they were applied.
        last: Round that there was, -1: none.
        elsewhere: Whose files are not here: what befell these is not known.
    Returns: ``fault`` as it is typed, ``struck`` (the blow fell, and only the return is missing)
        and ``why``, in words.
    """
    # Those of another launcher in this folder may still be hit, or come back:
    # the last that ends tells it.
    unknown = {
        peer for peer, row in view.rows.items() if row.state in ("here", "training", "stopped")
    }.union(elsewhere)
    found, alike = [], Counter[str]()
    for fault in plan:
        strikes = [
            event
            for event in happened
            if isinstance(event, events.Fault) and event.fault == str(fault)
        ]
        if isinstance(fault, Blow):  # a plan that names crash:server@20 twice wants two deaths
            strikes = strikes[alike[str(fault)] :]
            alike[str(fault)] += 1
        if _concerns(fault, unknown):
            continue
        if strikes:
            why = _not_back(fault, strikes[0].t, happened) if isinstance(fault, Restart) else ""
        else:
            why = _not_struck(fault, happened, view, last)
        if why:
            found.append({"fault": str(fault), "struck": bool(strikes), "why": why})
    return found


def format_lines(rows: Collection[Mapping[str, Any]]) -> list[str]:
    """Lines for the end of a run: one for all that are missing for the same reason, one for each
    that is missing by half."""
    never: dict[str, list[str]] = {}
    for row in rows:
        if not row["struck"]:
            never.setdefault(row["why"], []).append(row["fault"])
    return [
        *(
            f"! planned, and never took place: {', '.join(faults)} ({why})"
            for why, faults in never.items()
        ),
        *(
            f"! planned, and took place only by half: {row['fault']} ({row['why']})"
            for row in rows
            if row["struck"]
        ),
    ]


def _concerns(fault: Fault, unknown: set[int]) -> bool:
    """Whether one of these may have been hit, or have told of it: of what befalls the network any
    peer tells, for all."""
    named = fault.victims
    return bool(unknown) and (
        isinstance(fault, LinkFault) or "server" in named or not unknown.isdisjoint(named)
    )


def _not_back(fault: Restart, struck_at: float, happened: Iterable[Event]) -> str:
    """Why the peer was in no round again; "": it was."""
    since = [event for event in happened if event.peer == fault.peer and event.t > struck_at]
    if any(isinstance(event, TRAINS) for event in since):
        return ""
    started = any(isinstance(event, events.Spawned | events.Started) for event in since)
    return (
        f"peer {fault.peer} was "
        f"{'started again, but in no round' if started else 'killed, and not started again'} "
        "before the end"
    )


def _not_struck(fault: Fault, happened: Sequence[Event], view: RunModel, last: int) -> str:
    """The best that is known of the reason; "": the fault has no moment,
    and its peers have trained with it."""
    trained = {event.peer for event in happened if isinstance(event, TRAINS)}
    peers = [peer for peer in fault.victims if isinstance(peer, int)]
    if not trained or last < 0:
        return "nothing was trained"
    if peers and trained.isdisjoint(peers):
        return f"{named(peers)} never trained"
    has_moment = getattr(fault, "at_s", None) is not None
    if isinstance(fault, Slow | ByzantineFault | ActivationFault) and not has_moment:
        return ""
    if isinstance(fault, NodeAttack):
        return f"{named(peers)} had no occasion for it"
    absent = _absent(peers[0], view) if isinstance(fault, Blow) and peers else ""
    return absent or f"it had not come about when the run ended, after round {last}"


def _absent(peer: int, view: RunModel) -> str:
    """Return why a peer had gone before the end of the run; "": it had not."""
    blow = view.blow(peer)
    if peer in view.leaves:
        return f"peer {peer} had left"
    if blow is not None and blow.kind != "hang" and view.rows[peer].state == "gone":
        since = f"since round {blow.round}" if blow.round >= 0 else "before its first round"
        return f"peer {peer} was gone {since}"
    return ""
