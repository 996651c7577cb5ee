"""Updates that differ by more than chance."""

from random import Random

import pytest

from gossip.core.ledger.spread import ROUNDS, UNEQUAL, UpdateSpread, f_ratio
from gossip.core.messages import Contribution


def measured(typical, f=2, rounds=ROUNDS, seed=0, noise=0.2, absent=lambda at, peer: False):
    """``typical``: how far out each peer's updates lie as a rule."""
    spread, chance, ratios = UpdateSpread(f), Random(seed), []
    for at in range(rounds):
        ratios.append(
            spread.observe(
                [
                    Contribution(peer, 32, 0.1, far * chance.lognormvariate(0.0, noise))
                    for peer, far in enumerate(typical)
                    if not absent(at, peer)
                ]
            )
        )
    return ratios


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("liars", [(), (10.0, 10.0), (0.1, 12.0)])
def test_by_chance_the_ratio_is_about_one_whatever_f_liars_do(seed, liars):
    ratio = measured([1.0] * (10 - len(liars)) + list(liars), seed=seed)[-1]
    assert ratio is not None
    assert ratio < UNEQUAL or 0.1 in liars  # who keeps near can only warn, not hide


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("liars", [(), (10.0, 10.0)])
def test_the_same_peers_farther_out_round_after_round_is_not_chance(seed, liars):
    honest = [0.6, 0.8, 0.8, 0.9, 1.0, 1.0, 1.1, 1.4, 2.0, 2.2][: 10 - len(liars)]
    ratio = measured([*honest, *liars], seed=seed)[-1]
    assert ratio is not None
    assert ratio > UNEQUAL


def test_it_is_measured_once_in_so_many_rounds_and_anew_each_time():
    ratios = measured([1.0, 1.0, 1.0, 1.0, 1.5], rounds=2 * ROUNDS)
    assert [at for at, ratio in enumerate(ratios) if ratio is not None] == [
        ROUNDS - 1,
        2 * ROUNDS - 1,
    ]
    assert ratios[ROUNDS - 1] != ratios[2 * ROUNDS - 1]


def test_nothing_is_said_of_rules_that_tell_no_updates_apart_nor_of_few_peers():
    assert measured([1.0] * 10, noise=0.0)[-1] is None
    assert measured([1.0, 2.0, 3.0], f=1)[-1] is None
    few_whole = lambda at, peer: peer > 2 and at == 3  # noqa: E731
    assert measured([1.0, 2.0, 3.0, 1.0, 1.0], f=1, absent=few_whole)[-1] is None


def test_the_ratio_is_that_of_the_textbook():
    """Three groups of a worked example of one-way analysis of variance: F = 9.3 (84 / 2 over 68 /
    15)."""
    groups = [[6, 8, 4, 5, 3, 4], [8, 12, 9, 11, 6, 8], [13, 9, 11, 8, 7, 12]]
    assert f_ratio(groups) == pytest.approx((84 / 2) / (68 / 15))
    assert f_ratio([[1.0, 1.0], [2.0, 2.0]]) is None
    assert f_ratio([[1.0, 2.0]]) is None
    assert f_ratio([[0.0, 1e-9], [1e9, 1e9]]) == 1e9
