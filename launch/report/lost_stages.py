"""Messages about stages of a pipeline that lose all their peers."""

from __future__ import annotations

from gossip.observe import events


def lost(event: events.StageLost) -> str:
    """Return the message about an event ``stage_lost``."""
    who = "?" if event.peers is None else ", ".join(map(str, event.peers))
    return f"stage {event.stage} has lost all its peers ({who}): the others wait for one"


def rebuilt(event: events.StageRebuilt) -> str:
    """Return the message about an event ``stage_rebuilt``."""
    stage, behind = event.stage, event.lost
    match event.source:
        case "checkpoint":
            made = f"of its last checkpoint, {behind} rounds older than the others"
        case "own":
            made = f"with what its trainer had, {behind} rounds older than the others"
        case "neighbours":
            made = "of the layers of the stages beside it"
        case _:
            made = "of fresh weights: all that it had learnt is lost"
    fresh = event.fresh if event.source == "neighbours" else 0
    rest = f"; {fresh} of its layers have no like and are fresh" if fresh else ""
    return f"stage {stage} goes on in round {event.round}, {made}{rest}"
