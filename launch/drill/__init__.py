"""Fault injection into a live run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import command
else:
    __getattr__, __dir__ = lazy(__name__)
