"""Join servers: newcomers ask them for an id, and launchers exchange the addresses of peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import join_messages as join_messages
    from .join_calls import (
        JoinServerUnreachable as JoinServerUnreachable,
        ask as ask,
        join as join,
        source_towards as source_towards,
        split as split,
        why_silent as why_silent,
    )
    from .join_endpoint import JoinEndpoint as JoinEndpoint
    from .join_server import JoinServer as JoinServer, JoinServerCallbacks as JoinServerCallbacks
    from .registry import (
        JOIN_SERVER_ID_BYTES as JOIN_SERVER_ID_BYTES,
        JUMP_MAX as JUMP_MAX,
        ServerEntry as ServerEntry,
    )
    from .registry_folder import RegistryFolder as RegistryFolder
else:
    __getattr__, __dir__ = lazy(__name__)
