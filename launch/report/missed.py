"""Faults of the plan that did not take place, or only in part, and the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
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

from .run_model import RunModel
from .words import named


def missed(
    plan: FaultPlan, view: RunModel, last: int, elsewhere: Collection[int]
) -> list[dict[str, Any]]:
    """Return the faults that no peer has reported, the restarts after which the peer did not
    return, and the attacks that raised an exception, in the order of the plan.

    Args:
        view: Model with the events of this machine.
        last: Last round of the run; -1 means none.
        elsewhere: Peers with files on other machines. The faults that hit them are unknown.
    Returns: Rows with ``fault`` in the syntax of a plan, and the reason as text in ``why``.
    ``struck``: whether the fault began.
    """
    # Peers of another launcher in this folder may still be hit, or return. So the launcher that
    # ends last reports them.
    unknown = {
        peer for peer, row in view.rows.items() if row.state in ("here", "training", "stopped")
    }.union(elsewhere)
    found, alike = [], Counter[str]()
    for fault in plan:
        strikes = [each for each in view.failures.injected if each.fault == str(fault)]
        # If a plan contains crash:server@20 twice, the second one needs a second death.
        if isinstance(fault, Blow):
            strikes = strikes[alike[str(fault)] :]
            alike[str(fault)] += 1
        if _concerns(fault, unknown):
            continue
        error = view.failures.errors.get(str(fault))
        if error is not None:
            why = f"{error.message}, first in round {error.round}"
        elif strikes:
            why = _not_back(fault, strikes[0].at, view) if isinstance(fault, Restart) else ""
        else:
            why = _not_struck(fault, view, last)
        if why:
            found.append({"fault": str(fault), "struck": bool(strikes or error), "why": why})
    return found


def format_lines(rows: Collection[Mapping[str, Any]]) -> list[str]:
    """Return lines for the end of a run: one line for all faults that did not take place for the
    same reason, and one line for each that took place only in part."""
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
            f"! planned, and took place only in part: {row['fault']} ({row['why']})"
            for row in rows
            if row["struck"]
        ),
    ]


def _concerns(fault: Fault, unknown: set[int]) -> bool:
    """Whether the fault may have hit one of these peers, or one of them may have reported it. A
    fault of the network is reported by any peer, on behalf of all."""
    named = fault.victims
    return bool(unknown) and (
        isinstance(fault, LinkFault) or "server" in named or not unknown.isdisjoint(named)
    )


def _not_back(fault: Restart, struck_at: float, view: RunModel) -> str:
    """Return the reason why a restarted peer was in no later round; "" if it was in one."""
    figures = view.rows[fault.peer].figures
    if figures.trained_at is not None and figures.trained_at > struck_at:
        return ""
    started = figures.started_at is not None and figures.started_at > struck_at
    return (
        f"peer {fault.peer} was "
        f"{'started again, but in no round' if started else 'killed, and not started again'} "
        "before the end"
    )


def _not_struck(fault: Fault, view: RunModel, last: int) -> str:
    """Return the best known reason why a fault did not take place; "" if it lasts for the whole
    run, and its peers have trained."""
    trained = {p for p, row in view.rows.items() if row.figures.trained_at is not None}
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
    return absent or f"it was not due when the run ended, after round {last}"


def _absent(peer: int, view: RunModel) -> str:
    """Return why a peer was absent at the end of the run; "" if it was present."""
    blow = view.failures.blow(peer)
    if peer in view.lives.leaves:
        return f"peer {peer} had left"
    if blow is not None and blow.kind != "hang" and view.rows[peer].state == "gone":
        since = f"since round {blow.round}" if blow.round >= 0 else "before its first round"
        return f"peer {peer} was gone {since}"
    return ""
