"""Sentences about replicas that differ, from the events of type ``divergence``."""

from __future__ import annotations

from typing import Any

from gossip.observe import events
from gossip.run import text_of

from .words import counted

FIELDS = ("peer", "round", "replaced", "tensors", "count", "largest", "cause", "remedy")


def entry_of(event: events.Divergence) -> dict[str, Any]:
    """Return the entry of ``divergences`` in summary.json for an event."""
    return {name: getattr(event, name) for name in FIELDS} | {"largest": _largest(event)}


def _largest(event: events.Divergence) -> float | None:
    """Return the largest difference of two elements of the tensors; None if it is not known."""
    return event.largest if event.largest is not None and event.largest >= 0 else None


def describe(event: events.Divergence) -> str:
    """Return the event as a clause. Its subject, the peer, is left out."""
    names = [str(text_of(name)) for name in event.tensors or ()]
    shown = ", ".join(names[:3]) or "a tensor"
    more = (event.count or len(names)) - len(names[:3])
    what = f"{shown} and {counted(more, 'other tensor')}" if more > 0 else shown
    if not event.peers_differ:
        return (
            f"{what}: {text_of(event.cause)}, which would make its replica differ: "
            f"{text_of(event.remedy)}"
        )
    largest = _largest(event)
    by = "" if largest is None else f" by up to {largest:.3g}"
    healed = "; it has copied the state of the majority" if event.replaced else ""
    return (
        f"differs from most replicas in {what}{by} (before round {event.round}){healed}. "
        f"Likely cause: {text_of(event.cause)}. Remedy: {text_of(event.remedy)}"
    )
