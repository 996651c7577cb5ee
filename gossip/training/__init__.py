"""Integration with the user's model: the session, the flat layout, the data,
and the arena shared with the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import node_start
    from .exchange import TrainedModel
    from .feedback import UpdateEncoder
    from .loader import ShardedLoader
    from .schedulers import counts_steps, steps_of
    from .searching import SearchingPeer
    from .session import Session
    from .spawning import spawn
    from .start import init
else:
    __getattr__, __dir__ = lazy(__name__)
