"""Ledgers that the peers of one simulation share.

After the same commits all peers have equal ledgers. Each change of a ledger is computed once, for
the first peer that makes it; the others share the result. A shared ledger never changes: each
change is made on a copy. A peer that adopts a state, or that reaches the same content in another
way, shares its ledger again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from gossip.core import BegunRound, Commit, Ledger, Peer

T = TypeVar("T")

KEPT = 32
"""Number of changes that are kept. A peer that is farther behind computes its own results."""


class SharedLedgers:
    """Ledgers of the peers of one run, in rolling rounds."""

    def __init__(self) -> None:
        self._changed: OrderedDict[tuple[Ledger, Hashable], tuple[Ledger, Any]] = OrderedDict()
        self._begun: OrderedDict[Ledger, BegunRound] = OrderedDict()
        self._by_content: OrderedDict[Hashable, Ledger] = OrderedDict()
        self._headers: dict[int, tuple[Commit, bytes]] = {}

    def add(self, peer: Peer) -> None:
        """Let a peer share its ledger, before it starts."""
        peer.share_ledgers(self, self._headers)

    def change(
        self, ledger: Ledger, key: Hashable, method: Callable[..., T], *arguments: Any
    ) -> tuple[Ledger, T]:
        """Return a changed ledger and the result, as ``Ledgers.change`` does."""
        found = self._changed.get((ledger, key))
        if found is None:
            made = ledger.copy()
            result = method(made, *arguments)
            *_, content = self.begin(made)
            found = _keep(self._by_content, content, made), result
            _keep(self._changed, (ledger, key), found)
        return found

    def begin(self, ledger: Ledger) -> BegunRound:
        """Return the round that begins with a ledger."""
        found = self._begun.get(ledger)
        return _keep(self._begun, ledger, ledger.begin()) if found is None else found


def _keep(store: OrderedDict[Any, T], key: Hashable, value: T) -> T:
    """Return the stored value of a key. Store ``value`` if there is none."""
    kept = store.setdefault(key, value)
    while len(store) > KEPT:
        store.popitem(last=False)
    return kept
