"""Join servers: newcomers ask them for an id, and launchers exchange the addresses of peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import door_messages as door_messages
    from .door import JoinServer as JoinServer
    from .door import JoinServerCallbacks as JoinServerCallbacks
    from .door_calls import JoinServerUnreachable as JoinServerUnreachable
    from .door_calls import ask as ask
    from .door_calls import join as join
    from .door_calls import source_towards as source_towards
    from .door_calls import split as split
    from .door_calls import why_silent as why_silent
    from .door_folder import RegistryFolder as RegistryFolder
    from .doorkeeper import JOIN_SERVER_ID_BYTES as JOIN_SERVER_ID_BYTES
    from .doorkeeper import JUMP_MAX as JUMP_MAX
    from .doorkeeper import ServerEntry as ServerEntry
    from .entrance import JoinEndpoint as JoinEndpoint
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "door": ("JoinServer", "JoinServerCallbacks"),
            "door_calls": (
                "JoinServerUnreachable",
                "ask",
                "join",
                "source_towards",
                "split",
                "why_silent",
            ),
            "door_folder": ("RegistryFolder",),
            "door_messages": ("door_messages",),
            "doorkeeper": (
                "JOIN_SERVER_ID_BYTES",
                "ServerEntry",
                "JUMP_MAX",
            ),
            "entrance": ("JoinEndpoint",),
        },
    )
