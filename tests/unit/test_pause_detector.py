"""Pauses that only overdue timers show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gossip.core.events import Aggregated
from gossip.core.pauses import PauseDetector
from gossip.core.settings import MembershipSettings
from gossip.core.timers import Timers


def test_timers_that_are_overdue_while_events_arrive_are_a_pause() -> None:
    prober = SimpleNamespace(is_loaded=lambda now: False)
    membership = SimpleNamespace(settings=MembershipSettings(), prober=prober, on_pause=list)
    paused: list[float] = []
    rounds = SimpleNamespace(on_pause=lambda paused_s, now: paused.append(paused_s) or [])
    detector = PauseDetector(cast(Any, membership), cast(Any, rounds), Timers())
    detector.timers.set(1.0, "a timer")
    for tenths in range(15):
        detector.on_event(Aggregated(1, None), True, tenths / 10)
    assert [round(each, 1) for each in paused] == [0.3]
