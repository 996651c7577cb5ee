"""Join servers: newcomers ask them for an id, and launchers exchange the addresses of peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import join_messages as join_messages
    from .join_calls import JoinServerUnreachable as JoinServerUnreachable
    from .join_calls import ask as ask
    from .join_calls import join as join
    from .join_calls import source_towards as source_towards
    from .join_calls import split as split
    from .join_calls import why_silent as why_silent
    from .join_endpoint import JoinEndpoint as JoinEndpoint
    from .join_server import JoinServer as JoinServer
    from .join_server import JoinServerCallbacks as JoinServerCallbacks
    from .registry import JOIN_SERVER_ID_BYTES as JOIN_SERVER_ID_BYTES
    from .registry import JUMP_MAX as JUMP_MAX
    from .registry import ServerEntry as ServerEntry
    from .registry_folder import RegistryFolder as RegistryFolder
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "join_server": ("JoinServer", "JoinServerCallbacks"),
            "join_calls": (
                "JoinServerUnreachable",
                "ask",
                "join",
                "source_towards",
                "split",
                "why_silent",
            ),
            "registry_folder": ("RegistryFolder",),
            "join_messages": ("join_messages",),
            "registry": (
                "JOIN_SERVER_ID_BYTES",
                "ServerEntry",
                "JUMP_MAX",
            ),
            "join_endpoint": ("JoinEndpoint",),
        },
    )
