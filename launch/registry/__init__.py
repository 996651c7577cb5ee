"""Join servers: they assign ids to newcomers, and exchange peers' addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import join_messages
    from .join_calls import (
        JoinServerUnreachable,
        ask,
        join,
        source_towards,
        split,
        why_silent,
    )
    from .join_endpoint import JoinEndpoint
    from .join_server import JoinServer, JoinServerCallbacks
    from .registry import (
        JOIN_SERVER_ID_BYTES,
        JUMP_MAX,
        ServerEntry,
    )
    from .registry_folder import RegistryFolder
else:
    __getattr__, __dir__ = lazy(__name__)
