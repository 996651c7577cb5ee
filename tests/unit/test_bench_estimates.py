"""What a mean over a few seeds is worth."""

from __future__ import annotations

import json
import math

import pytest

from gossip_lab.estimates import Estimate, compare, false_discovery_level, t_quantile


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


def test_the_level_is_that_of_the_last_rank_below_its_line() -> None:
    """Benjamini and Hochberg's own example: 4 of 15 at a rate of 5 %."""
    p_values = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240]
    p_values += [0.4262, 0.5719, 0.6528, 0.7590, 1.0000]
    assert false_discovery_level(reversed(p_values)) == 0.0095
    assert false_discovery_level([0.04]) == 0.04
    assert false_discovery_level([0.04, 0.9]) == 0.0
    assert false_discovery_level([]) == 0.0
    differences = Estimate((0.10, 0.12, 0.16))
    assert differences.p_value == pytest.approx(0.0188, abs=1e-4)
    assert compare(differences, 0.02) == "holds"
    assert compare(differences, 0.01) == "undecided"
    assert compare(differences.times(-1.0), 0.02) == "fails"


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
