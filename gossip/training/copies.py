"""A copy of the state for the node, which others have asked for it: all that this costs the
training is the copying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gossip.errors import GossipError
from gossip.ipc import Snapshot, allocate, clip, map_bytes

from .optimizer import in_train_mode
from .state import plan_state


def copy_state(
    round_id: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    extra: Callable[[], dict[str, Any]],
) -> tuple[Snapshot, int | None]:
    """What to tell the node, and the memory that goes with it: each number is copied once,
    straight into that.

    Args:
        extra: What belongs to the state beside model and optimizer.
    """
    with in_train_mode(optimizer):
        try:
            plan = plan_state(model, optimizer, extra())
            fd = allocate(plan.nbytes)
        except GossipError as error:
            return Snapshot(round_id, 0, clip(str(error))), None
        plan.write(map_bytes(fd, plan.nbytes))
    return Snapshot(round_id, plan.nbytes, "", plan.parts), fd
