"""Transport of messages and payloads between peers: the interface, the codec, and the
implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import sockets
    from .addresses import (
        is_loopback,
        is_one_host,
        source_towards,
    )
    from .assembly import TOLD_EVERY_S
    from .base import (
        Arrival,
        PayloadLimit,
        ResultRoom,
        Transport,
        WrappedTransport,
    )
    from .codec import (
        HEADER_BYTES_MAX,
        PARSER_ERRORS,
        PROTOCOL_VERSION,
        Codec,
        Limits,
        decode,
        encode,
    )
    from .curve import (
        KEY_CHARS,
        Authenticator,
        KeyPair,
        Keys,
        as_client,
        as_server,
        is_key,
        new_pair,
        prove_closed,
        public_of,
    )
    from .encoded import EncodedTransport
    from .lending import Buffer, start_of
    from .sockets import (
        bind,
        endpoint,
        find_listener,
        listen,
        new_socket,
    )
    from .zeromq import ZeroMQTransport
else:
    __getattr__, __dir__ = lazy(__name__)
