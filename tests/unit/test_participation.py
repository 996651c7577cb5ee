"""How many of those alive take part in a run's rounds, and when that is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from event_rows import event
from recorded_run import RecordedRun

from gossip.launch.report.html import recorded
from gossip.launch.report.live_frame import health
from gossip.launch.report.participation import BOUND, GAPS_MAX, WINDOW, Participation
from gossip.launch.report.run_model import RunModel
from gossip.launch.report.screens import progress


def fed(view: RunModel, rounds: range, contributors: int, **fields: Any) -> list[str]:
    """What is said of rounds of which every peer tells."""
    said = []
    for number in rounds:
        for peer in view.rows:
            own = {"round": number, "step": number + 1, "alive": len(view.rows)}
            who = {"contributors": list(range(contributors)), "server": 0}
            said += view.apply(event("round", peer, number / 10, **{**own, **who, **fields}))
    return said


def test_each_round_counts_once_whoever_tells_of_it() -> None:
    view = RunModel(4)
    fed(view, range(4), 4)
    fed(view, range(4, 8), 2)
    late = {"round": 2, "step": 3, "alive": 4, "contributors": [0, 1, 2, 3], "server": 0}
    view.apply(event("round", 3, 9.0, **late))
    assert view.progress.participation.last == (2, 4)
    assert view.progress.participation.mean == 0.75
    assert view.progress.participation.of_window is None, "the window is not over"
    assert "4 alive  2 of 4 took part" in progress(view)


def test_it_is_said_once_that_participation_has_fallen_and_again_when_it_falls_again() -> None:
    view = RunModel(4)
    assert fed(view, range(WINDOW), 4) == []
    said = fed(view, range(WINDOW, 3 * WINDOW), 3)
    assert len(said) == 1
    assert "only 79% of the peers that are alive took part in the rounds" in said[0]
    assert view.progress.participation.is_low
    assert "degraded: 4 of 4 peers train; 75% take part" in health(view).plain
    assert fed(view, range(3 * WINDOW, 4 * WINDOW), 4) == []
    assert not view.progress.participation.is_low
    assert "take part" not in health(view).plain
    assert said[0].endswith("raise --round-timeout if steps or links are slow")
    said = fed(view, range(4 * WINDOW, 5 * WINDOW), 0)
    assert len(said) == 1
    assert "in 5 rounds no peer had an update" in said[0], "as many as it takes to fall below"
    assert view.progress.participation.least == 0.0


def test_who_is_in_quarantine_lacks_nowhere() -> None:
    view = RunModel(4)
    view.apply(event("quarantined", 0, subject=3, round=0, trust=0.1))
    assert view.rows[3].quarantined
    assert fed(view, range(2 * WINDOW), 3) == []
    assert view.progress.participation.mean == 1.0
    view.rows[3].state = "gone"  # and is not among those alive any more
    at = {"round": 2 * WINDOW, "step": 2 * WINDOW + 1, "alive": 3, "contributors": [0, 1]}
    view.apply(event("round", 0, 9.0, server=0, **at))
    assert view.progress.participation.last == (2, 3)


def test_a_collective_operation_is_no_round_in_which_nobody_took_part() -> None:
    view = RunModel(4)
    fed(view, range(2), 4)
    fed(view, range(2, 5), 0, step=2)
    assert view.progress.participation.mean == 1.0


def test_an_operation_is_none_behind_steps_that_nobody_told_of_either() -> None:
    """Peers leave out rounds that are like the one before: a mean at the end of an epoch is the
    next that they tell of."""
    view = RunModel(4)
    fed(view, range(1), 4)
    fed(view, range(7, 8), 0, step=7)  # six steps were left out
    assert (view.progress.participation.last, view.progress.participation.mean) == ((4, 4), 1.0)
    assert "4 of 4 took part" in progress(view)
    fed(view, range(8, 9), 4, step=8)
    fed(view, range(15, 16), 0, step=15)  # six steps were left out, and this is one, too
    assert (view.progress.participation.last, view.progress.participation.mean) == ((0, 4), 2 / 3)
    assert progress(view).endswith("4 alive  no usable update")


def test_gossip_rounds_tell_of_no_participation() -> None:
    """Those whom a peer names are the neighbours whose updates it had."""
    view = RunModel(4)
    said = []
    for number in range(2 * WINDOW):
        own = {"round": number, "alive": 4, "server": None, "contributors": [0, 1]}
        said += view.apply(event("round", 0, number / 10, **own))
    assert said == []
    assert view.progress.participation.mean is None
    assert "took part" not in progress(view)


def test_nobody_alive_but_contributors_is_all_who_could() -> None:
    """Who died between its update and the commit."""
    seen = Participation()
    assert not seen.observe(range(1), 3, 2)
    assert (seen.last, seen.mean) == ((3, 3), 1.0)
    assert 0 < BOUND < 1


def test_rounds_that_were_left_out_count_with_those_that_are_told() -> None:
    """One of ten rounds lacks a peer, and is always told."""
    view = RunModel(4)
    said = []
    for lacks in range(9, 100, 10):
        said += fed(view, range(lacks - 1, lacks), 4, since=lacks - 9 + (lacks > 9))
        said += fed(view, range(lacks, lacks + 1), 2)
        said += fed(view, range(lacks + 1, lacks + 2), 4)
    assert said == []
    seen = view.progress.participation
    assert seen.mean is not None
    assert round(seen.mean, 12) == round((91 + 10 * 0.5) / 101, 12)
    assert seen.least is not None
    assert round(seen.least, 12) == 0.95, "two of any twenty"


def test_a_run_of_rounds_falls_below_the_bound_where_it_would_have_if_each_had_been_told() -> None:
    each, together = RunModel(4), RunModel(4)
    said = [*fed(each, range(30), 4), *fed(each, range(30, 90), 1), *fed(each, range(90, 91), 4)]
    assert len(said) == 1
    assert "only 78% " in said[0]
    assert "in the rounds 16 to 35," in said[0]
    assert said == [
        *fed(together, range(29, 30), 4, since=0),
        *fed(together, range(89, 90), 1, since=30),
        *fed(together, range(90, 91), 4),
    ]
    one, other = each.progress.participation, together.progress.participation
    assert one.last == other.last
    assert abs(one.mean - (other.mean or 0.0)) < 1e-12
    assert (one.least, one.of_window) == (other.least, other.of_window) == (0.25, 0.2875)


def test_who_comes_back_leaves_a_gap_that_the_others_fill_and_nobody_counts_twice() -> None:
    """A peer that was started again is the first to tell of round 12, and knows of none before
    it."""
    view = RunModel(2)

    def tell(peer: int, number: int, who: int, **fields: Any) -> None:
        own = {"round": number, "step": number + 1, "alive": 2, "contributors": list(range(who))}
        own["server"] = 0
        view.apply(event("round", peer, number / 10, **own, **fields))

    tell(0, 4, 2, since=0)
    tell(1, 12, 2)
    assert (view.progress.participation.last, view.progress.participation.mean) == ((2, 2), 1.0)
    tell(0, 9, 0, since=5)  # it cannot be seen here whether these were steps
    assert view.progress.participation.mean == 1.0
    tell(0, 9, 1, since=5)
    assert view.progress.participation.last == (2, 2), "of round 12"
    assert view.progress.participation.mean == (6 + 5 / 2) / 11
    tell(1, 14, 2, since=13)
    tell(0, 15, 2, since=10)  # 10, 11 and 15 are new
    assert view.progress.participation.mean == (11 + 5 / 2) / 16
    tell(0, 15, 0, since=0)
    assert view.progress.participation.mean == (11 + 5 / 2) / 16


def test_of_rounds_that_nobody_tells_of_nothing_is_counted() -> None:
    seen = Participation()
    for number in range(0, 4 * GAPS_MAX, 2):
        seen.observe(range(number, number + 1), 1, 1)
    assert seen.mean == 1.0
    seen.observe(range(4 * GAPS_MAX), 0, 1)
    known, filled = 2 * GAPS_MAX, GAPS_MAX
    assert seen.mean == known / (known + filled), "the oldest gaps are forgotten"


def test_a_window_is_named_by_its_rounds_also_where_some_are_told_late_or_never() -> None:
    """A run that goes on from round 100; a peer that was away tells of round 120 at once, another
    one then of those before it."""
    view = RunModel(4)
    assert fed(view, range(100, 105), 4) == []
    assert fed(view, range(120, 121), 1) == []
    (said,) = fed(view, range(119, 120), 2, since=106)  # and nobody of round 105
    assert "only 61% " in said
    assert "in the rounds 100 to 120," in said
    fed(view, range(105, 106), 2)
    seen = view.progress.participation
    assert seen.of_window == (4 + 15 / 2 + 1 / 4) / WINDOW, "it is in for round 100"
    fed(view, range(99, 100), 0)
    assert seen.of_window == (4 + 15 / 2 + 1 / 4) / WINDOW, "it is older than all"


def test_after_many_rounds_alike_the_window_is_of_the_last_of_them() -> None:
    view = RunModel(4)
    assert fed(view, range(99, 100), 4, since=0) == []
    (said,) = fed(view, range(100, 110), 2)
    assert "in the rounds 89 to 108," in said


def test_a_range_of_rounds_without_anybody_is_steps_or_operations_as_its_steps_tell() -> None:
    view = RunModel(4)
    fed(view, range(9, 10), 4, since=0)
    fed(view, range(19, 20), 0, since=10, step=10)
    assert view.progress.participation.mean == 1.0
    fed(view, range(24, 25), 0, since=20, step=15)
    assert view.progress.participation.mean == 10 / 15


def test_nonsense_instead_of_the_first_round_is_none() -> None:
    view = RunModel(2)
    for number, since in enumerate((-1, None, -1, 99, 50)):
        fed(view, range(2 * number, 2 * number + 1), 1 + (since == 99), since=since)
    assert view.progress.participation.mean == (4 / 2 + 1) / 5
    fed(view, range(2**39, 2**39 + 1), 2, since=0)
    seen = view.progress.participation
    assert (seen.last, seen.of_window) == ((2, 2), 1.0)


def test_the_page_has_every_round_also_those_told_of_after_a_later_one(tmp_path: Path) -> None:
    """Peer 1 is back in round 12, and is the first to tell of that: the others tell a moment later
    of those before it, which were like each other."""
    run = RecordedRun(tmp_path / "run")
    about = {"server": 0, "alive": 4}
    run.event(1.0, 0, "round", round=0, step=1, contributors=[0, 1, 2, 3], **about)
    run.event(1.1, 1, "exited", code=None, signal=9, how="killed by 9")
    run.event(1.3, 1, "started", pid=301, incarnation=1)
    run.event(1.4, 1, "round", round=12, step=13, contributors=[0, 1, 2, 3], **about)
    run.event(1.5, 0, "round", round=11, since=1, step=12, contributors=[0, 2, 3], **about)
    run.event(1.5, 0, "round", round=12, step=13, contributors=[0, 1, 2, 3], **about)
    seen = recorded.RecordedRun(run.folder).view.progress.participation
    assert seen.mean == (1 + 11 * 3 / 4 + 1) / 13
    assert seen.last == (4, 4)
