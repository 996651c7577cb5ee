"""Slots for the results of rounds in the arena. A result that is received or computed in a slot
need not be copied for the trainer, and other peers on the host can read it there. All other results
are copied to a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gossip.core import Apply
from gossip.transport import Buffer, start_of
from gossip.vectors import ByteArray, Vector


@dataclass(slots=True)
class _Landing:
    """A slot in which results are received or computed."""

    at: int
    whole: Vector
    shards: tuple[Buffer, ...]
    round_id: int = -1
    told: bool = False  # whether the trainer reads the slot


class ResultSlots:
    """The result slots of one arena. The first slots are for copied results. The other slots are
    landing slots, in which results are received or computed.

    A landing slot is free if the trainer does not read it and no reference to its content exists.
    The core keeps references while other peers may request the result, so the slots are used in
    rotation. A slot that was never used takes no memory, so it is used only if no other slot is
    free.

    If results are ``lent``, the gradients of the trainer are views of the result's slot. The slot
    is free after the trainer has applied the next result.

    Args:
        results: The slots, each of shape ``(elements,)``.
        copied: Number of slots for copied results.
        bounds: Start and stop of each shard, in elements.
        in_flight: Returns whether the transport still reads an array.
        lent: Whether the arena lends results (``Arena.lends_results``).
    """

    def __init__(
        self,
        results: Sequence[Vector],
        copied: int,
        bounds: Sequence[tuple[int, int]],
        in_flight: Callable[[object], bool],
        *,
        lent: bool,
    ) -> None:
        self._copied = copied
        self._free = list(range(min(copied, len(results))))
        self._unused = deque(
            _Landing(
                at,
                whole,
                tuple([Buffer(whole[start:stop].view(np.uint8)) for start, stop in bounds]),
            )
            for at, whole in enumerate(results)
            if at >= copied
        )
        self._landings: deque[_Landing] = deque()
        # Whether results are lent, and the slot of which the gradients are views.
        self._lent, self._in_gradients = lent, -1
        self._of_round: dict[int, _Landing] = {}
        self._told: dict[int, _Landing] = {}
        self._in_flight = in_flight

    def room(self, round_id: int, shard: int, nbytes: int) -> ByteArray | None:
        """Return memory for the result of a shard. Return None if no slot is free, or if the slot
        of the round already has a result of this shard."""
        landing = self._of_round.get(round_id) or self._next(round_id)
        if landing is None or landing.told or shard >= len(landing.shards):
            return None
        buffer = landing.shards[shard]
        if buffer.nbytes != nbytes or not buffer.is_free or self._in_flight(buffer.memory):
            return None
        return buffer.lend(nbytes)

    def _next(self, round_id: int) -> _Landing | None:
        """Return the landing slot that was assigned least recently, if it is free. Otherwise return
        a slot that was never used, or None."""
        if self._landings and not self._is_used(self._landings[0]):
            landing = self._landings.popleft()
        elif self._unused:
            landing = self._unused.popleft()
        else:
            return None
        self._landings.append(landing)
        self._of_round.pop(landing.round_id, None)
        landing.round_id = round_id
        self._of_round[round_id] = landing
        return landing

    def _is_used(self, landing: _Landing) -> bool:
        return (
            landing.told
            or not all(shard.is_free for shard in landing.shards)
            or self._in_flight(landing.whole)
        )

    def place(self, effect: Apply) -> tuple[int, bool] | None:
        """Return the slot for a round that the trainer applies, and whether the slot already has
        the result. Return None if the result must be copied and no slot is free for the copy."""
        landing = self._of_round.get(effect.round_id)
        if landing is not None and not landing.told and _lies_in(effect, landing.whole):
            landing.told = True
            self._told[landing.at] = landing
            return landing.at, True
        # The slot that was freed last may still be in the CPU cache.
        return (self._free.pop(), False) if self._free else None

    def applied(self, slot: int) -> None:
        """Record that the trainer has applied the result in a slot. The trainer's gradients are
        then views of no other slot."""
        if self._lent:
            slot, self._in_gradients = self._in_gradients, slot
        if 0 <= slot < self._copied:
            self._free.append(slot)
        elif (landing := self._told.pop(slot, None)) is not None:
            landing.told = False


def _lies_in(effect: Apply, whole: Vector) -> bool:
    """Whether all shards of the result are at their places in the slot ``whole``, and there is no
    mix."""
    at = 0
    for payload in effect.payloads:
        if start_of(payload.data) != start_of(whole) + at:
            return False
        at += payload.nbytes
    return at == whole.nbytes and effect.mix is None
