"""How long a server waits for whom: for one that is late for once longer than for one
that is always late.

Who was in the commits is seen by all alike. How late each came is seen by those who serve, also of
those who came after the end: else what was learnt would only ever shrink.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from gossip.core.messages import PeerId, Update

from .timeouts import Deadline, RecentMedian

MISSES = 2
"""Rounds without a peer after which nobody waits long for it. One that is late once is not slow."""
AMENDS = 8
"""Rounds in time, more than those without it, after which a slow one is waited for again: who is in
time now and then only must not hold up the others each time."""
ANOTHER_CHANCE = 32
"""Rounds without a slow one after which it is waited for once more: its link may be slow, which
only waiting shows."""
PATIENCE_S = 0.5
"""At least so long is waited for one that is not known to be slow, however soon others come: a busy
machine takes its time."""
PATIENCE_ROUNDS = 1.0
"""And so many rounds as they usually take: what makes rounds long makes lags long."""
SERVED_MAX = 64
"""Attempts of which is remembered when the first update came."""
LAGS_KEPT, LAGS_ENOUGH = 8, 4
"""Number of lags kept of each peer, and the number that is enough to judge it."""


class LatenessTracker:
    """``timeouts`` learns the lags of all, from which the grace follows."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._missed: dict[PeerId, int] = {}
        self._absent: dict[PeerId, int] = {}  # rounds in a row without it
        self._lags: dict[PeerId, RecentMedian] = {}
        # (round, shard, attempt) -> the first update came
        self._began: OrderedDict[tuple[int, int, int], float] = OrderedDict()

    def committed(
        self,
        roster: Iterable[PeerId],
        expected: Collection[PeerId],
        contributors: Collection[PeerId],
    ) -> None:
        """A round has ended.

        Args:
            expected: Of whom something could come. Who was away is not waited for long when it is
                back, before it takes part.
            contributors: Whose updates are in all its commits; a round without any tells nothing.
        """
        for peer in roster if contributors else ():
            missed = self._missed.pop(peer, 0)
            if peer not in expected and peer not in contributors:
                self._missed[peer] = max(missed, MISSES)
                continue
            absent = 0 if peer in contributors else self._absent.get(peer, 0) + 1
            if peer in contributors:
                missed -= 1
            elif missed < MISSES:
                missed = missed + 1 if missed + 1 < MISSES else MISSES + AMENDS
            elif absent >= ANOTHER_CHANCE:
                missed, absent = MISSES - 1, 0
            self._absent[peer] = absent
            if missed > 0:
                self._missed[peer] = missed

    def is_missed(self, peer: PeerId) -> bool:
        """Whether the last rounds did without it."""
        return self._missed.get(peer, 0) >= MISSES

    def is_slow(self, peer: PeerId) -> bool:
        """Whether it is late as a rule: later than is usual among all, while another is not; or
        missed in the last rounds. Lags alone make neither of two peers slow:
        there is nobody to compare with."""
        others = (lags for other, lags in self._lags.items() if other != peer)
        late = self._is_late(self._lags.get(peer)) and any(
            len(lags) >= LAGS_ENOUGH and not self._is_late(lags) for lags in others
        )
        return late or self.is_missed(peer)

    def _is_late(self, lags: RecentMedian | None) -> bool:
        return (
            lags is not None
            and len(lags) >= LAGS_ENOUGH
            and lags.median() > self._deadline.grace_s()
        )

    def patience_s(self, missing: Iterable[PeerId]) -> float:
        """How long after the first update those who are ``missing`` may come."""
        if all(self.is_slow(peer) for peer in missing):
            return self._deadline.grace_s()
        return max(
            self._deadline.grace_s(),
            PATIENCE_S + PATIENCE_ROUNDS * self._deadline.typical_round_s(),
        )

    def came(self, sender: PeerId, update: Update, first_at: float, now: float) -> None:
        """Somebody else's update, in time."""
        self._began[update.round_id, update.shard, update.attempt] = first_at
        if len(self._began) > SERVED_MAX:
            self._began.popitem(last=False)
        self._observe(sender, now - first_at)

    def record_late_update(self, sender: PeerId, update: Update, now: float) -> None:
        """The attempt that it is for is over here. Of one that is missed it tells nothing new: it
        would slow us all."""
        first_at = self._began.get((update.round_id, update.shard, update.attempt))
        if first_at is not None and not self.is_missed(sender):
            self._observe(sender, min(now - first_at, self._deadline.cap_s))

    def _observe(self, sender: PeerId, lag_s: float) -> None:
        self._deadline.observe(lag_s)
        lags = self._lags.get(sender)
        if lags is None:
            lags = self._lags[sender] = RecentMedian(LAGS_KEPT)
        lags.add(lag_s)
