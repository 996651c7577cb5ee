"""Peers that are pods of an indexed job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .command import kubernetes
else:
    __getattr__, __dir__ = lazy(__name__)
