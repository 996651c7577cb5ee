"""How a launcher opens its join server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JoinEndpoint:
    """Where a join server is, and which others it knows.

    Attributes:
        seeds: Addresses (``HOST:PORT``, numbers) of other join servers of the run;
            those they know of are visited, too.
        host: To listen on; "": the address that the peers here listen on.
        port: 0: any that is free.
        join_server: Its number, where others know it already; b"": drawn.
        key: File of the run's swarm key, by which join servers know each other; None: the one in
            the run's folder, if there is one.
        invites: Say how others join; not where somebody else does, who knows all join servers.
    """

    seeds: tuple[str, ...] = ()
    host: str = ""
    port: int = 0
    join_server: bytes = b""
    key: Path | None = None
    invites: bool = True
