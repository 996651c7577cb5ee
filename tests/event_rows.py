"""Rows of ``events.jsonl``, and events, for tests of readers."""

from __future__ import annotations

from typing import Any

from gossip.observe import Event, read_event


def event_row(event: str, peer: int | None, t: float = 1.0, **fields: Any) -> dict[str, Any]:
    return {"t": t, "peer": peer, "event": event, **fields}


def event(name: str, peer: int, t: float = 0.0, **fields: Any) -> Event:
    return read_event(event_row(name, peer, t, **fields))
