"""A copy of the state for the node, which others have asked for it: all that this costs the
training is the copying."""

from __future__ import annotations

from collections.abc import Callable

from gossip.errors import GossipError
from gossip.ipc import Snapshot, allocate, clip, map_bytes

from .state import PackingPlan


def copy_state(round_id: int, make_plan: Callable[[], PackingPlan]) -> tuple[Snapshot, int | None]:
    """Return the message for the node, and the memory that travels with it.

    Each number is copied once, straight into that memory. If that fails, the message has the error
    and there is no memory.
    """
    try:
        plan = make_plan()
        fd = allocate(plan.nbytes)
    except GossipError as error:
        return Snapshot(round_id, 0, clip(str(error))), None
    plan.write(map_bytes(fd, plan.nbytes))
    return Snapshot(round_id, plan.nbytes, "", plan.parts, plan.base), fd
