"""A peer's own pair of keys, and those of the others: the seed files are the list of who is let in."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gossip.core.messages import PeerId
from gossip.transport.curve import KeyPair, is_key, new_pair

from .keys import read_pair
from .rendezvous import SeedFolder

PEER_KEY = "peer.key"
"""In a peer's own folder, when somebody has put one there: the pair that it has in all its lives."""
LOOK_S = 0.05  # strangers may knock as often as they like


class Keyring:
    """A ``gossip.transport.curve.Keys`` over a seed folder, which whoever drives the node reads, too.

    A file that comes lets its peer in, one that says that its peer has ended, or that is deleted, puts it out, and a restarted
    peer's has another key.
    """

    def __init__(self, pair: KeyPair, folder: SeedFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self.pair, self._folder, self._clock = pair, folder, clock
        self._looked_at = float("-inf")
        self._by_key: dict[str, PeerId] = {}
        self._version = -1

    @property
    def version(self) -> int:
        return self._folder.version

    def key_of(self, peer: PeerId) -> str | None:
        key = self._folder.keys.get(peer)
        return key if is_key(key) else None

    def peer_of(self, key: str) -> PeerId | None:
        if self._version != self._folder.version:
            self._version = self._folder.version
            self._by_key = {known: peer for peer, known in self._folder.keys.items()}
        return self._by_key.get(key)

    def look(self) -> None:
        now = self._clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._folder.read()


def own_pair(folder: Path | None) -> KeyPair:
    """The pair that lies in the peer's folder, or else a new one, which is kept in memory only.

    Raises: ConfigError: The file there is no key, or others can read it.
    """
    path = None if folder is None else folder / PEER_KEY
    return read_pair(path) if path is not None and path.exists() else new_pair()
