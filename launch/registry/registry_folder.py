"""Files of a join server in its run's folder: addresses of peers, claims to ids, and the join
servers that share the folder."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from gossip.errors import ConfigError
from gossip.run import (
    FILE_BYTES_MAX,
    claims_in,
    create_claim,
    open_file,
    peers_in,
    read_at_most,
    read_json,
    read_seed,
    shown,
    write_json,
    write_seed,
)

from .registry import (
    CLAIMED,
    JOIN_SERVER_ID_BYTES,
    LET_IN,
    PeerEntry,
    Registry,
    RegistryDelta,
    ServerEntry,
)

JOIN_SERVERS = "join_servers"


class RegistryFolder:
    """The files of one join server in the folder of a run."""

    def __init__(self, run: Path, join_server: bytes) -> None:
        self._seeds, self._join_servers = run / "seeds", run / JOIN_SERVERS
        self._file = self._join_servers / f"{join_server.hex()}.json"
        # (inode, modification time) of the seed file last read, by peer
        self._read: dict[int, tuple[int, int]] = {}
        self._claims: set[tuple[int, int]] = set()
        self._others: set[str] = set()

    def place(self) -> bytes:
        """Return the random id of this folder. The first join server that uses the folder
        generates the id.

        Raises: ConfigError: The file does not contain an id.
        """
        self._join_servers.mkdir(parents=True, exist_ok=True)
        path = self._join_servers / "place"
        scratch = self._join_servers / f".place.{self._file.stem}"
        scratch.write_text(secrets.token_hex(JOIN_SERVER_ID_BYTES), "utf-8")
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)  # Atomic. Fails if the file exists.
        scratch.unlink()
        return _number_in(path)

    def announce(self, entry: ServerEntry) -> None:
        """Write the address of this join server."""
        write_json(
            self._file,
            {
                "address": entry.address,
                "join_server": entry.join_server,
                "place": entry.place,
                "pid": os.getpid(),
            },
        )

    def withdraw(self) -> None:
        self._file.unlink(missing_ok=True)

    def poll_changes(self, keeper: Registry, let_in: Collection[int]) -> Iterator[RegistryDelta]:
        """Merge changes in the folder into the registry, and yield them."""
        for peer in peers_in(self._seeds):
            known = keeper.entries.get(peer)
            promoted = (
                peer in keeper.own
                and peer in let_in
                and known is not None
                and known.progress < LET_IN
            )
            if self._has_changed(peer) or promoted:
                seed = read_seed(self._seeds, peer)
                if seed is not None:
                    yield keeper.publish(seed, promoted)
        for peer, incarnation in claims_in(self._seeds) - self._claims:
            self._claims.add((peer, incarnation))
            known = keeper.entries.get(peer)
            if known is None or known.incarnation < incarnation:
                yield keeper.claimed(peer, incarnation)

    def _has_changed(self, peer: int) -> bool:
        try:
            status = (self._seeds / f"{peer}.addr").stat()
        except FileNotFoundError:
            return False
        stamp = (status.st_ino, status.st_mtime_ns)
        changed = self._read.get(peer) != stamp and status.st_size <= FILE_BYTES_MAX
        self._read[peer] = stamp
        return changed

    def other_join_servers(self) -> list[str]:
        """Return the addresses of join servers that are new in this folder."""
        new = [
            path
            for path in self._join_servers.glob("*.json")
            if path != self._file and path.name not in self._others
        ]
        self._others.update(path.name for path in new)
        return [str((read_json(path) or {}).get("address", "")) for path in new]

    def write(self, news: RegistryDelta, keeper: Registry) -> None:
        """Write the changes that came from other join servers into the folder, where the local
        peers read them."""
        for entry in news.entries:
            owner = keeper.join_servers.get(entry.owner)
            if entry.peer in keeper.own or (
                owner is not None and owner.place == keeper.local.place
            ):
                continue  # The peer's own launcher writes its files.
            self._seeds.mkdir(parents=True, exist_ok=True)
            if entry.progress == CLAIMED or entry.peer >= keeper.first:
                # A newcomer with an address needs a claim, too: otherwise a peer that joins by this
                # folder could claim the same id.
                create_claim(self._seeds, entry.peer, entry.incarnation)
            if (seed := entry.seed) is not None:
                write_seed(self._seeds, seed)

    def claim(self, entries: Iterable[PeerEntry]) -> bool:
        """Claim ids in the folder, so that peers that join by the folder do not claim the same ids.
        Return False if another claim was first."""
        self._seeds.mkdir(parents=True, exist_ok=True)
        return all(create_claim(self._seeds, entry.peer, entry.incarnation) for entry in entries)


def _number_in(path: Path) -> bytes:
    with open_file(path) as file:
        said = read_at_most(file, 2 * JOIN_SERVER_ID_BYTES, path)
    try:
        number = bytes.fromhex(said.decode("ascii"))
    except ValueError:
        number = b""
    if len(number) != JOIN_SERVER_ID_BYTES:
        raise ConfigError(
            f"{shown(path)} does not have {2 * JOIN_SERVER_ID_BYTES} hexadecimal digits",
            f"remove {shown(path)}",
        )
    return number
