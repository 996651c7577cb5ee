from __future__ import annotations

from typing import Any

import pytest
from event_rows import event

from gossip.launch.report.holders import StateHolders
from gossip.launch.report.run_model import RunModel


def after(*rows: tuple[int, str] | tuple[int, str, dict[str, Any]]) -> StateHolders:
    view = RunModel(4)
    for peer, name, *fields in rows:
        view.apply(event(name, peer, **(fields[0] if fields else {})))
    return view.holders


BORN, AGAIN, KILLED, DONE = {"incarnation": 0}, {"incarnation": 1}, {"signal": 9}, {"code": 0}
NEW, BACK = (0, "spawned", BORN), (0, "spawned", AGAIN)


@pytest.mark.parametrize(
    ("rows", "anybody", "in_vain"),
    [
        ([], False, False),
        ([NEW], True, False),  # how far it is nobody knows
        # nobody is there who could want it
        ([NEW, (0, "ready"), (0, "exited", KILLED)], False, False),
        ([NEW, (0, "ready"), (0, "exited", KILLED), BACK], False, True),
        ([BACK, (0, "recovering")], True, False),
        ([BACK, (0, "recovering"), (0, "no_state_found")], False, True),
        ([BACK, (0, "recovering"), (0, "restored"), (1, "spawned", AGAIN)], True, False),
        # another node beside its trainer
        ([BACK, (0, "restored"), (0, "started", {"incarnation": 2})], True, False),
        # it has ended with it
        ([BACK, (0, "restored"), (1, "spawned", AGAIN), (0, "exited", DONE)], True, False),
    ],
)
def test_who_has_the_state_is_known_by_rows(rows: list[Any], anybody: bool, in_vain: bool) -> None:
    holders = after(*rows)
    assert (holders.anybody, holders.in_vain) == (anybody, in_vain)


def test_how_far_it_was_is_said_with_what_was_logged_last() -> None:
    holders = after(
        (0, "round", {"round": 3}),
        (1, "fault", {"round": 5}),
        (0, "metrics", {"accuracy": 0.5}),
        (0, "metrics", {"loss": 2}),
    )
    assert holders.in_words() == "round 5 (accuracy 0.5, loss 2)"
