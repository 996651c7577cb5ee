"""What a demo says about its own outcome."""

from __future__ import annotations

from typing import Any

import pytest
from event_rows import event_row

from gossip.config import resolve
from gossip.launch.demo.swarms import HIDDEN, OF_NAN, KeyEvents, diverged, table, what_went_wrong
from gossip.launch.local.outcome import RunOutcome
from gossip.launch.report import PlainScreen
from gossip.launch.report.run_model import RunModel
from gossip.observe import read_event

FAULTS = ("sign_flip:5,6*10", "crash:server@200")


def outcome(*killed: int, rounds: int = 400) -> RunOutcome:
    config = resolve({"peers": 8, "rounds": rounds, "faults": FAULTS}).config
    view = RunModel(8, config.plan)
    for peer in killed:
        view.apply(read_event(event_row("exited", peer, 1.0, code=None, signal=9, how="killed")))
    return RunOutcome(config, view)


def summary(**changed: Any) -> dict[str, Any]:
    return {
        "rounds": 400,
        "rounds_lost": 0,
        "replicas_identical": True,
        "deaths": [{"peer": 3, "round": 200, "skip_ms": 12.0, "dead_ms": 800.0}],
        "suspected": [5, 6],
        "suspicion": {"5": {"round": 6, "reasons": ["far out"]}},
        "accuracy": {"mean_model": 0.96, "worst_replica": 0.96},
        "loss": 0.1,
        "wall_s": 9.0,
        **changed,
    }


REFERENCE = {
    "fault_free": {
        "accuracy": {"mean_model": 0.97, "worst_replica": 0.97},
        "loss": 0.1,
        "rounds": 400,
        "wall_s": 1.0,
    }
}


def test_a_run_that_did_all_it_should_is_fine() -> None:
    assert what_went_wrong(outcome(), summary(), REFERENCE, standard=True) == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rounds": 300}, "only 300 of 400 rounds"),
        ({"replicas_identical": False}, "replicas of honest peers differ"),
        ({"deaths": []}, "kills 1 peer, 0 died"),
        ({"suspected": [5]}, "the Byzantine peers 6 were not suspected"),
        ({"suspected": [1, 5, 6]}, "honest peers 1 were suspected"),
        ({"accuracy": {"mean_model": 0.5, "worst_replica": 0.5}}, "the accuracy is 0.5"),
        ({"accuracy": {"mean_model": None, "worst_replica": None}}, "the accuracy is None"),
    ],
)
def test_whatever_a_run_did_not_do_is_named(changed: dict[str, Any], says: str) -> None:
    (line,) = what_went_wrong(outcome(), summary(**changed), REFERENCE, standard=True)
    assert says in line


def test_a_comparison_that_broke_down_is_named() -> None:
    comparison = {**REFERENCE, "plain": {"status": "quorum_lost", "rounds": 26}}
    (line,) = what_went_wrong(outcome(), summary(), comparison, standard=True)
    assert "plain averaging did not finish: quorum_lost after 26 rounds" in line


@pytest.mark.parametrize(
    ("plain", "is_named"),
    [
        ({"status": "finished", "loss": None, "rounds": 25}, True),
        ({"status": "finished", "loss": 2.3}, False),
        ({"status": "quorum_lost", "loss": None}, False),
        (None, False),
    ],
)
def test_a_diverged_mean_is_named(plain: dict[str, Any] | None, is_named: bool) -> None:
    assert ("diverged, as expected" in diverged(plain)) == is_named


def test_the_demo_shows_errors_and_the_first_event_of_each_kind() -> None:
    lines = list[str]()
    screen = PlainScreen()
    screen.print_line = lines.append  # type: ignore[method-assign]
    shown = KeyEvents(screen)
    kept = (
        "* injected: SIGKILL peer 4",
        "* injected: SIGKILL peer 5",
        "? peer 1 suspected",
        "? peer 12 suspected",
        "- peer 12 quarantined at round 15",
        "! peer 3 skipped by 1",
        "! peer 3: error: out of memory",
        "! peer 3: error: no space",
        "  hint: free some",
        "  hint: free some more",
        "x peer 4 dead",
    )
    for text in kept:
        shown.print_line(text)
    for text in ("= batch: 8 peers", "- peer 12 quarantined at round 125", "~ peer 5 on parole"):
        shown.print_line(text)
    assert lines == [*kept]
    few = "! only 50% of the peers that are alive took part in the rounds 3 to 22"
    for hidden in (HIDDEN, (*HIDDEN, *OF_NAN)):
        KeyEvents(screen, hidden).print_line(few)
    assert lines == [*kept, few]


def test_a_peer_that_died_out_of_plan_is_named() -> None:
    wrong = what_went_wrong(outcome(1), summary(), REFERENCE, standard=True)
    assert wrong == ["peers 1 were lost without a fault in the plan"]


def test_a_rule_that_does_not_hold_is_no_failure_of_the_demo() -> None:
    low = summary(accuracy={"mean_model": 0.1, "worst_replica": 0.1}, suspected=[])
    assert what_went_wrong(outcome(), low, REFERENCE, standard=False) == []


def test_the_table_says_what_died_and_how_fast_it_was_noticed() -> None:
    lines = table({"suspicion": summary(), "alone": REFERENCE["fault_free"]})
    assert any(line.startswith("suspicion") and "0.960" in line for line in lines)
    assert (
        "peer 3 died in round 200: skipped by all within 12 ms, agreed dead within 800 ms" in lines
    )
    assert any("far out" in line for line in lines)


def test_the_table_says_which_faults_never_took_place_in_which_run() -> None:
    late = {
        "faults_missed": [
            {"fault": "hang:1@500+1s", "struck": False, "why": "round 399 was the last"}
        ]
    }
    lines = table(
        {"suspicion": summary(**late), "mean": summary(**late), "alone": REFERENCE["fault_free"]}
    )
    line = "! planned, and never took place: hang:1@500+1s (round 399 was the last)"
    assert [found for found in lines if "never took place" in found] == [line, f"mean: {line}"]


def test_a_loss_that_is_not_a_number_has_a_place_in_the_table() -> None:
    lines = table({"mean": summary(loss=None, accuracy={"mean_model": 0.1, "worst_replica": None})})
    assert any("-" in line.split() for line in lines)
