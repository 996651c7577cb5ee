"""Where newcomers knock, and where the launchers of a run tell each other where their peers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import door_messages as door_messages
    from .door import Door as Door
    from .door_calls import Unanswered as Unanswered
    from .door_calls import ask as ask
    from .door_calls import join as join
    from .door_calls import source_towards as source_towards
    from .door_calls import split as split
    from .door_calls import why_silent as why_silent
    from .door_folder import DoorFolder as DoorFolder
    from .doorkeeper import DOOR_ID_BYTES as DOOR_ID_BYTES
    from .doorkeeper import JUMP_MAX as JUMP_MAX
    from .doorkeeper import DoorEntry as DoorEntry
    from .entrance import Entrance as Entrance
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "door": ("Door",),
            "door_calls": (
                "Unanswered",
                "ask",
                "join",
                "source_towards",
                "split",
                "why_silent",
            ),
            "door_folder": ("DoorFolder",),
            "door_messages": ("door_messages",),
            "doorkeeper": (
                "DOOR_ID_BYTES",
                "DoorEntry",
                "JUMP_MAX",
            ),
            "entrance": ("Entrance",),
        },
    )
