"""How many of those alive take part in a run's rounds, and when that is said."""

from __future__ import annotations

from typing import Any

from gossip.launch.report.live_frame import health
from gossip.launch.report.participation import BOUND, WINDOW, Participation
from gossip.launch.report.screens import progress
from gossip.launch.report.view import RunView


def fed(view: RunView, rounds: range, contributors: int, **fields: Any) -> list[str]:
    """What is said of rounds of which every peer tells."""
    said = []
    for number in rounds:
        for peer in view.rows:
            own = {"round": number, "step": number + 1, "alive": len(view.rows)}
            who = {"contributors": list(range(contributors))}
            said += view.feed(
                {"t": number / 10, "peer": peer, "event": "round", **own, **who, **fields}
            )
    return said


def test_each_round_counts_once_whoever_tells_of_it() -> None:
    view = RunView(4)
    fed(view, range(4), 4)
    fed(view, range(4, 8), 2)
    late = {"round": 2, "step": 3, "alive": 4, "contributors": [0, 1, 2, 3]}
    view.feed({"t": 9.0, "peer": 3, "event": "round", **late})
    assert view.participation.last == (2, 4)
    assert view.participation.mean == 0.75
    assert view.participation.of_window is None, "the window is not over"
    assert "4 alive  2 of 4 took part" in progress(view)


def test_it_is_said_once_that_participation_has_fallen_and_again_when_it_falls_again() -> None:
    view = RunView(4)
    assert fed(view, range(WINDOW), 4) == []
    said = fed(view, range(WINDOW, 3 * WINDOW), 3)
    assert len(said) == 1
    assert "only 79% of the peers that are alive took part in the rounds" in said[0]
    assert view.participation.is_low
    assert "degraded: 4 of 4 peers train; 75% take part" in health(view).plain
    assert fed(view, range(3 * WINDOW, 4 * WINDOW), 4) == []
    assert not view.participation.is_low
    assert "take part" not in health(view).plain
    assert said[0].endswith("raise --round-timeout where steps or links take long")
    said = fed(view, range(4 * WINDOW, 5 * WINDOW), 0)
    assert len(said) == 1
    assert "in 5 rounds nobody sent an update" in said[0], "as many as it takes to fall below"
    assert view.participation.least == 0.0


def test_who_is_in_quarantine_lacks_nowhere() -> None:
    view = RunView(4)
    locked = {"event": "quarantined", "subject": 3, "round": 0, "trust": 0.1}
    view.feed({"t": 0.0, "peer": 0, **locked})
    assert view.rows[3].quarantined
    assert fed(view, range(2 * WINDOW), 3) == []
    assert view.participation.mean == 1.0
    view.rows[3].state = "gone"  # and is not among those alive any more
    at = {"round": 2 * WINDOW, "step": 2 * WINDOW + 1, "alive": 3, "contributors": [0, 1]}
    view.feed({"t": 9.0, "peer": 0, "event": "round", **at})
    assert view.participation.last == (2, 3)


def test_a_collective_operation_is_no_round_in_which_nobody_took_part() -> None:
    view = RunView(4)
    fed(view, range(2), 4)
    fed(view, range(2, 5), 0, step=2)
    assert view.participation.mean == 1.0


def test_an_operation_is_none_behind_steps_that_nobody_told_of_either() -> None:
    """Peers leave out rounds that are like the one before: a mean at the end of an epoch is the
    next that they tell of."""
    view = RunView(4)
    fed(view, range(1), 4)
    fed(view, range(7, 8), 0, step=7)  # six steps were left out
    assert (view.participation.last, view.participation.mean) == ((4, 4), 1.0)
    assert "4 of 4 took part" in progress(view)
    fed(view, range(8, 9), 4, step=8)
    fed(view, range(15, 16), 0, step=15)  # six steps were left out, and this is one, too
    assert (view.participation.last, view.participation.mean) == ((0, 4), 2 / 3)
    assert progress(view).endswith("4 alive  nobody sent an update")


def test_gossip_rounds_tell_of_no_participation() -> None:
    view = RunView(2)
    view.feed({"t": 0.1, "peer": 0, "event": "round", "round": 0, "alive": 2, "server": None})
    assert view.participation.mean is None


def test_nobody_alive_but_contributors_is_all_who_could() -> None:
    """Who died between its update and the commit."""
    seen = Participation()
    assert not seen.observe(3, 2)
    assert (seen.last, seen.mean) == ((3, 3), 1.0)
    assert 0 < BOUND < 1
