"""Which faults of a plan never took place, and why."""

from __future__ import annotations

from typing import Any

import pytest

from gossip.faults.plan import parse
from gossip.launch.report import missed
from gossip.launch.report.run_model import RunModel
from gossip.observe import Event, read_event

LAST = 23


def row(t: float, peer: int, event: str, **fields: Any) -> Event:
    return read_event({"t": t, "peer": peer, "event": event, **fields})


def struck(t: float, fault: str, peer: int, round_id: int = 3) -> Event:
    return row(t, peer, "fault", kind=fault.split(":")[0], round=round_id, fault=fault)


def killed(t: float, peer: int) -> Event:
    return row(t, peer, "exited", code=None, signal=9, how="killed by SIGKILL")


BEGIN = [row(100.0, peer, event) for event in ("started", "ready") for peer in range(4)]
END = [row(103.1, peer, "halted", round=LAST) for peer in range(4)]


OVER = f"it was not due when the run ended, after round {LAST}"


def judged(
    plan: list[str], *events: Event, elsewhere: tuple[int, ...] = (), last: int = LAST
) -> list[dict[str, Any]]:
    faults = parse(plan)
    view = RunModel(4, faults)
    for event in events:
        view.apply(event)
    return missed.missed(faults, view, last, elsewhere)


def why(plan: str, *events: Event) -> str:
    (found,) = judged([plan], *events)
    assert (found["fault"], found["struck"]) == (plan, False)
    return str(found["why"])


def test_a_plan_that_was_carried_out_leaves_nothing_to_name() -> None:
    plan = [
        "crash:server@3",
        "hang:2@3+500ms",
        "loss:all*0.2@1s+1s",
        "wrong_results:3",
        "slow:1*2@1s+1s",
        "slow:0*2",
        "sign_flip:3*10",
    ]
    strikes = [
        struck(101.0, fault, peer) for fault, peer in zip(plan[:5], (1, 2, 0, 3, 1), strict=True)
    ]
    assert judged(plan, *BEGIN, *strikes, killed(101.1, 1), *END) == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("crash:server@50", OVER),
        ("crash:1@20s", OVER),
        ("slow:1*4@20s+1s", OVER),
        ("partition:0|1@20s+1s", OVER),
        ("wrong_results:2,3", "peers 2,3 had no occasion for it"),
    ],
)
def test_the_reason_is_named(fault: str, reason: str) -> None:
    assert why(fault, *BEGIN, *END) == reason


def test_a_peer_that_was_gone_before_its_moment_is_the_reason() -> None:
    gone = [struck(101.0, "crash:server@3", 1), killed(101.1, 1)]
    assert why("crash:1@20", *BEGIN, *gone, END[0]) == "peer 1 was gone since round 3"
    assert why("hang:1@2s+1s", *BEGIN, *gone, END[0]) == "peer 1 was gone since round 3"
    early = killed(100.5, 1)
    assert why("hang:1@2s+1s", *BEGIN, early, END[0]) == "peer 1 was gone before its first round"
    assert (
        why("crash:1@20", *BEGIN, row(101.0, 1, "exited", code=143, how="exit code 143"), END[0])
        == "peer 1 had left"
    )


@pytest.mark.parametrize("fault", ["slow:3*2", "sign_flip:3*10", "wrong_results:3", "crash:3@50"])
def test_what_goes_on_all_along_never_took_place_with_peers_that_never_trained(fault: str) -> None:
    assert why(fault, *BEGIN[:7], killed(101.0, 3), *END[:3]) == "peer 3 never trained"
    assert why(fault, BEGIN[0], killed(101.0, 3)) == "nothing was trained"


def test_without_a_round_nothing_took_place_not_even_what_goes_on_all_along() -> None:
    ends = [row(103.1, peer, "halted", exit_code=5) for peer in range(4)]
    assert [
        found["why"] for found in judged(["slow:0*2", "crash:1@0"], *BEGIN, *ends, last=-1)
    ] == ["nothing was trained"] * 2


def test_an_attack_that_raised_took_place_only_in_part() -> None:
    plan = ["attack:own.py:mine:3", "attack:own.py:other:2"]
    words = "its attack raised ValueError: attack broke"
    errors = [
        row(t, 3, "error", message=words, part=plan[0], round=at)
        for t, at in ((101.0, 6), (102.0, 9))
    ]
    found = judged(plan, *BEGIN, *errors, *END)
    assert found == [{"fault": plan[0], "struck": True, "why": f"{words}, first in round 6"}]
    (line,) = missed.format_lines(found)
    assert line == f"! planned, and took place only in part: {plan[0]} ({words}, first in round 6)"


def test_a_plan_that_names_the_same_blow_twice_wants_two() -> None:
    plan = ["crash:server@20", "crash:server@20"]
    one, two = struck(101.0, plan[0], 1, 20), struck(101.5, plan[0], 2, 20)
    assert [found["fault"] for found in judged(plan, *BEGIN, one, *END)] == [plan[0]]
    assert judged(plan, *BEGIN, one, two, *END) == []


def test_a_restart_took_place_by_half_until_the_peer_is_in_a_round_again() -> None:
    plan, blow = ["restart:1@3+1s"], [*BEGIN, struck(101.0, "restart:1@3+1s", 1), killed(101.1, 1)]
    again = row(102.1, 1, "started", incarnation=1)
    half = {"fault": plan[0], "struck": True}
    assert judged(plan, *blow, *END[:1]) == [
        {**half, "why": "peer 1 was killed, and not started again before the end"}
    ]
    late = row(103.2, 1, "exited", code=143, stopping=True, how="exit code 143")
    assert judged(plan, *blow, again, END[0], late) == [
        {**half, "why": "peer 1 was started again, but in no round before the end"}
    ]
    assert judged(plan, *blow, again, row(102.5, 1, "restored", round=9), *END) == []


def test_what_befell_peers_of_another_host_is_not_known() -> None:
    plan = ["crash:server@50", "crash:1@50", "loss:all*0.2@20s+1s", "crash:2@50"]
    assert [found["fault"] for found in judged(plan, *BEGIN, *END, elsewhere=(1,))] == [
        "crash:2@50"
    ]
    assert [found["fault"] for found in judged(plan, *BEGIN, *END)] == plan


def test_who_is_still_at_it_under_another_launcher_may_yet_be_hit() -> None:
    plan = ["crash:2@50", "crash:3@50"]
    assert [found["fault"] for found in judged(plan, *BEGIN, *END[:3])] == ["crash:2@50"]


def test_lines_gather_what_is_missing_for_the_same_reason() -> None:
    half = {
        "fault": "restart:1@3+1s",
        "struck": True,
        "why": "peer 1 was killed, and not started again before the end",
    }
    never = [
        {"fault": fault, "struck": False, "why": "round 23 was the last"}
        for fault in ("crash:server@50", "hang:2@60+1s")
    ]
    gone = {"fault": "crash:1@20", "struck": False, "why": "peer 1 had left"}
    assert missed.format_lines([never[0], half, gone, never[1]]) == [
        "! planned, and never took place: crash:server@50, hang:2@60+1s (round 23 was the last)",
        "! planned, and never took place: crash:1@20 (peer 1 had left)",
        (
            "! planned, and took place only in part: restart:1@3+1s (peer 1 was killed, and not "
            "started again before the end)"
        ),
    ]
    assert missed.format_lines([]) == []
