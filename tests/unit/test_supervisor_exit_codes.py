from __future__ import annotations

import signal

import pytest

from gossip.config import resolve
from gossip.launch.local.outcome import RunOutcome
from gossip.launch.local.peer_process import ProcessLife
from gossip.launch.report.run_model import RunModel
from gossip.observe import read_event


def outcome(
    *lives: ProcessLife, stopped: str = "", halted: dict[int, int] | None = None
) -> RunOutcome:
    view = RunModel(4)
    for peer, code in (halted or {}).items():
        view.apply(read_event({"peer": peer, "event": "halted", "exit_code": code, "t": 1.0}))
    return RunOutcome(resolve({}).config, view, list(lives), stopped)  # type: ignore[arg-type]


def left(peer: int, code: int) -> ProcessLife:
    return ProcessLife(peer, 0, code, None, (), 0.0, 0.0)


def killed(peer: int) -> ProcessLife:
    return ProcessLife(peer, 0, None, signal.SIGKILL, (), 0.0, 0.0)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (outcome(left(0, 0), left(1, 0)), 0),
        (outcome(left(0, 0), killed(1)), 0),
        (outcome(left(0, 0), left(1, 1)), 0),
        (outcome(left(0, 1), left(1, 1)), 1),
        (outcome(left(0, 3), left(1, 3)), 3),
        (outcome(killed(0), killed(1)), 5),
        (outcome(left(0, 1), left(1, 1), halted={0: 5, 1: 5}), 5),
        (outcome(left(0, 1), left(1, 1), halted={1: 5}), 1),
        (outcome(left(0, 1), left(1, 1), halted={0: 6}), 6),
        (outcome(left(0, 4), left(1, 4)), 4),
        (outcome(killed(0), left(0, 0)), 0),
        (outcome(left(0, 0), stopped="interrupt"), 130),
        (outcome(killed(0), stopped="killed"), 130),
        (outcome(left(0, 0), stopped="terminate"), 143),
        (outcome(killed(0), stopped="never_started"), 4),
    ],
)
def test_the_exit_code_says_how_the_run_went(run: RunOutcome, expected: int) -> None:
    assert run.exit_code == expected


@pytest.mark.parametrize("stopped", ["interrupt", "terminate"])
def test_a_run_that_only_waited_for_who_might_come_back_was_not_cut_short(stopped: str) -> None:
    run = outcome(left(0, 0), left(1, 0), stopped=stopped)
    run.view.apply(
        read_event({"peer": 0, "event": "halted", "exit_code": 0, "reason": "finished", "t": 1.0})
    )
    assert run.exit_code != 0, "1 was stopped in the midst"
    run.view.apply(
        read_event({"peer": 1, "event": "halted", "exit_code": 0, "reason": "finished", "t": 1.0})
    )
    assert run.exit_code == 0
    run.lives.append(killed(2))
    assert run.exit_code != 0


def test_the_last_life_of_a_peer_counts() -> None:
    run = outcome(killed(2), ProcessLife(2, 1, 0, None, (), 0.0, 0.0))
    assert run.finished == [2]
