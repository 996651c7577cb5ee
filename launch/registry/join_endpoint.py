"""How a launcher opens its join server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JoinEndpoint:
    """Endpoint of a join server, and the addresses of other join servers.

    Attributes:
        seeds: Addresses (``HOST:PORT``, numbers) of other join servers of the run. The join servers
            that these report are also visited.
        host: Address to listen on; "" means the address that the peers here listen on.
        port: Port to listen on; 0 means any free port.
        join_server: Id of this join server, if others have it already; b"" means drawn.
        key: File of the run's swarm key, by which join servers authenticate each other; None means
            the file in the run's folder, if there is one.
        invites: Whether to print the command with which others join. False if another launcher
            prints it, which has all join servers.
    """

    seeds: tuple[str, ...] = ()
    host: str = ""
    port: int = 0
    join_server: bytes = b""
    key: Path | None = None
    invites: bool = True
