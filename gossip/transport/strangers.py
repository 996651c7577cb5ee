"""Unknown keys that were rejected recently. Their number is limited, in total and for each
address."""

from __future__ import annotations

from collections.abc import Callable, Iterator

STRANGERS_MAX = 64
OF_AN_ADDRESS_MAX = 4
"""Maximum number of stored keys of one address. A host has few peers of a run, but can generate any
number of keys."""
TOLD_MAX = 16
"""Maximum number of addresses with a notice. It is below ``NOTICES_MAX``, so that there is room for
other notices."""
NOTICE_S = 2.0
"""Delay before the user is notified of an unknown key, in seconds. The key of a new peer may still
be in transit."""
FORGET_S = 60.0


class RefusedKeys:
    """Rejected keys, and the addresses from which they connected."""

    def __init__(self) -> None:
        # Key -> (time of the first call of ``keys_to_report``, or 0.0 before that call; address).
        self._since: dict[str, tuple[float, str]] = {}
        self._told: dict[str, float] = {}  # address -> time of its notice

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
        """Yield pairs (key, address) for notices. An address gets one notice, with one of its keys,
        and may get another notice after ``settled``."""
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
        """Remove and return the addresses with a notice older than ``FORGET_S``."""
        over = [address for address, since in self._told.items() if now - since >= FORGET_S]
        for address in over:
            del self._told[address]
        return over
