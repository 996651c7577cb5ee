from __future__ import annotations

from gossip.launch.report.folding import BURST, WINDOW_S, EventFolder


def test_what_happens_a_hundred_times_is_one_line_with_a_count() -> None:
    folder, shown = EventFolder(), list[str]()
    for at in range(100):
        shown += folder.fold(f"~ peer {at % 3} changes sides: branch of round {at}", at / 100)
    assert shown == [f"~ peer {at % 3} changes sides: branch of round {at}" for at in range(BURST)]
    assert folder.due(WINDOW_S - 0.1) == []
    assert folder.due(WINDOW_S) == [
        f"~ {100 - BURST} more in 1 s (peers 0-2), the last 9 s ago: peer 0 changes sides: "
        "branch of round 99"
    ]


def test_what_goes_on_gets_one_line_in_each_window_and_what_rests_begins_anew() -> None:
    folder, shown = EventFolder(), list[str]()
    for at in range(300):
        shown += folder.fold(f"~ peer 1 changes sides: {at}", at / 10)
    assert len(shown) == BURST + 2
    (line,) = folder.due(30.0)
    assert line.startswith("~ 100 more in 10 s, the last: "), "it has not ended"
    assert folder.due(40.0) == []
    assert folder.fold("~ peer 1 changes sides: 7", 40.1) == ["~ peer 1 changes sides: 7"]


def test_kinds_are_counted_apart() -> None:
    folder = EventFolder()
    for _ in range(BURST):
        assert folder.fold("! peer 1 skipped by 2", 0.0)
        assert folder.fold("~ peer 1 is back", 0.0)
    assert not folder.fold("! peer 1 skipped by 2", 0.0)
    assert folder.rest(1.0) == ["! 1 more in 1 s, the last 1 s ago: peer 1 skipped by 2"]


def test_deaths_and_faults_are_all_shown() -> None:
    folder = EventFolder()
    for at in range(50):
        assert folder.fold(f"x peer {at} dead", 0.0)
        assert folder.fold(f"* injected: SIGKILL peer {at}", 0.0)
        assert folder.fold("0.5 of all", 0.0)


def test_what_goes_on_with_a_line_is_shown_or_held_with_it() -> None:
    folder = EventFolder()
    for at in range(BURST):
        folder.fold(f"! {at}", 0.0)
        assert folder.fold("  hint", 0.0) == ["  hint"]
    folder.fold("! 9", 0.0)
    assert folder.fold("  hint", 0.0) == []
    assert folder.fold("x peer 1 dead", 0.0)
    assert folder.fold("  hint", 0.0) == ["  hint"]
