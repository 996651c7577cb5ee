"""Checks of this machine and of its connection to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .command import doctor
else:
    __getattr__, __dir__ = lazy(__name__)
