"""Discovery of the peers of a run on one file system. Each peer writes its address to a file in a
folder that all peers read."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError

from .records import WriteFailures
from .telemetry import write_json
from .untrusted import open_in, parse_json, read_at_most

SEARCH_S = 0.1  # Interval of reads while a peer is missing.
WATCH_S = 2.0  # Interval when all are connected: a restarted peer has a new address.
AGAIN_S = 1.0  # Time before another attempt to write the address of this peer.
FILE_BYTES_MAX = 4096
NEWCOMER, OWN = "newcomer", "own"
"""Claimants of an incarnation: a newcomer that gets the id of a peer that has ended, or the same
peer, restarted by a scheduler."""
# Timeout of a connection. A live peer accepts a connection at once, or after a moment if its host
# is far away.
ANSWER_S = 1.0


@dataclass(frozen=True, slots=True)
class Seed:
    """Entry of a peer in the seed folder: its address, or the mark that it has ended."""

    peer: int
    control: str
    bulk: str
    incarnation: int
    ended: bool = False  # The peer has ended permanently.
    key: str = ""  # Public key of the peer; "" if peers have no keys.
    coming: bool = False  # A launcher has claimed this incarnation, and is starting it.


class SeedFolder:
    """Folder ``<run>/seeds``. The folder has a file ``<id>.addr`` for each peer, with the peer's
    address, or a mark that the peer has ended permanently.

    Args:
        ids: Number of ids. Files with higher ids are ignored.
    """

    def __init__(self, folder: Path, local: int, ids: int) -> None:
        self.path = self._folder = folder
        self._local, self._ids = local, ids
        self._claims: set[tuple[int, int]] = set()  # Returned by ``poll_seeds``.
        self._read: dict[int, tuple[int, int]] = {}  # (inode, time) of each file when last read.
        self._next_poll = 0.0
        self._untold: list[Seed] = []  # Entries read since the last ``poll_seeds``.
        self.keys: dict[int, str] = {}  # Public keys, by peer.
        self.version = 0  # Number of changes of ``keys``.

    def next_incarnation(self, given: int) -> int:
        """Return the incarnation of a new node of this peer: ``given``, but at least one more than
        the incarnation in the peer's file. Both the trainer and the launcher start new nodes."""
        former = read_seed(self._folder, self._local)
        return given if former is None else max(given, former.incarnation + 1)

    def announce(self, control: str, bulk: str, incarnation: int, key: str = "") -> None:
        """Write the local peer's address, and its public key, which the other peers admit."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_seed(self._folder, Seed(self._local, control, bulk, incarnation, key=key))

    def later_life(self, incarnation: int) -> int | None:
        """Return the incarnation in the local peer's file if it is later than ``incarnation``, or
        None."""
        seed = read_seed(self._folder, self._local)
        if seed is None or seed.ended or seed.incarnation <= incarnation:
            return None
        return seed.incarnation

    def poll_seeds(self, now: float, all_linked: bool) -> list[Seed]:
        """Return the entries that are new since the last call. If a poll is due, read the folder
        first."""
        if now >= self._next_poll:
            self._next_poll = now + (WATCH_S if all_linked else SEARCH_S)
            # If there are no file descriptors left, or the disk fails, keep the present entries
            # until the next poll.
            with contextlib.suppress(OSError):
                self.read()
        untold, self._untold = self._untold, []
        return untold

    def read(self) -> None:
        """Read new entries of the folder, which ``poll_seeds`` returns. If the folder was deleted,
        the earlier entries stay valid."""
        if self._read and not self._folder.is_dir():
            return
        others = [
            peer for peer in peers_in(self._folder) if peer < self._ids and peer != self._local
        ]
        for peer in [peer for peer in self._read if peer not in others]:
            del self._read[peer]
            self._set_key(peer, "")
        self._untold += [
            seed for peer in others if (seed := self._read_if_changed(peer)) is not None
        ]
        self._untold += self._claimed()

    def _claimed(self) -> list[Seed]:
        """Return an entry for each peer that is about to start: its next incarnation is claimed,
        but has no address yet."""
        new = claims_in(self._folder) - self._claims
        self._claims |= new
        lives = {seed.peer: seed.incarnation for seed in seeds_in(self._folder)}
        coming = [
            (peer, life) for peer, life in sorted(new) if peer < self._ids and peer != self._local
        ]
        return [
            Seed(peer, "", "", life, coming=True)
            for peer, life in coming
            if lives.get(peer, -1) < life
        ]

    def _set_key(self, peer: int, key: str) -> None:
        if self.keys.get(peer, "") != key:
            self.version += 1
            self.keys[peer] = key
            if not key:
                del self.keys[peer]

    def _read_if_changed(self, peer: int) -> Seed | None:
        stamp = self._stamp(peer)
        if stamp is None or self._read.get(peer) == stamp:
            return None
        self._read[peer] = stamp
        seed = read_seed(self._folder, peer)
        self._set_key(peer, "" if seed is None else seed.key)
        return seed

    def _stamp(self, peer: int) -> tuple[int, int] | None:
        """Return the inode and modification time of a peer's file, which change when the file is
        written. Return None if there is no such file, or if it is too long."""
        try:
            status = (self._folder / f"{peer}.addr").stat(follow_symlinks=False)
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns) if status.st_size <= FILE_BYTES_MAX else None


class Announcement:
    """Writer of the local peer's address. It retries until it succeeds, because no other peer can
    connect before.

    Args:
        write: Function that writes the address.
        tell: Function that writes an event: one for each new reason of a failure, and one when a
            later attempt succeeds.
        troubles: Record of the failure; ``tell`` reports it.
    """

    def __init__(
        self,
        folder: Path,
        write: Callable[[], None],
        tell: Callable[..., None],
        troubles: WriteFailures,
    ) -> None:
        self._folder, self._write, self._tell, self._troubles = folder, write, tell, troubles
        self._why = self._reported_why = ""
        self._again_at = 0.0
        self._done = False

    def attempt(self, now: float) -> None:
        """Try to write the address. Write no event yet."""
        self._again_at = now + AGAIN_S
        try:
            self._write()
        except OSError as error:
            self._why = error.strerror or type(error).__name__
            self._troubles.lacks(self._folder)
            return
        self._done, self._why = True, ""
        self._troubles.recovered(self._folder)

    def tick(self, now: float) -> None:
        """Retry if a retry is due. Write an event if the outcome has changed. Call this often."""
        if not self._done and now >= self._again_at:
            self.attempt(now)
        if self._why != self._reported_why:
            self._reported_why = self._why
            self._tell(
                "unannounced" if self._why else "announced", path=str(self._folder), why=self._why
            )


def announce_end(folder: Path, peer: int, incarnation: int = 0) -> None:
    """Record in ``folder`` that a peer has ended permanently. Launchers read this record.

    ``incarnation``: last incarnation of the peer. Its node may have ended before it wrote a file.
    """
    if folder.is_dir():
        former = read_seed(folder, peer)
        last = incarnation if former is None else max(incarnation, former.incarnation)
        write_seed(folder, Seed(peer, "", "", last, ended=True))


def write_seed(folder: Path, seed: Seed) -> None:
    """Replace the entry of a peer in ``folder``, which must exist, atomically."""
    fields: dict[str, Any] = {"incarnation": seed.incarnation}
    fields |= {"ended": True} if seed.ended else {"control": seed.control, "bulk": seed.bulk}
    write_json(folder / f"{seed.peer}.addr", fields | ({"key": seed.key} if seed.key else {}))


def peers_in(folder: Path) -> list[int]:
    """Return the peers that have a file in ``folder``, ascending."""
    found = [name[:-5] for name in _names_in(folder) if name.endswith(".addr")]
    return sorted(int(name) for name in found if name.isdecimal())


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []  # no peer has written a file yet


def read_seed(folder: Path, peer: int) -> Seed | None:
    """Return the entry in the file of a peer; None if there is no file, or the file is invalid."""
    try:
        with open_in(folder, f"{peer}.addr") as file:
            return parse_seed(peer, file.read(FILE_BYTES_MAX + 1))
    except (FileNotFoundError, ConfigError):
        return None


def seeds_in(folder: Path, but: Container[int] = ()) -> list[Seed]:
    """Return the entries of all peers in ``folder``, except the peers in ``but``."""
    found = [read_seed(folder, peer) for peer in peers_in(folder) if peer not in but]
    return [seed for seed in found if seed is not None]


def claim(folder: Path, first: int, ids: int) -> tuple[int, int] | None:
    """Claim an id for a newcomer: an unused id from ``first`` to ``ids`` - 1, or if there is none,
    the id of a peer that has ended.

    Returns: The id, and the newcomer's first incarnation; None if all ids are in use. The process
    that creates the claim's file owns the claim, so two newcomers never get the same id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Peers of other hosts have entries here, but their claims may be in other folders.
    known = set(peers_in(folder))
    for peer in range(first, ids):
        if peer not in known and create_claim(folder, peer, 0):
            return peer, 0
    for seed in seeds_in(folder):
        life = seed.incarnation + 1
        if seed.ended and seed.peer < ids and create_claim(folder, seed.peer, life):
            return seed.peer, life
    return None


def claim_life(folder: Path, peer: int) -> int | None:
    """Claim the next free incarnation of a peer with a given id, and return it. No other process
    gets the same incarnation.

    Return None if the peer has ended and a newcomer has its id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    former = read_seed(folder, peer)
    incarnation = 0 if former is None else former.incarnation + 1
    if (
        former is not None
        and not former.ended
        and _claimed_by(folder, peer, former.incarnation) == NEWCOMER
    ):
        return None
    while not create_claim(folder, peer, incarnation, OWN):
        if _claimed_by(folder, peer, incarnation) == NEWCOMER:
            return None
        incarnation += 1
    return incarnation


def answers(seed: Seed) -> bool:
    """Whether a process listens at a peer's address."""
    host, _, port = seed.control.removeprefix("tcp://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S):
            return True
    except (OSError, ValueError):
        return False


def is_answered(folder: Path, but: int) -> bool:
    """Whether a peer in ``folder`` other than ``but`` can be reached. Also True if no other peer
    has an entry, because the other peers may not have started yet."""
    seeds = seeds_in(folder, (but,))
    return not seeds or any(answers(seed) for seed in seeds if not seed.ended)


def create_claim(folder: Path, peer: int, incarnation: int, who: str = NEWCOMER) -> bool:
    """Claim an incarnation of a peer. Return whether this is the first claim: of two processes that
    claim the same incarnation, only one can create the file."""
    try:
        with (folder / f"{peer}.{incarnation}.claim").open("x", encoding="ascii") as file:
            file.write(who)
    except FileExistsError:
        return False
    return True


def _claimed_by(folder: Path, peer: int, incarnation: int) -> str:
    """Return the claimant of an incarnation of a peer, ``NEWCOMER`` or ``OWN``. Raises:
    ConfigError: The claim cannot be read. A guess could let two processes run as the same peer."""
    name = f"{peer}.{incarnation}.claim"
    try:
        with open_in(folder, name) as file:
            claimant = read_at_most(file, FILE_BYTES_MAX, folder / name).decode("ascii", "replace")
    except FileNotFoundError:
        return OWN  # A launcher starts its own peers without claims.
    return claimant or NEWCOMER  # An empty file is being written right now.


def claims_in(folder: Path) -> set[tuple[int, int]]:
    """Return all claims in ``folder``, as pairs of peer and incarnation."""
    names = [name.split(".") for name in _names_in(folder) if name.endswith(".claim")]
    return {
        (int(words[0]), int(words[1]))
        for words in names
        if len(words) == 3 and words[0].isdecimal() and words[1].isdecimal()
    }


def parse_seed(peer: int, data: bytes) -> Seed | None:
    """Return the entry in the content of a peer's file; None if it is invalid. An invalid file is
    no evidence against the peer, because other processes may have written it."""
    try:
        fields = parse_json(data)
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    control, bulk, incarnation = (
        fields.get("control"),
        fields.get("bulk"),
        fields.get("incarnation", 0),
    )
    if not isinstance(incarnation, int) or incarnation < 0:
        return None
    if fields.get("ended") is True:
        return Seed(peer, "", "", incarnation, ended=True)
    if not (isinstance(control, str) and isinstance(bulk, str) and "incarnation" in fields):
        return None
    key = fields.get("key", "")
    return Seed(peer, control, bulk, incarnation, key=key if isinstance(key, str) else "")
