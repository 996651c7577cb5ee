"""How a launcher opens its door."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JoinEndpoint:
    """Where a door is, and which others it knows.

    Attributes:
        seeds: Addresses (``HOST:PORT``, numbers) of other doors of the run;
            those they know of are visited, too.
        host: To listen on; "": the address that the peers here listen on.
        port: 0: any that is free.
        door: Its number, where others know it already; b"": drawn.
        key: File of the run's swarm key, by which doors know each other; None: the one in the run's
            folder, if there is one.
        invites: Say how others join; not where somebody else does, who knows all doors.
    """

    seeds: tuple[str, ...] = ()
    host: str = ""
    port: int = 0
    join_server: bytes = b""
    key: Path | None = None
    invites: bool = True
