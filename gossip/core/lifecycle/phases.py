"""Phases of a peer, and the table of all transitions between phases.

``diagram`` creates the diagram in ``docs/architecture.md`` from this table, and a test compares the
two.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Phase: TypeAlias = Literal["unprepared", "gathering", "running", "recovering", "draining", "halted"]
Trigger: TypeAlias = Literal[
    "prepared",
    "quorum is here",
    "training is over",
    "stage rebuilt",
    "needs a state",
    "state restored",
    "keeps its own state",
    "nobody has a state",
    "stops",
    "leaves",
    "gives up",
]

TRANSITIONS: dict[tuple[Phase, Trigger], Phase] = {
    ("unprepared", "prepared"): "gathering",
    ("unprepared", "stops"): "draining",
    ("unprepared", "gives up"): "halted",
    ("gathering", "quorum is here"): "running",
    ("gathering", "training is over"): "running",
    ("gathering", "stage rebuilt"): "running",
    ("gathering", "needs a state"): "recovering",
    ("gathering", "stops"): "draining",
    ("gathering", "gives up"): "halted",
    ("running", "needs a state"): "recovering",
    ("running", "stops"): "draining",
    ("running", "leaves"): "halted",
    ("running", "gives up"): "halted",
    ("recovering", "state restored"): "running",
    ("recovering", "keeps its own state"): "running",
    ("recovering", "nobody has a state"): "gathering",
    ("recovering", "stops"): "draining",
    ("recovering", "gives up"): "halted",
    ("draining", "leaves"): "halted",
    ("draining", "gives up"): "halted",
}
"""Next phase; the key is the phase and the trigger. ``leaves``: the peer announces its departure.
``gives up``: the peer cannot continue, because it has no trainer, no quorum or no state."""


def after(phase: Phase, trigger: Trigger) -> Phase:
    """Return the next phase. The trigger must have an entry for this phase."""
    following = TRANSITIONS.get((phase, trigger))
    assert following is not None, f"{trigger!r} cannot happen while {phase}"
    return following
