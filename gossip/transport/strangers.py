"""Keys that were refused lately because this peer does not know them. They are bounded, and no host
can use up the bound alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

STRANGERS_MAX = 64
OF_AN_ADDRESS_MAX = 4
"""A host has a few peers that may be ours; keys somebody may have as many as he likes."""
TOLD_MAX = 16
"""Addresses that people are told of at a time: a fraction of all notices,
so that other matters are still told."""
NOTICE_S = 2.0
"""Time in seconds for which a key is unknown before users are told: that of a newcomer may be on
its way."""
FORGET_S = 60.0


class RefusedKeys:
    """Keys that were refused, and where from."""

    def __init__(self) -> None:
        # key -> when it was first looked at, 0.0: not yet; and its address
        self._since: dict[str, tuple[float, str]] = {}
        self._told: dict[str, float] = {}  # address -> when

    def refuse(self, key: str, address: str) -> None:
        if (
            key in self._since
            or sum(other == address for _, other in self._since.values()) >= OF_AN_ADDRESS_MAX
        ):
            return
        if len(self._since) >= STRANGERS_MAX:
            del self._since[next(iter(self._since))]
        self._since[key] = (0.0, address)

    def keys_to_report(
        self, now: float, is_known: Callable[[str], bool]
    ) -> Iterator[tuple[str, str]]:
        """Keys and addresses that people should hear of: one for each address, once, and again when
        it comes back later."""
        for key, (since, address) in list(self._since.items()):
            if is_known(key) or (since and now - since >= FORGET_S):
                del self._since[key]
            elif not since:
                self._since[key] = (now, address)
            elif (
                now - since >= NOTICE_S and address not in self._told and len(self._told) < TOLD_MAX
            ):
                self._told[address] = now
                yield key, address

    def settled(self, now: float) -> list[str]:
        """Addresses that people have been told of long ago."""
        over = [address for address, since in self._told.items() if now - since >= FORGET_S]
        for address in over:
            del self._told[address]
        return over
