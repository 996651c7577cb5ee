"""Bytes between peers: the contract, the codec, and what carries it (memory, ZeroMQ)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import sockets as sockets
    from .addresses import is_loopback as is_loopback
    from .addresses import is_one_host as is_one_host
    from .addresses import source_towards as source_towards
    from .assembly import TOLD_EVERY_S as TOLD_EVERY_S
    from .base import Arrival as Arrival
    from .base import PayloadLimit as PayloadLimit
    from .base import ResultRoom as ResultRoom
    from .base import Transport as Transport
    from .chunks import checksum as checksum
    from .codec import HEADER_BYTES_MAX as HEADER_BYTES_MAX
    from .codec import PARSER_ERRORS as PARSER_ERRORS
    from .codec import PROTOCOL_VERSION as PROTOCOL_VERSION
    from .codec import Codec as Codec
    from .codec import Limits as Limits
    from .codec import decode as decode
    from .codec import encode as encode
    from .curve import KEY_CHARS as KEY_CHARS
    from .curve import Authenticator as Authenticator
    from .curve import KeyPair as KeyPair
    from .curve import Keys as Keys
    from .curve import as_client as as_client
    from .curve import as_server as as_server
    from .curve import is_key as is_key
    from .curve import new_pair as new_pair
    from .curve import prove_closed as prove_closed
    from .curve import public_of as public_of
    from .encoded import EncodedTransport as EncodedTransport
    from .holders import holder_of as holder_of
    from .lending import Buffer as Buffer
    from .memory import Hub as Hub
    from .memory import MemoryTransport as MemoryTransport
    from .sockets import bind as bind
    from .sockets import bound_address as bound_address
    from .sockets import endpoint as endpoint
    from .sockets import listen as listen
    from .sockets import new_socket as new_socket
    from .zeromq import ZeroMQTransport as ZeroMQTransport
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "addresses": (
                "is_loopback",
                "is_one_host",
                "source_towards",
            ),
            "assembly": ("TOLD_EVERY_S",),
            "base": (
                "Arrival",
                "PayloadLimit",
                "ResultRoom",
                "Transport",
            ),
            "chunks": ("checksum",),
            "codec": (
                "PARSER_ERRORS",
                "Codec",
                "HEADER_BYTES_MAX",
                "Limits",
                "PROTOCOL_VERSION",
                "decode",
                "encode",
            ),
            "curve": (
                "Authenticator",
                "KEY_CHARS",
                "KeyPair",
                "Keys",
                "as_client",
                "as_server",
                "is_key",
                "new_pair",
                "prove_closed",
                "public_of",
            ),
            "encoded": ("EncodedTransport",),
            "holders": ("holder_of",),
            "lending": ("Buffer",),
            "memory": (
                "Hub",
                "MemoryTransport",
            ),
            "sockets": (
                "bind",
                "bound_address",
                "endpoint",
                "listen",
                "new_socket",
                "sockets",
            ),
            "zeromq": ("ZeroMQTransport",),
        },
    )
