"""Slots of the arena into which the trainer writes its updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


class UpdateSlots:
    """Choice of the slot for the next update.

    A slot is in use from the start of its round until the trainer has offered its update, and while
    the worker or the transport may read it.

    Args:
        count: Number of slots.
        in_flight: Returns whether the transport still reads an array.
    """

    def __init__(self, count: int, in_flight: Callable[[object], bool]) -> None:
        self._in_flight = in_flight
        self._order = list(range(count))  # Last used slot first, because it is in the cache.
        self._rounds: dict[int, int] = {}  # By slot: round that the trainer computes in it.
        self._inspected: set[int] = set()
        self._offered: dict[int, Sequence[NDArray[np.generic]]] = {}

    def assign(self, round_id: int) -> int | None:
        """Return a slot for a round; None while all slots are in use."""
        for slot, assigned in self._rounds.items():
            if assigned == round_id:
                return slot  # the round was started before, but without samples
        for slot in self._order:
            if not (slot in self._rounds or slot in self._inspected or self._is_read(slot)):
                self._offered.pop(slot, None)
                self._order.remove(slot)
                self._order.insert(0, slot)
                self._rounds[slot] = round_id
                return slot
        return None

    def release(self, slot: int) -> None:
        """Record that the trainer no longer writes to the slot."""
        self._rounds.pop(slot, None)

    def release_until(self, round_id: int) -> None:
        """Release the slots of all rounds up to this one."""
        for slot in [slot for slot, assigned in self._rounds.items() if assigned <= round_id]:
            del self._rounds[slot]

    def is_scarce(self, slot: int) -> bool:
        """Whether this slot is needed for a later round, because other peers still read the other
        slots."""
        others = sum(1 for other in self._order if other != slot and self._is_read(other))
        return others >= len(self._order) - 2

    def inspect(self, slot: int) -> None:
        """Record that the worker reads the slot until ``offer`` is called."""
        self._inspected.add(slot)

    def offer(self, slot: int, arrays: Sequence[NDArray[np.generic]]) -> None:
        """Record arrays in the slot, which the transport may read after this call."""
        self._inspected.discard(slot)
        self._offered[slot] = arrays

    def _is_read(self, slot: int) -> bool:
        return any(self._in_flight(array) for array in self._offered.get(slot, ()))
