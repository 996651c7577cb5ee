"""Joining a run that trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import arriving as arriving
    from .command import join as join
    from .own_folder import CONFIG as CONFIG
    from .own_folder import furnish as furnish
    from .own_folder import settings as settings
    from .own_folder import supervise as supervise
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "arriving": ("arriving",),
            "command": ("join",),
            "own_folder": (
                "CONFIG",
                "furnish",
                "settings",
                "supervise",
            ),
        },
    )
