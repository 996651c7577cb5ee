"""Bytes between peers: the contract, the codec, and what carries it (memory, ZeroMQ)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import sockets as sockets
    from .addresses import (
        is_loopback as is_loopback,
        is_one_host as is_one_host,
        source_towards as source_towards,
    )
    from .assembly import TOLD_EVERY_S as TOLD_EVERY_S
    from .base import (
        Arrival as Arrival,
        PayloadLimit as PayloadLimit,
        ResultRoom as ResultRoom,
        Transport as Transport,
    )
    from .chunks import checksum as checksum
    from .codec import (
        HEADER_BYTES_MAX as HEADER_BYTES_MAX,
        PARSER_ERRORS as PARSER_ERRORS,
        PROTOCOL_VERSION as PROTOCOL_VERSION,
        Codec as Codec,
        Limits as Limits,
        decode as decode,
        encode as encode,
    )
    from .curve import (
        KEY_CHARS as KEY_CHARS,
        Authenticator as Authenticator,
        KeyPair as KeyPair,
        Keys as Keys,
        as_client as as_client,
        as_server as as_server,
        is_key as is_key,
        new_pair as new_pair,
        prove_closed as prove_closed,
        public_of as public_of,
    )
    from .encoded import EncodedTransport as EncodedTransport
    from .holders import holder_of as holder_of
    from .lending import Buffer as Buffer
    from .memory import Hub as Hub, MemoryTransport as MemoryTransport
    from .sockets import (
        bind as bind,
        endpoint as endpoint,
        listen as listen,
        new_socket as new_socket,
    )
    from .zeromq import ZeroMQTransport as ZeroMQTransport
else:
    __getattr__, __dir__ = lazy(__name__)
