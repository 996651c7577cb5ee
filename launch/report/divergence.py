"""Sentences about replicas that differ, from the events in which peers report it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gossip.run import real, text_of, whole

from .words import counted

Row = Mapping[str, Any]
FIELDS = ("peer", "round", "replaced", "tensors", "count", "largest", "cause", "remedy")


def entry_of(event: Row) -> dict[str, Any] | None:
    """Return the entry of ``divergences`` in summary.json that an event makes; None if it warns of
    a divergence that may come."""
    if not event.get("peers_differ"):
        return None
    largest = real(event.get("largest"))
    found = {name: event.get(name) for name in FIELDS}
    return {**found, "largest": largest if largest is not None and largest >= 0 else None}


def describe(event: Row) -> str:
    """Return what an event reports, as a clause with the peer as its subject."""
    tensors = event.get("tensors")
    names = [str(text_of(name)) for name in tensors] if isinstance(tensors, list) else []
    shown = ", ".join(names[:3]) or "a tensor"
    more = (whole(event.get("count")) or len(names)) - len(names[:3])
    what = f"{shown} and {counted(more, 'other tensor')}" if more > 0 else shown
    if not event.get("peers_differ"):
        return (
            f"{what}: {text_of(event.get('cause'))}, and its replica would differ then: "
            f"{text_of(event.get('remedy'))}"
        )
    largest = real(event.get("largest"))
    by = f" by up to {largest:.3g}" if largest is not None and largest >= 0 else ""
    healed = "; it has copied the state of most" if event.get("replaced") else ""
    return (
        f"differs from most replicas in {what}{by} (before round {event.get('round')}){healed}. "
        f"Likely cause: {text_of(event.get('cause'))}. Remedy: {text_of(event.get('remedy'))}"
    )
