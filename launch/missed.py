"""Which faults of the plan never took place: a run that ended before them says nothing about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gossip.fault_kinds import Crash, Hang, Restart
from gossip.faults import FaultPlan, concerned
from gossip.world_faults import LinkFault, NodeLie

STRIKES = Crash | Hang | Restart | LinkFault | NodeLie
"""Those that have their moment, and are told by whom they strike. Who is slow, or lies about its updates, does so all along."""


def missed(plan: FaultPlan, events: Iterable[Mapping[str, Any]], elsewhere: Collection[int]) -> list[str]:
    """Faults of the plan, in its order and as they are typed, that no peer has told of.

    Args:
        events: Of all peers whose files are here.
        elsewhere: Whose are not: what befell these is not known.
    """
    took_place = {event.get("fault") for event in events if event.get("event") == "fault"}
    return [
        str(fault)
        for fault in plan
        if isinstance(fault, STRIKES)
        and str(fault) not in took_place
        and not any(peer in elsewhere or (peer == "server" and elsewhere) for peer in concerned(fault))
    ]


def told(faults: Collection[str], rounds: int) -> list[str]:
    """Lines for the end of a run of so many rounds."""
    if not faults:
        return []
    return [f"! planned, and never took place in {rounds} rounds: {', '.join(faults)}"]
