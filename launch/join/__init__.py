"""Joining a run in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import arriving
    from .command import join
    from .own_folder import (
        CONFIG,
        furnish,
        settings,
    )
else:
    __getattr__, __dir__ = lazy(__name__)
