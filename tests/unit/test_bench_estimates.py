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
    assert compare(Estimate((0.10, 0.11, 0.12))) == "holds"
    assert compare(Estimate((-0.10, -0.11, -0.12))) == "fails"
    assert compare(Estimate((-0.20, 0.10, 0.10))) == "undecided", "the mean is no proof"
    assert compare(Estimate((0.0, 0.0, 0.0))) == "holds"


@pytest.mark.parametrize(("comparisons", "verdict"), [(1, "holds"), (20, "undecided")])
def test_many_comparisons_need_a_wider_interval_each(comparisons: int, verdict: str) -> None:
    differences = Estimate((0.10, 0.12, 0.16))  # mean 0.127, 4.303 and 19.962 times 0.0176 around
    assert compare(differences, comparisons) == verdict


def test_one_seed_decides_nothing_and_says_so_in_json() -> None:
    one = Estimate((0.1,))
    assert one.interval == (-math.inf, math.inf)
    assert compare(one) == compare(Estimate(())) == "undecided"
    assert json.loads(json.dumps(one.as_data(), allow_nan=False)) == {
        "mean": 0.1,
        "standard_error": None,
        "interval": None,
    }


def test_a_share_of_an_estimate_is_as_uncertain() -> None:
    whole, part = Estimate((0.8, 0.9, 1.0)), Estimate((0.8, 0.9, 1.0)).times(0.9)
    assert part.interval == pytest.approx(tuple(0.9 * end for end in whole.interval))
