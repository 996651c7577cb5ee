"""Messages about stages of a pipeline that lose all their peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lost(event: Mapping[str, Any]) -> str:
    """Return the message about an event ``stage_lost``."""
    peers = event.get("peers")
    who = ", ".join(map(str, peers)) if isinstance(peers, list) else "?"
    return f"stage {event.get('stage')} has lost all its peers ({who}): the others wait for one"


def rebuilt(event: Mapping[str, Any]) -> str:
    """Return the message about an event ``stage_rebuilt``."""
    stage, behind = event.get("stage"), event.get("lost")
    match event.get("source"):
        case "checkpoint":
            made = f"of its last checkpoint, {behind} rounds older than the others"
        case "own":
            made = f"with what its trainer had, {behind} rounds older than the others"
        case "neighbours":
            made = "of the layers of the stages beside it"
        case _:
            made = "of fresh weights: all that it had learnt is lost"
    fresh = event.get("fresh")
    some = event.get("source") == "neighbours" and isinstance(fresh, int) and fresh > 0
    rest = f"; {fresh} of its layers have no like and are fresh" if some else ""
    return f"stage {stage} goes on in round {event.get('round')}, {made}{rest}"
