"""What a mean over a few seeds is worth."""

from __future__ import annotations

import json
import math

import pytest

from gossip.launch.bench.estimates import Estimate, compare, t_quantile


@pytest.mark.parametrize(
    ("freedom", "t"),
    # A table of Student's t, 97.5 %.
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (30, 2.042)],
)
def test_students_t_is_that_of_the_tables(freedom: int, t: float) -> None:
    assert t_quantile(freedom) == pytest.approx(t, abs=5e-4)


def test_the_interval_is_so_many_standard_errors_wide() -> None:
    found = Estimate((0.80, 0.82, 0.84))
    assert found.mean == pytest.approx(0.82)
    assert found.error == pytest.approx(0.02 / math.sqrt(3))
    low, high = found.interval
    assert (low, high) == pytest.approx((0.7703, 0.8697), abs=1e-4)


def test_what_lies_wholly_above_the_limit_holds_and_what_lies_below_fails() -> None:
    limit = Estimate((0.79, 0.80, 0.81))
    assert compare(Estimate((0.90, 0.91, 0.92)), limit) == "holds"
    assert compare(Estimate((0.70, 0.69, 0.68)), limit) == "fails"
    assert compare(Estimate((0.60, 0.90, 0.90)), limit) == "undecided", "the mean is no proof"
    assert compare(Estimate((0.81, 0.81, 0.81)), limit) == "undecided", "the limit is no number"
    assert compare(Estimate((0.81, 0.81, 0.81)), Estimate((0.8, 0.8, 0.8))) == "holds"


def test_one_seed_decides_nothing_and_says_so_in_json() -> None:
    one, limit = Estimate((0.1,)), Estimate((0.79, 0.80, 0.81))
    assert one.interval == (-math.inf, math.inf)
    assert compare(one, limit) == compare(limit, one) == "undecided"
    assert json.loads(json.dumps(one.as_data(), allow_nan=False)) == {
        "mean": 0.1,
        "standard_error": None,
        "interval": None,
    }


def test_a_share_of_an_estimate_is_as_uncertain() -> None:
    whole, part = Estimate((0.8, 0.9, 1.0)), Estimate((0.8, 0.9, 1.0)).times(0.9)
    assert part.interval == pytest.approx(tuple(0.9 * end for end in whole.interval))
