from __future__ import annotations

import pytest

from gossip.launch.report.pace import WINDOW_S, StepPace


def pace_of(*steps: tuple[float, int]) -> StepPace:
    pace = StepPace()
    for t, step in steps:
        pace.stepped(t, step)
    return pace


def test_the_pace_is_that_of_the_last_seconds() -> None:
    pace = pace_of(*((at / 10, at) for at in range(50)), *((5 + at, 50 + at) for at in range(40)))
    assert pace.per_s(44.0) == pytest.approx(1.0)


def test_it_is_not_known_before_the_second_step() -> None:
    assert pace_of().per_s(0.0) is None
    assert pace_of((0.0, 1)).per_s(0.0) is None


def test_one_step_in_a_minute_has_a_pace_too() -> None:
    assert pace_of((0.0, 1), (60.0, 2)).per_s(60.0) == pytest.approx(1 / 60)
    assert pace_of((0.0, 1), (60.0, 2)).per_s(60.0 + 2 * WINDOW_S) == pytest.approx(1 / 60)


def test_who_stands_still_gets_slower() -> None:
    pace = pace_of(*((at / 10, at) for at in range(20)))
    assert pace.per_s(1.9) == pytest.approx(10)
    now, later = pace.per_s(4.0), pace.per_s(100.0)
    assert later < now < 6


def test_who_goes_back_to_an_earlier_step_begins_anew() -> None:
    pace = pace_of((0.0, 100), (1.0, 110), (2.0, 50), (3.0, 51))
    assert pace.per_s(3.0) == pytest.approx(1)


def test_waiting_is_what_is_left_of_a_step() -> None:
    pace = pace_of(*((at / 10, at) for at in range(20)))
    assert pace.waiting(1.9) is None
    pace.computed(1.8, 0.02)
    pace.computed(1.9, 0.04)
    assert pace.waiting(1.9) == pytest.approx(0.7)
    pace.computed(1.9, 9.0)
    assert pace.waiting(1.9) == 0.0
