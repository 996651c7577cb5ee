"""Peers that are jobs of HTCondor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .command import condor
else:
    __getattr__, __dir__ = lazy(__name__)
