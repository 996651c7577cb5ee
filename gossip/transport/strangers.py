"""Unknown keys that were rejected recently. Their number is bounded, and no single host can use up
the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator

STRANGERS_MAX = 64
OF_AN_ADDRESS_MAX = 4
"""Largest number of stored keys of one address. A host has few peers of a run, but can invent
keys."""
TOLD_MAX = 16
"""Largest number of addresses with a notice. It is a fraction of all notices, so that there is room
for other ones."""
NOTICE_S = 2.0
"""Time before users are notified of an unknown key, in seconds. The key of a newcomer may still be
in transit."""
FORGET_S = 60.0


class RefusedKeys:
    """Rejected keys and their addresses."""

    def __init__(self) -> None:
        # Key -> time of the first check, 0.0 before it, and address.
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
        """Yield keys and addresses for notices. Each address gets one notice, with one key, and
        another one if it returns later."""
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
        """Return the addresses with a notice older than ``FORGET_S``, and drop these addresses."""
        over = [address for address, since in self._told.items() if now - since >= FORGET_S]
        for address in over:
            del self._told[address]
        return over
