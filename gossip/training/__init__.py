"""What touches the user's model: the session, the flat layout, the data,
the arena shared with the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import node_start as node_start
    from .feedback import UpdateEncoder as UpdateEncoder
    from .schedulers import counts_steps as counts_steps, steps_of as steps_of
    from .session import Session as Session
    from .spawning import spawn as spawn
    from .start import init as init
else:
    __getattr__, __dir__ = lazy(__name__)
