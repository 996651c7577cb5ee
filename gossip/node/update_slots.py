"""Slots of the arena into which the trainer writes its updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


class UpdateSlots:
    """Assigns slots of the arena to updates.

    A slot is in use from the start of its round until the trainer has written its update, and then
    as long as the worker or the transport may read the slot.

    Args:
        count: Number of slots.
        in_flight: Returns whether the transport still reads an array.
    """

    def __init__(self, count: int, in_flight: Callable[[object], bool]) -> None:
        self._in_flight = in_flight
        self._order = list(range(count))  # Most recently used slot first: it may be in the cache.
        self._rounds: dict[int, int] = {}  # Slot -> round of the update to be written to the slot.
        self._inspected: set[int] = set()
        self._offered: dict[int, Sequence[NDArray[np.generic]]] = {}

    def assign(self, round_id: int) -> int | None:
        """Assign a slot to a round and return it. Return None while all slots are in use."""
        for slot, assigned in self._rounds.items():
            if assigned == round_id:
                return slot  # the round was started before, without samples
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
        """Release the slots of round ``round_id`` and of all earlier rounds."""
        for slot in [slot for slot, assigned in self._rounds.items() if assigned <= round_id]:
            del self._rounds[slot]

    def is_scarce(self, slot: int) -> bool:
        """Whether later rounds need this slot, because other peers still read the other slots,
        except at most one."""
        others = sum(1 for other in self._order if other != slot and self._is_read(other))
        return others >= len(self._order) - 2

    def inspect(self, slot: int) -> None:
        """Record that the worker reads the slot until ``offer`` is called."""
        self._inspected.add(slot)

    def offer(self, slot: int, arrays: Sequence[NDArray[np.generic]]) -> None:
        """Record the arrays in the slot that the transport may read from now on."""
        self._inspected.discard(slot)
        self._offered[slot] = arrays

    def _is_read(self, slot: int) -> bool:
        return any(self._in_flight(array) for array in self._offered.get(slot, ()))
