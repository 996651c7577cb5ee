"""Sharing of equal ledgers between the peers of a simulation.

After the same commits all peers have equal ledgers. Each change of a ledger is computed only for
the first peer that makes it, on a copy; the other peers share the result. A peer that reaches a
ledger with the same content in another way, for example by adopting a state, shares the ledger
again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from gossip.core import BegunRound, Commit, Ledger, Peer

T = TypeVar("T")

KEPT = 32
"""Number of stored changes. A peer that is farther behind computes the changes itself."""


class SharedLedgers:
    """Shared ledgers of the peers of one run in rolling rounds."""

    def __init__(self) -> None:
        self._changed: OrderedDict[tuple[Ledger, Hashable], tuple[Ledger, Any]] = OrderedDict()
        self._begun: OrderedDict[Ledger, BegunRound] = OrderedDict()
        self._by_content: OrderedDict[Hashable, Ledger] = OrderedDict()
        self._headers: dict[int, tuple[Commit, bytes]] = {}

    def add(self, peer: Peer) -> None:
        """Let a peer share ledgers. Call this before the peer starts."""
        peer.share_ledgers(self, self._headers)

    def change(
        self, ledger: Ledger, key: Hashable, method: Callable[..., T], *arguments: Any
    ) -> tuple[Ledger, T]:
        """Return the changed ledger and the result of ``method``, as ``Ledgers.change`` does."""
        found = self._changed.get((ledger, key))
        if found is None:
            made = ledger.copy()
            result = method(made, *arguments)
            *_, content = self.begin(made)
            found = _keep(self._by_content, content, made), result
            _keep(self._changed, (ledger, key), found)
        return found

    def begin(self, ledger: Ledger) -> BegunRound:
        """Return the round that begins with this ledger."""
        found = self._begun.get(ledger)
        return _keep(self._begun, ledger, ledger.begin()) if found is None else found


def _keep(store: OrderedDict[Any, T], key: Hashable, value: T) -> T:
    """Return the stored value of a key. If there is none, store and return ``value``."""
    kept = store.setdefault(key, value)
    while len(store) > KEPT:
        store.popitem(last=False)
    return kept
