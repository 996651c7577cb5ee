"""Unknown keys that were rejected lately. Their number is bounded, and no host can use up the bound
alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

STRANGERS_MAX = 64
OF_AN_ADDRESS_MAX = 4
"""Largest number of keys of one address. A host has few peers of a run, but any number of keys."""
TOLD_MAX = 16
"""Largest number of addresses with a notice: a fraction of all notices, so that there is room for
others."""
NOTICE_S = 2.0
"""Time in seconds before users are notified of an unknown key: that of a newcomer may be in
transit."""
FORGET_S = 60.0


class RefusedKeys:
    """Rejected keys, with their addresses."""

    def __init__(self) -> None:
        # time of the first check, 0.0 before it, and address, by key
        self._since: dict[str, tuple[float, str]] = {}
        self._told: dict[str, float] = {}  # time of the notice, by address

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
        """Yield the keys and addresses for notices: one key for each address, once, and again if
        the address returns later."""
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
        """Return the addresses with a notice older than ``FORGET_S``, and drop them."""
        over = [address for address, since in self._told.items() if now - since >= FORGET_S]
        for address in over:
            del self._told[address]
        return over
