"""Who can be expected to be in time: everybody but those whom the last commits did without.

All peers see the same commits, so all servers are of one opinion.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from .deadline import Deadline
from .messages import PeerId, Update

MISSES = 2
"""Rounds without a peer after which nobody waits long for it. One that is late once is not slow."""
AMENDS = 8
"""Rounds in time, more than those without it, after which a slow one is waited for again: who is in time now and then only must
not hold up the others each time."""
PATIENCE_S = 0.5
"""At least so long is waited for one that is not known to be slow, however soon others come: a busy machine takes its time."""
PATIENCE_ROUNDS = 0.5
"""And so much of a round as it usually takes: what makes rounds long makes lags long."""
SERVED_MAX = 64
"""Attempts of which is remembered when the first update came."""


class Punctuality:
    """How long a server waits for whom. ``deadline`` learns the lags, also of those who came too late: else it would shrink."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._missed: dict[PeerId, int] = {}
        self._began: OrderedDict[tuple[int, int, int], float] = OrderedDict()  # (round, shard, attempt) -> the first update came

    def committed(self, expected: Iterable[PeerId], contributors: Collection[PeerId]) -> None:
        """A round has ended. ``contributors``: whose updates are in all its commits; a round without any tells nothing."""
        if not contributors:
            return
        for peer in expected:
            missed = self._missed.pop(peer, 0)
            if peer in contributors:
                missed -= 1
            elif missed < MISSES:
                missed = missed + 1 if missed + 1 < MISSES else MISSES + AMENDS
            if missed > 0:
                self._missed[peer] = missed

    def is_slow(self, peer: PeerId) -> bool:
        return self._missed.get(peer, 0) >= MISSES

    def patience_s(self, missing: Iterable[PeerId]) -> float:
        """How long after the first update those who are ``missing`` may come."""
        if all(self.is_slow(peer) for peer in missing):
            return self._deadline.grace_s()
        return max(self._deadline.grace_s(), PATIENCE_S, PATIENCE_ROUNDS * self._deadline.usual_round_s())

    def came(self, update: Update, first_at: float, now: float) -> None:
        """Somebody else's update, in time."""
        self._began[update.round_id, update.shard, update.attempt] = first_at
        if len(self._began) > SERVED_MAX:
            self._began.popitem(last=False)
        self._deadline.observe(now - first_at)

    def came_late(self, sender: PeerId, update: Update, now: float) -> None:
        """The attempt that it is for is over here. Of one that is known to be slow it tells nothing new: it would slow us all."""
        first_at = self._began.get((update.round_id, update.shard, update.attempt))
        if first_at is not None and not self.is_slow(sender):
            self._deadline.observe(min(now - first_at, self._deadline.cap_s))
