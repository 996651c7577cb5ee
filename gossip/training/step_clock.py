"""When a slow peer is to end its round, with the local steps that it has taken."""

from __future__ import annotations

import time
from collections.abc import Callable

IN_TIME = 0.9
"""Share of the deadline in which a peer ends its steps, if it cannot take all of them in time or
began late. The deadline is a little above what most peers need. The step that is lost is a
small part of what all others would take while they wait."""


class StepClock:
    """How long this peer's local steps take.

    The longest step of a round is left out: beside it a script may have evaluated, or waited for
    something that says nothing of the steps to come. In a round that this peer began late all its
    time counts.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since = self._began_at = self._late_s = 0.0
        self._lasted_s: list[float] = []
        self._step_s = 0.0  # in the round before; 0: unknown

    def begin_round(self, since: float, late_s: float = 0.0) -> None:
        """Its first step is under way ``since`` then. ``late_s``: so long before that others have
        begun theirs; 0.0: all began together."""
        self._since = self._began_at = since
        self._late_s, self._lasted_s = late_s, []

    @property
    def lasted_s(self) -> float:
        """The steps of this round, from its begin here to the end of the last one."""
        return self._since - self._began_at

    def record_step(self) -> None:
        now = self._now()
        self._lasted_s.append(now - self._since)
        self._since = now
        if len(self._lasted_s) > 1:
            self._step_s = (sum(self._lasted_s) - max(self._lasted_s)) / (len(self._lasted_s) - 1)

    def is_late(self, deadline_s: float, left: int) -> bool:
        """Whether another step would not be over in time. False as long as it is not known how long
        a step takes.

        Args:
            deadline_s: Of the round, from its begin on; 0.0: there is none.
            left: Steps of the round that are not taken yet.
        """
        if not self._step_s or deadline_s <= 0:
            return False
        taken_s = len(self._lasted_s) * self._step_s
        if self._late_s:
            taken_s = self._late_s + self.lasted_s
        takes_all = not self._late_s and taken_s + left * self._step_s <= deadline_s
        return taken_s + self._step_s > (1.0 if takes_all else IN_TIME) * deadline_s
