"""Detection of pauses of this process, for example by SIGSTOP, a suspended machine or a busy
processor."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from .events import Aggregated, Effect, Event, TimerFired
from .membership import Membership
from .settings import LOADED_PAUSE_TOLERANCE_S, PAUSE_TOLERANCE_S
from .timers import Timers


class PausedRounds(Protocol):
    def on_pause(self, paused_s: float, now: float) -> list[Effect]:
        """Handle a pause of this process that lasted ``paused_s`` seconds."""


@dataclass(eq=False)
class PauseDetector:
    """Detector that recognizes pauses by overdue timers, and reports each pause to the membership
    and the rounds."""

    membership: Membership
    rounds: PausedRounds
    timers: Timers[Any]

    def __post_init__(self) -> None:
        settings = self.membership.settings
        self.tolerance_s = min(settings.probe_interval_s, PAUSE_TOLERANCE_S)
        self._loaded_tolerance_s = max(
            self.tolerance_s, min(LOADED_PAUSE_TOLERANCE_S, settings.link_timeout_s / 2)
        )
        self.handled_at = inf  # Time of the last event.
        self._found_at = -inf  # Pauses before this time were handled.

    def on_event(self, event: Event, running: bool, now: float) -> list[Effect]:
        """If the peer is ``running``, handle a pause that ended before ``event``.

        A gap between events alone does not prove a pause, because an idle peer also has gaps. An
        overdue timer proves a pause if it is late by more than the tolerance. After a gap longer
        than the tolerance, half of the tolerance is enough.
        """
        gap_s, self.handled_at = now - self.handled_at, now
        kind = type(event)
        checks_timers = kind is Aggregated or kind is TimerFired
        if isinstance(event, TimerFired):
            self.timers.note_firing(event.token)
        if not running or not (checks_timers or gap_s > self.tolerance_s):
            return []
        loaded = self.membership.prober.is_loaded(now)
        tolerance_s = self._loaded_tolerance_s if loaded else self.tolerance_s
        if not checks_timers and gap_s <= tolerance_s:
            return []
        late_s = self.timers.overdue_s(now, self._found_at)
        if late_s > tolerance_s or (gap_s > tolerance_s and late_s > tolerance_s / 2):
            # After a pause several timers are overdue, and they fire one by one after the events
            # that the node delivers first. Record the time, so that the same pause is not handled
            # again.
            self._found_at = now
            effects = self.membership.on_pause()
            return effects + self.rounds.on_pause(max(gap_s, late_s), now)
        return []
