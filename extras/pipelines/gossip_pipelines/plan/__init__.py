"""``gossip plan``: measures layers and links, and finds the fastest kind of training on these
peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import command
    from .carrying_out import options_of
else:
    __getattr__, __dir__ = lazy(__name__)
