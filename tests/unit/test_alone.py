"""Who trained alone in a run of several is named at the end, with whom it never met and why."""

from __future__ import annotations

from typing import Any

import pytest
from event_rows import event_row
from test_summary_builder import commit, folder, halted

from gossip.launch.local import runs
from gossip.launch.local.outcome import RunOutcome
from gossip.launch.report import summary
from gossip.launch.report.alone import UNTRIED, format_lines, trained_alone
from gossip.launch.report.run_model import RunModel
from gossip.observe import read_event


def begins(peer: int, *others: int) -> dict[str, Any]:
    return event_row("ready", peer, present=sorted([peer, *others]))


def plays(peer: int, *others: int) -> dict[str, Any]:
    return event_row(
        "round", peer, round=3, alive=1 + len(others), contributors=sorted([peer, *others])
    )


def notice(peer: int, about: int | None, message: str = "kept out") -> dict[str, Any]:
    return event_row("notice", peer, message=message, hint="add it", about=about)


def alone(rows: list[dict[str, Any]], first: int, finished: list[int]) -> list[dict[str, Any]]:
    view = RunModel(first)
    for row in rows:
        view.apply(read_event({**row}))
    return trained_alone(view, first, finished)


APART = [begins(0), begins(1), plays(0), plays(1)]


def test_two_that_never_met_are_both_named():
    why = [
        {"peer": 0, "never_met": [{"peer": 1, "why": UNTRIED}]},
        {"peer": 1, "never_met": [{"peer": 0, "why": UNTRIED}]},
    ]
    assert alone(APART, 2, [0, 1]) == why
    assert [row["peer"] for row in alone(APART, 2, [1])] == [1], "of those who came to the end"


@pytest.mark.parametrize(
    "met",
    [
        [begins(0, 1)],
        [begins(0), plays(0, 1)],
        [begins(0), event_row("restored", 0, **{"from": 1})],
    ],
    ids=range(3),
)
def test_who_met_somebody_at_any_time_did_not_train_alone(met: list[dict[str, Any]]):
    assert alone([*met, plays(0)], 2, [0]) == []


def test_a_run_of_one_is_meant_to_be_alone():
    assert alone([begins(0), plays(0)], 1, [0]) == []


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([notice(0, 1)], "kept out (add it)"),
        ([notice(1, 0, "does not know our key")], "does not know our key (add it)"),
        ([notice(0, None), notice(0, 2)], UNTRIED),
        ([event_row("exited", 1, code=2, how="exit code 2")], "it ended: exit code 2"),
        ([event_row("unmet", None, subject=1, why="1 at a:1: silence")], "1 at a:1: silence"),
        ([event_row("exited", 1, code=2, how="exit code 2"), notice(0, 1)], "kept out (add it)"),
    ],
)
def test_the_reason_is_the_best_that_is_known(rows: list[dict[str, Any]], why: str):
    assert alone([*APART, *rows], 2, [0])[0]["never_met"] == [{"peer": 1, "why": why}]


def test_it_stands_in_the_summary_and_in_the_last_lines(tmp_path):
    rows = [begins(0), plays(0), notice(0, 1, "refused"), halted(0), event_row("exited", 0, code=0)]
    run = folder(tmp_path, rows, {0: [commit(0, contributors=[{"peer": 0}])]}, peers=2)
    said: list[str] = []

    class SayScreen:
        def print_line(self, text: str) -> None:
            said.append(text)

    class Over(RunOutcome):
        exit_code = 0

    config = summary.RunConfig.load(run / "config.json")
    assert runs.finish(run, Over(config, RunModel(2)), SayScreen(), False) == 0
    assert "! peer 0 trained alone; never met peer 1: refused (add it)" in said


def test_many_that_were_never_met_are_counted():
    rows = alone([begins(0), plays(0)], 4, [0])
    assert format_lines(rows) == [
        f"! peer 0 trained alone; never met peer 1, nor 2 others: {UNTRIED}"
    ]
    assert (
        format_lines(alone(APART, 2, [0, 1]))[-1]
        == "  each of them has its own model: nothing was exchanged"
    )
