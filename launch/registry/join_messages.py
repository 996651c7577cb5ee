"""Messages of the join protocol and their encoding: requests and replies. Every message is one
frame of msgpack within narrow limits.

The first four bytes of each message are the version of the protocol, so that a mismatch is noticed.
"""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias, get_args

from gossip.errors import Malformed
from gossip.transport import PROTOCOL_VERSION, Codec, Limits

from .registry import JOIN_SERVERS_MAX, PeerEntry, ServerEntry

VERSION = b"GDR1"
# Entries of 1024 peers and 1024 join servers need a third of this size.
MESSAGE_BYTES_MAX = 512 * 1024
CONFIG_BYTES_MAX = 64 * 1024
WORD_MAX = 4096
WORDS_MAX = 1024
SAYING_MAX = 1024


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions that must be the same on all peers, because peers decode each other's messages and
    must compute the same results from them."""

    protocol: int
    gossip: str
    python: str
    torch: str

    @classmethod
    def here(cls) -> Versions:
        """Return the versions of this machine, without importing torch. The part of torch's version
        after the + is omitted: CPU and CUDA peers may train together."""
        python = ".".join(platform.python_version_tuple()[:2])
        return cls(
            PROTOCOL_VERSION, _version("gossip-train"), python, _version("torch").partition("+")[0]
        )

    def differences(self, other: Versions) -> list[str]:
        """Return a text such as ``torch 2.13.0 here, 2.12.1 there`` for each difference from
        ``other``, the versions of the remote side."""
        pairs = (
            (field.name, getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)
        )
        return [
            f"{name} {own} here, {others} there" for name, own, others in pairs if own != others
        ]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


# --- requests -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Query for a description of the run. It changes no state."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Request to admit ``count`` newcomers. ``join_server``: id of their launcher's future join
    server."""

    join_server: bytes
    count: int
    versions: Versions


@dataclass(frozen=True, slots=True)
class ProposeIds:
    """Request for the consent to assign these ids to newcomers."""

    run: bytes
    entries: tuple[PeerEntry, ...]


@dataclass(frozen=True, slots=True)
class RegistryPull:
    """Request for all entries of the receiver. The reply contains the entries only if the
    receiver's digest differs from ``digest``, that of the sender's entries."""

    run: bytes
    sender: ServerEntry
    digest: bytes


@dataclass(frozen=True, slots=True)
class RegistryPush:
    """Entries that have changed at the sender. After a pull that found a difference: all entries of
    the sender."""

    run: bytes
    sender: ServerEntry
    entries: tuple[PeerEntry, ...]
    join_servers: tuple[ServerEntry, ...]


# --- replies --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Reply to ``RunQuery``.

    Attributes:
        seen: Address of the sender of the request, as this join server sees it.
        command, folder: Command of the local peers, and its working directory; empty if they are
            not recorded.
        commit: Git commit of the code of the local peers; "" if the code is not in git.
    """

    run: bytes
    name: str
    state: Literal["not begun", "running", "over"]
    peers: tuple[int, ...]
    free: int
    seen: str
    versions: Versions
    command: tuple[str, ...]
    folder: str
    commit: str


@dataclass(frozen=True, slots=True)
class JoinAccepted:
    """Reply to ``JoinRequest``: ids with their first incarnations, and the contents for the run's
    folder. ``config``: JSON."""

    run: bytes
    ids: tuple[tuple[int, int], ...]
    config: bytes
    entries: tuple[PeerEntry, ...]
    join_servers: tuple[ServerEntry, ...]


@dataclass(frozen=True, slots=True)
class JoinRejected:
    """Rejection of any request, with a hint. ``kind`` "wait" means: retry in a moment."""

    kind: Literal["version", "run", "full", "over", "wait"]
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class GrantedIds:
    """Reply to ``ProposeIds``: the proposed ids that no peer has and no other proposal contains, as
    far as the receiver knows."""

    peers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegistryState:
    """Reply to ``RegistryPull`` and ``RegistryPush``: the digest of the registry of this join
    server. If a pull contains another digest, the reply also contains all entries."""

    join_server: ServerEntry
    digest: bytes
    entries: tuple[PeerEntry, ...]
    join_servers: tuple[ServerEntry, ...]


Question: TypeAlias = RunQuery | JoinRequest | ProposeIds | RegistryPull | RegistryPush
Answer: TypeAlias = RunInfo | JoinAccepted | JoinRejected | GrantedIds | RegistryState
Said: TypeAlias = Question | Answer

_CODEC: Codec[Said] = Codec(
    (*get_args(Question), *get_args(Answer)),
    Limits(
        message_bytes=MESSAGE_BYTES_MAX,
        bytes_max=64,
        str_max=80,
        items_max=JOIN_SERVERS_MAX,
        larger={
            (JoinAccepted, "config"): CONFIG_BYTES_MAX,
            (RunInfo, "command"): WORD_MAX,
            (RunInfo, "folder"): WORD_MAX,
            (JoinRejected, "message"): SAYING_MAX,
            (JoinRejected, "hint"): SAYING_MAX,
        },
    ),
)


def encode(said: Said) -> bytes:
    """Encode a message. Raises: ValueError: The message exceeds a limit, which is a bug of the
    caller."""
    return VERSION + _CODEC.encode(said)


def decode(data: bytes | memoryview) -> Said:
    """Decode a message. Raises: Malformed: ``data`` is not the output of ``encode``. No other
    exception is raised."""
    version = bytes(data[: len(VERSION)])
    if version != VERSION:
        is_other = version[:3] == VERSION[:3]
        raise Malformed(
            f"{version[3:].decode('ascii', 'replace')!r} is another version of the join protocol"
            if is_other
            else "not from a join server"
        )
    return _CODEC.decode(data[len(VERSION) :])


def is_other_version(data: bytes) -> bool:
    """Whether the message is from a join server with another version of the protocol."""
    return data[:3] == VERSION[:3] and data[: len(VERSION)] != VERSION
