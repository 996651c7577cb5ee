"""Updates that differ by more than chance."""

from random import Random

import pytest

from gossip.core.ledger.spread import beyond_chance
from gossip.core.settings import UNEQUAL

DIFFERENT = [0.6, 0.8, 0.8, 0.9, 1.0, 1.0, 1.1, 1.4, 2.0, 2.2]


def measured(typical, f=2, rounds=20, seed=0, noise=0.2, said=lambda at, peer, far: far):
    """``typical``: how far out each peer's updates lie as a rule; ``said``: what commits say."""
    chance = Random(seed)
    groups = [
        [said(at, peer, far * chance.lognormvariate(0.0, noise)) for at in range(rounds)]
        for peer, far in enumerate(typical)
    ]
    return beyond_chance(groups, f)


@pytest.mark.parametrize("liars", [(), (10.0, 10.0), (0.1, 12.0), (0.1, 0.1)])
def test_equal_data_are_equal_whatever_f_liars_do(liars):
    typical = [1.0] * (10 - len(liars)) + list(liars)
    assert max(measured(typical, seed=seed) for seed in range(20)) < UNEQUAL


@pytest.mark.parametrize("liars", [(), (10.0, 10.0)])
def test_the_same_peers_farther_out_round_after_round_is_not_chance(liars):
    typical = [*DIFFERENT[: 10 - len(liars)], *liars]
    assert min(measured(typical, seed=seed) for seed in range(20)) > UNEQUAL


@pytest.mark.parametrize("seed", range(5))
def test_one_lying_server_in_twenty_hides_no_difference(seed):
    """It says anything of the others in its commits."""
    for lie in (0.0, 1e6, 3e38):
        said = lambda at, peer, far, lie=lie: lie if at == 7 and peer < 5 else far  # noqa: E731
        beyond = measured(DIFFERENT, seed=seed, said=said)
        assert beyond > UNEQUAL


def test_nothing_is_said_of_rules_that_tell_no_updates_apart_nor_of_few_peers():
    alike = measured([1.0] * 10, noise=0.0)
    assert alike < 0.0
    assert measured([1.0, 2.0, 3.0], f=1) is None
    assert measured(DIFFERENT, f=5) is None


def test_it_is_friedmans_statistic():
    """Three wines by four judges, ranks (1, 2, 3), (1, 2, 3), (1, 3, 2), (1, 2, 3): Q = 6.5."""
    wines = [[1, 1, 1, 1], [2, 2, 3, 2], [3, 3, 2, 3]]
    outer = [[-9] * 4, [99] * 4]  # the nearest and the farthest, which are left out
    assert beyond_chance([*wines, *outer], 1) == pytest.approx((6.5 - 2) / 2)
    assert beyond_chance([*wines, *outer], 2) is None
    assert beyond_chance([[1.0], [2.0], [3.0], [4.0]], 1) is None


class Compared(float):
    """A number that counts how often one is compared with another."""

    times = 0

    def __lt__(self, other: float) -> bool:
        Compared.times += 1
        return float(self) < float(other)

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return float(self) == other

    __hash__ = float.__hash__


@pytest.mark.parametrize("peers", [50, 400])
def test_a_round_is_ranked_without_comparing_each_peer_with_each_other(peers):
    chance, rounds = Random(peers), 5
    Compared.times = 0
    beyond = beyond_chance(
        [[Compared(round(chance.random(), 1)) for _ in range(rounds)] for _ in range(peers)], 1
    )
    assert beyond is not None
    assert Compared.times < 60 * peers * rounds
