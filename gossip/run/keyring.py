"""Key pair of a peer, and the public keys of the other peers. The keys in the seed files are
admitted."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from gossip.core import PeerId
from gossip.errors import ConfigError
from gossip.transport import KeyPair, is_key, new_pair

from .keys import AllowList, fingerprint, read_pair
from .rendezvous import SeedFolder

LOOK_S = 0.05  # limits reads, because unknown peers may connect at any rate
ALLOWED_S = 0.5
STRUCK_MAX = 1024


class Keyring:
    """Implementation of ``gossip.transport.curve.Keys`` with the keys in a seed folder. The driver
    of the node reads the same ``SeedFolder``.

    A new seed file admits its peer. If the file is deleted, or marks its peer as ended, the
    admission is revoked. A restarted peer has a new key.

    Args:
        allowed: Allow-list of keys that seed files may have; None allows any key.
    """

    def __init__(
        self,
        pair: KeyPair,
        folder: SeedFolder,
        allowed: AllowList | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pair, self._folder, self._allowed, self._clock = pair, folder, allowed, clock
        self._refreshed_at = float("-inf")
        self._names = {} if allowed is None else allowed.keys()
        self._names_read_at, self._changes = clock(), 0
        self._struck: set[str] = set()  # keys that were removed from the allow-list during this run
        self._by_key: dict[str, PeerId] = {}
        self._version = -1

    @property
    def version(self) -> int:
        if self._allowed is not None and (now := self._clock()) - self._names_read_at >= ALLOWED_S:
            self._names_read_at = now
            if (names := self._allowed.keys()) != self._names:
                self._struck = self._struck.union(self._names).difference(names)
                while len(self._struck) > STRUCK_MAX:
                    self._struck.pop()
                self._names, self._changes = names, self._changes + 1
        return self._folder.version + self._changes

    def not_allowed(self, key: str) -> tuple[str, str] | None:
        """Return the reason why a key is not admitted, and a hint. Return None if the key is on the
        allow-list, or if there is no allow-list."""
        if self._may_be(key):
            return None
        assert self._allowed is not None, "without a list all keys are allowed"
        how = "was struck off" if key in self._struck else "is not on"
        return (
            f"(fingerprint {fingerprint(key)}) {how} the allow-list {self._allowed.path}",
            f"if it may take part, add a line to that file, which is read again at once: {key}",
        )

    def outside(self) -> dict[PeerId, str]:
        """Return the key in the seed file of each peer, if the key is not on the allow-list."""
        return {
            peer: key
            for peer, key in self._folder.keys.items()
            if is_key(key) and not self._may_be(key)
        }

    def key_of(self, peer: PeerId) -> str | None:
        key = self._folder.keys.get(peer)
        return key if is_key(key) and self._may_be(key) else None

    def peer_of(self, key: str) -> PeerId | None:
        if self._version != (version := self.version):
            self._version = version
            claimed: defaultdict[str, list[PeerId]] = defaultdict(list)
            for peer, known in self._folder.keys.items():
                if self._may_be(known):
                    claimed[known].append(peer)
            # A key belongs to the peer that had it first. So a peer that publishes another peer's
            # key can neither impersonate nor block that peer.
            before = self._by_key
            self._by_key = {
                known: before[known] if before.get(known) in peers else peers[0]
                for known, peers in claimed.items()
                if len(peers) == 1 or before.get(known) in peers
            }
        return self._by_key.get(key)

    def _may_be(self, key: str | None) -> bool:
        return self._allowed is None or key in self._names

    def refresh(self) -> None:
        now = self._clock()
        if now - self._refreshed_at >= LOOK_S:
            self._refreshed_at = now
            self._folder.read()


def own_pair(file: str, peer: PeerId) -> KeyPair:
    """Return the key pair in a file. ``{peer}`` in the file's name is replaced by the peer's id. If
    ``file`` is "", return a new pair, which is in memory only.

    Raises: ConfigError: The file has no key, or other users can read it.
    """
    return read_pair(Path(file.replace("{peer}", str(peer)))) if file else new_pair()


def listed_pair(file: str, peer: PeerId, allowed: AllowList | None) -> KeyPair:
    """Return ``own_pair``, and check that its public key is on the allow-list.

    Raises: ConfigError: The peer's key is not on the list. All other peers would reject this peer,
        so it would wait for them, or train alone.
    """
    pair = own_pair(file, peer)
    if allowed is None or allowed.name_of(pair.public) is not None:
        return pair
    if not file:
        raise ConfigError(
            f"peer {peer} has no key file, and a new key of this peer cannot be on the "
            f"allow-list {allowed.path}",
            "set GOSSIP_KEY to the file of a listed key: GOSSIP_KEY='keys/{peer}.key'",
        )
    raise ConfigError(
        f"the key of peer {peer} is not on the allow-list {allowed.path}: public "
        f"{pair.public}, fingerprint {fingerprint(pair.public)}; the other peers would reject it",
        f"add the line: {pair.public} peer-{peer}; or name in GOSSIP_KEY the file of the key that "
        "is on the list",
    )


def allow_list(file: str) -> AllowList | None:
    """Return the allow-list in a file; None if ``file`` is "". Raises: ConfigError: There is no
    such file, or a line in it is not a key."""
    if not file:
        return None
    found = AllowList(file)
    found.check()
    return found
