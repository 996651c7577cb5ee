"""When the agent of a lost host is started again: after ever longer pauses, so often in a row, and
anew after a steady time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossip.errors import GossipError
from gossip.launch.local import Program
from gossip.launch.ssh import restarts as hosts
from gossip.launch.ssh.agent_program import AgentProgram
from gossip.launch.ssh.hostlist import Host
from gossip.launch.ssh.remote import RemoteAgent
from gossip.launch.ssh.restarts import (
    BACK_OFF_S,
    REBOOT_S,
    STEADY_S,
    HostRestarts,
    HostState,
)


class Launch:
    """The part of a launcher that connects to lost hosts again, and starts their peers."""

    def __init__(self, returning: HostRestarts, records: Any) -> None:
        self.returning, self.outcome, self.stop = returning, records.outcome, records.stop

    async def returns(self, found: HostState) -> bool:
        back = await self.returning.reconnect(found)
        if back:
            found.since = hosts.time.monotonic()
        return back


class Hurried(selectors.DefaultSelector):
    """Nobody is waited for: instead the clock goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(0)


class Clock(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.hurried = Hurried()
        super().__init__(self.hurried)

    def time(self) -> float:
        return self.hurried.now


class Agents:
    """Of a host, one after the other; ``fail`` says whether the next one can be reached."""

    def __init__(self, clock: Clock, fail: Callable[[int], bool]) -> None:
        self.clock, self._fail = clock, fail
        self.opened: list[float] = []
        self.last_words = "it is gone"
        self.over = self.is_open = False

    async def open(self) -> None:
        self.opened.append(self.clock.time())
        if self._fail(len(self.opened)):
            raise GossipError("no route to host")

    async def ask(self, *words: Any, **more: Any) -> dict[str, Any]:
        return {"facts": {"addresses": ["a1"], "workdir_error": "", "address_error": ""}}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    loop = Clock()
    monkeypatch.setattr(hosts, "time", SimpleNamespace(monotonic=loop.time))
    yield loop
    loop.close()


def launch_of(agents: Agents, restarts: int) -> tuple[Launch, HostState, list[str]]:
    said: list[str] = []
    records = SimpleNamespace(
        outcome=SimpleNamespace(finished=[]), stop=asyncio.Event(), print_line=said.append
    )
    program = AgentProgram((Host("a"),), Program("train.py"), restarts=restarts)
    remote = cast(RemoteAgent, agents)
    found = HostState(Host("a"), range(1), remote, "a1", since=agents.clock.time())
    returning = HostRestarts(cast(Any, records), program, {}, lambda host: remote)
    return Launch(returning, records), found, said


def pauses(clock: Clock, times: list[float], since: float) -> list[float]:
    return [round(later - sooner, 6) for sooner, later in zip([since, *times], times, strict=False)]


def test_a_host_that_cannot_be_reached_is_tried_after_ever_longer_pauses_and_then_given_up(
    clock: Clock,
) -> None:
    agents = Agents(clock, lambda attempt: True)
    launch, found, said = launch_of(agents, restarts=3)
    assert clock.run_until_complete(launch.returns(found)) is False
    tried = pauses(clock, agents.opened, 1000.0)
    assert tried[: len(BACK_OFF_S)] == list(BACK_OFF_S) == sorted(set(BACK_OFF_S))
    assert set(tried[len(BACK_OFF_S) :]) == {BACK_OFF_S[-1]}
    assert REBOOT_S <= sum(tried) < REBOOT_S + BACK_OFF_S[-1]
    assert said == [
        "+ a is restarted in 1 s (1 of 3)",
        "! no route to host: retrying for up to 599 s",
        "! a is not restarted: it could not be reached for 600 s",
    ]


def test_a_host_that_is_lost_again_and_again_is_given_up(clock: Clock) -> None:
    agents = Agents(clock, lambda attempt: attempt % 2 == 1)
    launch, found, said = launch_of(agents, restarts=3)
    for _ in range(3):
        assert clock.run_until_complete(launch.returns(found)) is True
    assert clock.run_until_complete(launch.returns(found)) is False
    assert said[-1] == "! a is not restarted: too often"


def test_a_lost_host_is_not_waited_for_when_the_others_are_done(clock: Clock) -> None:
    agents = Agents(clock, lambda attempt: True)
    launch, found, said = launch_of(agents, restarts=3)
    clock.call_later(BACK_OFF_S[-1], launch.outcome.finished.append, 1)
    assert clock.run_until_complete(launch.returns(found)) is False
    assert clock.time() <= 1000.0 + BACK_OFF_S[-1] + 1.0
    assert said[-1] == "! a is not restarted: the others are done"


@pytest.mark.parametrize(
    ("lived_s", "pause_s"), [(STEADY_S - 1, BACK_OFF_S[2]), (STEADY_S + 1, BACK_OFF_S[0])]
)
def test_only_a_host_that_was_there_for_a_steady_time_begins_anew(
    clock: Clock, lived_s: float, pause_s: float
) -> None:
    agents = Agents(clock, lambda attempt: False)
    launch, found, _ = launch_of(agents, restarts=5)
    for number in range(2):
        lost_at = clock.time()
        assert clock.run_until_complete(launch.returns(found)) is True
        assert pauses(clock, agents.opened[number:], lost_at) == [BACK_OFF_S[number]]
    clock.run_until_complete(asyncio.sleep(lived_s))
    lost_at = clock.time()
    assert clock.run_until_complete(launch.returns(found)) is True
    assert pauses(clock, agents.opened[2:], lost_at) == [pause_s]


def test_who_is_told_to_stop_in_a_pause_does_not_wait_for_its_end(clock: Clock) -> None:
    agents = Agents(clock, lambda attempt: True)
    launch, found, _ = launch_of(agents, restarts=5)
    clock.call_later(BACK_OFF_S[0] + 0.5, launch.stop.set)
    assert clock.run_until_complete(launch.returns(found)) is False
    assert (len(agents.opened), round(clock.time(), 6)) == (1, 1000.0 + BACK_OFF_S[0] + 0.5)
