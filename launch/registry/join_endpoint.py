"""Settings with which a launcher opens its join server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JoinEndpoint:
    """Endpoint of a join server, and the addresses of other join servers.

    Attributes:
        seeds: Addresses (``HOST:PORT``, the host as an IP address) of other join servers of the
            run. Join servers that these servers report are called, too.
        host: Address to listen on; "" means the address that the local peers listen on.
        port: Port to listen on; 0 means any free port.
        join_server: Id of this join server, if other join servers already have it; b"" means a
            random id.
        key: File of the run's swarm key, with which join servers authenticate each other; None
            means the file in the run's folder, if it exists.
        invites: Whether to print the command with which other machines join. False if another
            launcher prints the command with all join servers.
    """

    seeds: tuple[str, ...] = ()
    host: str = ""
    port: int = 0
    join_server: bytes = b""
    key: Path | None = None
    invites: bool = True
