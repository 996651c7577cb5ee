"""Who is stopped by several faults at once sleeps until the last of them is over."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from gossip.launch.local.pauses import StoppedProcesses


class FakeProcess:
    def __init__(self, peer: int, lives: bool = True) -> None:
        self.peer, self.lives = peer, lives
        self.sent: list[int] = []

    def send_all(self, number: int) -> bool:
        self.sent.append(number)
        return self.lives


class Bed:
    """Sleepers on a clock that is turned by hand."""

    def __init__(self, monkeypatch: Any) -> None:
        self.now, self.timers = 100.0, dict[int, tuple[float, Any]]()
        self.woken: list[tuple[int, float]] = []
        self.sleepers = StoppedProcesses(lambda peer, slept_s: self.woken.append((peer, slept_s)))
        monkeypatch.setattr("gossip.launch.local.pauses.time.monotonic", lambda: self.now)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def call_later(self, delay: float, act: Any, *arguments: Any) -> Any:
        number = len(self.timers)
        self.timers[number] = self.now + delay, lambda: act(*arguments)
        handle = type(
            "Handle",
            (),
            {"cancel": lambda _: self.timers.__setitem__(number, (float("inf"), None))},
        )
        return handle()

    def turn_to(self, now: float) -> None:
        for number, (at, act) in sorted(self.timers.items(), key=lambda item: item[1][0]):
            if at <= now:
                self.now, self.timers[number] = at, (float("inf"), None)
                act()
        self.now = now


def test_overlapping_faults_wake_a_peer_once_when_the_last_is_over(monkeypatch: Any) -> None:
    bed, peer = Bed(monkeypatch), FakeProcess(3)
    bed.sleepers.wake_later(peer, 2.0)  # type: ignore[arg-type]
    bed.now = 101.0
    bed.sleepers.wake_later(peer, 10.0)  # type: ignore[arg-type]
    bed.now = 101.5
    bed.sleepers.wake_later(peer, 1.0)  # type: ignore[arg-type]
    bed.turn_to(110.9)
    assert peer.sent == []
    bed.turn_to(120.0)
    assert (peer.sent, bed.woken) == ([signal.SIGCONT], [(3, 11.0)])


def test_the_sleep_of_a_former_life_does_not_count_for_the_next(monkeypatch: Any) -> None:
    bed, former, latter = Bed(monkeypatch), FakeProcess(3, lives=False), FakeProcess(3)
    bed.sleepers.wake_later(former, 50.0)  # type: ignore[arg-type]
    bed.sleepers.wake_later(latter, 2.0)  # type: ignore[arg-type]
    bed.turn_to(200.0)
    assert (latter.sent, bed.woken) == ([signal.SIGCONT], [(3, 2.0)])


def test_all_are_woken_at_once_and_only_who_was_there_is_told_of(monkeypatch: Any) -> None:
    bed, here, gone = Bed(monkeypatch), FakeProcess(1), FakeProcess(2, lives=False)
    bed.sleepers.wake_later(here, 50.0)  # type: ignore[arg-type]
    bed.sleepers.wake_later(gone, 50.0)  # type: ignore[arg-type]
    assert bed.sleepers.wake_all() == [1]
    assert bed.sleepers.wake_all() == []
    bed.turn_to(200.0)
    assert here.sent == [signal.SIGCONT]
