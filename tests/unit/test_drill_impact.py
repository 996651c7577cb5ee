"""The figures of a drill's report, from rows whose cost is known."""

from __future__ import annotations

import random
from typing import Any

import pytest
from event_rows import event_row

from gossip.errors import BadFault
from gossip.faults.drills import Drill, DrillFile, write
from gossip.faults.kinds import ByzantineFault, Slow
from gossip.faults.reader import peers_of, seconds_of
from gossip.faults.world import Partition
from gossip.launch.drill import impact
from gossip.launch.drill.command import drawn, healed
from gossip.observe import read_commits, read_event


def commit(number: int, t: float) -> dict[str, Any]:
    who = [{"peer": peer, "samples": 1} for peer in range(3)]
    return {
        "t": t,
        "round": number,
        "server": 0,
        "shard": 0,
        "parent": f"h{number - 1}",
        "chain": f"h{number}",
        "contributors": who,
    }


def rounds(*spans: tuple[float, float, float]) -> list[dict[str, Any]]:
    """Commits evenly from a time to a time, so many a second."""
    times = [
        start + i / rate for start, stop, rate in spans for i in range(round((stop - start) * rate))
    ]
    return [commit(number, t) for number, t in enumerate(times)]


def test_the_pace_is_told_before_during_and_after_with_the_dip_the_longest_pause_and_the_recovery():
    made = [
        row["t"]
        for row in rounds(
            (90.0, 100.0, 10.0), (101.0, 104.0, 5.0), (104.0, 106.0, 4.0), (106.0, 112.0, 10.0)
        )
    ]
    found = impact.pace(made, since=100.0, until=104.0, now=112.0)
    assert found["before"] == pytest.approx(10.0, abs=0.3)
    assert found["during"] == pytest.approx(3.8, abs=0.3)
    assert found["dip"] == pytest.approx(0.62, abs=0.03)
    assert found["longest_pause_ms"] == pytest.approx(1000.0, abs=150.0)
    assert found["recovery_ms"] == pytest.approx(2000.0, abs=300.0)


def test_a_run_that_is_no_slower_meanwhile_is_not_said_to_be() -> None:
    for rate, said in ((12.0, "during,"), (5.0, "during (-50%),")):
        made = rounds((94.0, 100.0, 10.0), (100.0, 104.0, rate), (104.0, 110.0, 10.0))
        window = impact.DrillWindow(100.0, 104.0, 110.0)
        found = impact.impact(3, [], read_commits(made), window)
        assert said in "\n".join(impact.lines(found))


def test_a_run_that_stays_slower_is_not_said_to_have_recovered() -> None:
    made = [row["t"] for row in rounds((90.0, 100.0, 10.0), (100.0, 112.0, 5.0))]
    found = impact.pace(made, since=100.0, until=101.0, now=112.0)
    assert (found["recovery_ms"], found["after"]) == (None, pytest.approx(5.0, abs=0.3))
    assert "not yet at its pace of before" in "\n".join(
        impact.lines(
            impact.impact(
                3, [], read_commits(rounds((99.0, 100.0, 10.0))), impact.DrillWindow(100, 101, 110)
            )
        )
    )


def test_a_kill_is_told_with_who_noticed_when_and_when_it_was_back() -> None:
    happened = [
        event_row("drill", None, 100.0, number=1, drill="kill", peers=[2]),
        event_row("fault", 2, 100.0, kind="restart", round=7, fault="drill 1: kill 2", seconds=2.0),
        event_row("skip", 0, 100.005, subject=2, reason="disconnected"),
        event_row("skip", 1, 100.012, subject=2, reason="disconnected"),
        event_row("attempt", 0, 100.006, round=8, attempt=1),
        event_row("dead", 0, 101.1, subject=2),
        event_row("dead", 1, 101.2, subject=2),
        event_row("started", 2, 102.5, incarnation=1, pid=5),
        event_row("round", 2, 104.0, round=30, loss=0.5),
        event_row("metrics", 0, 98.0, loss=1.0, accuracy=0.8),
        event_row("metrics", 0, 105.0, loss=0.6, accuracy=0.9),
        event_row("lost_round", 0, 50.0, round=3, reason="before the drill"),
    ]
    found = impact.impact(
        3,
        map(read_event, happened),
        read_commits(rounds((95.0, 106.0, 10.0))),
        impact.DrillWindow(100.0, 102.0, 106.0),
    )
    (hit,) = found["hit"]
    assert (hit["peer"], hit["kind"], hit["first_skip_ms"], hit["skip_ms"], hit["dead_ms"]) == (
        2,
        "restart",
        5.0,
        12.0,
        1200.0,
    )
    assert hit["back_ms"] == 4000.0
    assert (found["rounds_lost"], found["rounds_handed_on"]) == (0, 1)
    assert found["accuracy"] == {"before": 0.8, "after": 0.9, "difference": 0.1}
    assert [drill["drill"] for drill in found["drills"]] == ["kill"]
    said = "\n".join(impact.lines(found))
    assert (
        "peer 2 (restart, round 7): first skipped after 5 ms, by all after 12 ms, dead for "
        "all after 1200 ms, back after 4000 ms"
    ) in said


def test_what_lasts_is_read_as_it_was_written_and_holds_only_while_it_does(tmp_path: Any) -> None:
    faults = (
        Partition(((0, 1), (2,)), 0.0, 5.0),
        Slow(1, 4.0),
        ByzantineFault("sign_flip", (2,), 10.0),
    )
    book = DrillFile(tmp_path)
    assert book.on(99.0) == ()
    write(
        tmp_path,
        [Drill(number, fault, 100.0 + number, 105.0) for number, fault in enumerate(faults)],
    )
    assert book.on(99.9) == ()
    assert book.on(100.5) == faults[:1]
    assert book.on(103.0) == faults
    assert (book.slowness(1, 103.0), book.slowness(0, 103.0), book.slowness(1, 105.0)) == (
        4.0,
        1.0,
        1.0,
    )
    assert book.lie(2, 103.0) == faults[2]
    assert book.lie(1, 103.0) is None
    assert book.on(105.0) == ()
    write(tmp_path, [])
    assert book.on(104.0) == faults, "it looks at the file now and then, not at each question"
    assert book.on(106.0) == ()
    (tmp_path / "drills.json").write_text('[{"number": 1}]')
    assert book.on(107.0) == ()


def test_random_drills_follow_from_the_seed_and_leave_a_majority_together() -> None:
    kinds = ["kill", "stop", "partition", "slow", "poison"]
    orders = [drawn(random.Random(5), kinds, range(5), 4.0) for _ in range(2)]
    assert orders[0] == orders[1]
    draw = random.Random(1)
    many = [drawn(draw, kinds, range(5), 4.0) for _ in range(200)]
    assert {order["drill"] for order in many} == set(kinds)
    for order in many:
        assert 0 < order.get("for_s", order.get("restart_s")) < 4.0, "it is over before the next"
        if order["drill"] == "partition":
            stay, cut_off = order["sides"]
            assert len(stay) > len(cut_off) > 0
            assert sorted(stay + cut_off) == [0, 1, 2, 3, 4]


def test_peers_and_durations_are_typed_as_in_faults() -> None:
    assert (peers_of("0-2,7"), seconds_of("500ms")) == ((0, 1, 2, 7), 0.5)
    with pytest.raises(
        BadFault, match="bad peers '0-': expected the last of a row of peers, found the end"
    ):
        peers_of("0-")
    with pytest.raises(BadFault, match="bad duration '5h': expected a unit of time"):
        seconds_of("5h")


def test_who_came_later_counts_and_who_left_is_told() -> None:
    happened = [
        event_row("spawned", 4, 90.0, pid=7, incarnation=0, joins=True),
        event_row("drill", None, 100.0, number=1, drill="leave", peers=[4, 1]),
        event_row("fault", 4, 100.0, kind="leave", round=7, fault="drill 1: leave 4"),
        event_row("fault", 1, 100.0, kind="leave", round=7, fault="drill 1: leave 1"),
        event_row("exited", 4, 100.4, code=143, how="exit code 143"),
        event_row("fault", 5, 101.0, kind="crash", round=9, fault="drill 2: kill 5"),
        event_row("skip", 0, 101.1, subject=5, reason="disconnected"),
    ]
    found = impact.impact(
        3,
        map(read_event, happened),
        read_commits(rounds((95.0, 106.0, 10.0))),
        impact.DrillWindow(100.0, 102.0, 106.0),
    )
    assert found["left"] == [
        {"peer": 4, "round": 7, "after_ms": 400.0},
        {"peer": 1, "round": 7, "after_ms": None},
    ]
    (hit,) = found["hit"]
    assert (hit["peer"], hit["first_skip_ms"]) == (5, 100.0)
    said = "\n".join(impact.lines(found))
    assert "peer 4 was asked to leave at round 7, and was gone after 400 ms" in said
    assert "peer 1 was asked to leave at round 7, and is still there" in said


def test_what_was_healed_is_said() -> None:
    assert healed({"ended": [], "woken": []}) == "healed: there was nothing to heal"
    assert (
        healed({"ended": ["drill 2: slow:1*3"], "woken": [4, 2, 3]})
        == "healed: ended drill 2: slow:1*3; woke 2-4"
    )
