"""Graces and round timeouts learn from what was seen."""

from random import Random

import pytest

from gossip.core.rounds.timeouts import Deadline


def deadline(**changes: float) -> Deadline:
    return Deadline(**{"mads": 4.0, "floor_s": 0.002, "cap_s": 10.0, **changes})


def test_the_cap_holds_while_little_is_known() -> None:
    waiting = deadline()
    for _ in range(7):
        waiting.observe(0.01)
        waiting.observe_round(0.5)
        assert waiting.grace_s() == waiting.round_timeout_s() == 10.0
    waiting.observe(0.01)
    waiting.observe_round(0.5)
    assert waiting.grace_s() == pytest.approx(0.01)
    assert waiting.round_timeout_s() == pytest.approx(1.5)


def test_the_grace_is_median_plus_scaled_mads() -> None:
    waiting = deadline()
    for lag in (1, 2, 3, 4, 5, 6, 7, 8, 9):
        waiting.observe(lag / 100)
    assert waiting.grace_s() == pytest.approx(0.05 + 4.0 * 1.4826 * 0.02)


def test_the_grace_stays_between_floor_and_cap() -> None:
    waiting = deadline()
    for _ in range(20):
        waiting.observe(0.0)
    assert waiting.grace_s() == 0.002
    waiting.floor_s = 0.2
    assert waiting.grace_s() == 0.2
    for _ in range(64):
        waiting.observe(1e6)
    assert waiting.grace_s() == 10.0


def test_only_the_last_observations_count() -> None:
    waiting = deadline()
    for lag in [5.0] * 64 + [0.05] * 64:
        waiting.observe(lag)
    assert waiting.grace_s() == pytest.approx(0.05)


def test_the_round_timeout_is_three_rounds_between_a_second_and_the_cap() -> None:
    quick, slow, middle = deadline(), deadline(), deadline()
    for _ in range(8):
        quick.observe_round(0.01)
        middle.observe_round(1.0)
        slow.observe_round(60.0)
    assert (quick.round_timeout_s(), middle.round_timeout_s(), slow.round_timeout_s()) == (
        1.0,
        3.0,
        10.0,
    )


def test_a_window_that_slides_equals_one_that_is_sorted_afresh() -> None:
    random, waiting, seen = Random(2), deadline(floor_s=0.0), []
    for _ in range(300):
        seen.append(random.choice([0.1, 0.2, random.random()]))
        waiting.observe(seen[-1])
        if len(seen) >= 8:
            ordered = sorted(seen[-64:])
            median = ordered[len(ordered) // 2]
            mad = sorted(abs(value - median) for value in ordered)[len(ordered) // 2]
            assert waiting.grace_s() == pytest.approx(median + 4 * 1.4826 * mad)


def test_the_floor_is_found_without_the_deviation_and_only_where_it_holds() -> None:
    random = Random(2)
    for spread in (0.0001, 0.001, 0.01, 0.1):
        waiting, seen = deadline(floor_s=0.01), []
        for _ in range(40):
            lag = random.expovariate(1 / spread)
            waiting.observe(lag)
            seen.append(lag)
        median = sorted(seen)[20]
        deviation = sorted(abs(lag - median) for lag in seen)[20]
        assert waiting.grace_s() == max(0.01, median + 4.0 * 1.4826 * deviation)
