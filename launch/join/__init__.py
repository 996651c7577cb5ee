"""Joining a run that trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import arriving as arriving
    from .command import join as join
    from .own_folder import (
        CONFIG as CONFIG,
        furnish as furnish,
        settings as settings,
        supervise as supervise,
    )
else:
    __getattr__, __dir__ = lazy(__name__)
