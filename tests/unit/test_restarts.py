from __future__ import annotations

import signal
from typing import Any

import pytest

from gossip.launch.local.peer_process import ProcessLife
from gossip.launch.local.restarts import RestartCounter, died_by_itself
from gossip.launch.report.run_model import RunModel
from gossip.observe import events, read_event


def life(
    code: int | None = 1, number: int | None = None, *, peer: int = 1, lasted_s: float = 1.0
) -> ProcessLife:
    return ProcessLife(peer, 0, code, number, (), 100.0, 100.0 + lasted_s)


def halted(t: float) -> events.Halted:
    return events.Halted(peer=1, t=t, reason="", exit_code=5, traffic=None)


def waits(counter: RestartCounter, *lasted_s: float) -> list[float]:
    taken = [counter.next_restart(life(lasted_s=each)) for each in lasted_s]
    return [each[1] for each in taken if each is not None]


def test_the_wait_doubles_up_to_half_a_minute() -> None:
    assert waits(RestartCounter(8), *[1.0] * 8) == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_peer_that_has_run_for_a_minute_waits_one_second_again() -> None:
    assert waits(RestartCounter(5), 1.0, 1.0, 60.0, 59.9, 61.0) == [1, 2, 1, 2, 1]


def test_a_million_short_lives_make_no_number_too_large() -> None:
    counter = RestartCounter(10_000)
    assert waits(counter, *[0.1] * 10_000)[-1] == 30


def test_each_peer_has_restarts_of_its_own() -> None:
    counter = RestartCounter(2)
    assert [counter.next_restart(life(peer=peer)) for peer in (1, 1, 2, 1, 2)] == [
        (1, 1.0),
        (2, 2.0),
        (1, 1.0),
        None,
        (2, 2.0),
    ]


@pytest.mark.parametrize(
    ("ended", "last", "by_itself"),
    [
        (life(1), None, True),
        (life(17), None, True),
        (life(None, signal.SIGSEGV), None, True),
        (life(None, signal.SIGKILL), None, True),
        (life(None, signal.SIGTERM), None, False),
        (life(None, signal.SIGINT), None, False),
        (life(0), None, False),
        (life(2), None, False),
        (life(6), None, False),
        (life(143), None, False),
        (life(1), halted(100.5), False),
        (life(1), halted(99.0), True),  # of a former life
        (life(None, signal.SIGKILL), halted(100.5), True),
    ],
)
def test_only_who_died_by_itself_may_live_again(
    ended: ProcessLife, last: events.Halted | None, by_itself: bool
) -> None:
    assert died_by_itself(ended, last) is by_itself


def test_a_restart_is_told_and_so_is_the_last() -> None:
    view = RunModel(2)
    rows: list[dict[str, Any]] = [
        {"event": "spawned", "incarnation": 0},
        {"event": "exited", "code": None, "signal": 11, "how": "killed by SIGSEGV"},
        {"event": "restarting", "number": 1, "of": 1, "wait_s": 1.0, "why": "killed by SIGSEGV"},
        {"event": "spawned", "incarnation": 1},
        {"event": "exited", "code": 1, "signal": None, "how": "exit code 1"},
        {"event": "restarts_used_up", "of": 1, "why": "exit code 1"},
    ]
    said = [line for row in rows for line in view.apply(read_event({"peer": 1, "t": 1.0, **row}))]
    assert said == [
        "x peer 1 killed by SIGSEGV before its first round: not in the fault plan; still running: "
        "1 peer",
        "+ peer 1 is restarted in 1 s (restart 1 of 1): killed by SIGSEGV",
        "x peer 1 is not restarted, its restart is used up: exit code 1",
    ]
    restarts, blows = view.lives.own_restarts, view.failures.blows
    assert [(each.number, each.incarnation) for each in restarts] == [(1, 1), (None, None)]
    assert [(blow.incarnation, blow.kind) for blow in blows] == [(0, "killed"), (1, "raised")]
