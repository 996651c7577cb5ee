"""The node of a peer: an event loop that owns the sockets, runs the core and serves one trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import loop
    from .loop import Node, NodeSpec
    from .reducer import Reducer
    from .shard_steps import run_step
    from .spec import peer_class, wire_of
    from .worker import Worker
else:
    __getattr__, __dir__ = lazy(__name__)
