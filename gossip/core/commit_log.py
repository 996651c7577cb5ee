"""The last commits with their payloads, for those who are a little behind. Bounded in rounds and in bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from .events import Payload
from .messages import Commit

Held: TypeAlias = tuple[tuple[Commit, Payload | None], ...]
"""The commits of one round with their payloads, one a shard."""

ROUNDS_KEPT_ALWAYS = 2


class CommitLog:
    """Args: ``rounds_max`` and ``bytes_max`` bound it; the last two rounds are kept whatever they weigh."""

    def __init__(self, rounds_max: int, bytes_max: int) -> None:
        self.rounds_max, self.bytes_max = rounds_max, bytes_max
        self._rounds: OrderedDict[int, Held] = OrderedDict()
        self._bytes = 0

    def append(self, round_id: int, held: Held) -> None:
        self._rounds[round_id] = held
        self._bytes += _weight(held)
        while len(self._rounds) > ROUNDS_KEPT_ALWAYS and (len(self._rounds) > self.rounds_max or self._bytes > self.bytes_max):
            _, old = self._rounds.popitem(last=False)
            self._bytes -= _weight(old)

    def get(self, round_id: int) -> Held | None:
        return self._rounds.get(round_id)

    def since(self, first: int) -> list[Held]:
        """Every round from ``first`` on; empty when ``first`` is not kept any more."""
        if first not in self._rounds:
            return []
        return [held for round_id, held in self._rounds.items() if round_id >= first]

    def clear(self) -> None:
        self._rounds.clear()
        self._bytes = 0


def _weight(held: Held) -> int:
    return sum(payload.nbytes for _, payload in held if payload is not None)
