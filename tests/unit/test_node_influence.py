"""Peers whose updates count for little."""

from random import Random

import pytest

from gossip.core.messages import Commit, Contribution
from gossip.node.influence import ROUNDS, InfluenceWatch


def commit(*weights):
    whole = sum(weights)
    of = tuple(Contribution(peer, 1, each / whole, 1.0) for peer, each in enumerate(weights))
    return Commit(b"l", 0, 0, 0, 0, 0, b"", b"d" * 16, of, (), (), None, "")


def reported(rounds):
    watch = InfluenceWatch()
    return [found for each in rounds for found in watch.observe_commit(each)]


def test_a_peer_that_a_rule_gives_little_weight_is_reported_once_with_its_mean() -> None:
    rounds = [commit(1.0, 1.0, 1.0, 0.2)] * (ROUNDS - 1)
    assert reported(rounds) == []
    assert reported(3 * rounds) == [(3, pytest.approx(0.2 * 4 / 3.2))]
    assert reported([commit(1.0, 1.0, 1.0, 0.6)] * 40) == []


def test_a_peer_is_reported_again_when_its_influence_came_back_between() -> None:
    low, equal = commit(1.0, 1.0, 1.0, 0.1), commit(1.0, 1.0, 1.0, 1.0)
    assert [peer for peer, _ in reported([low] * 30 + [equal] * 30 + [low] * 30)] == [3, 3]


def test_a_rule_that_chooses_few_is_no_reason_to_report_a_peer() -> None:
    assert reported([commit(*(at % 4 == peer for peer in range(4))) for at in range(80)]) == []
    assert reported([commit(0.0, 0.0, 0.0, 1.0)] * 40) == []


def test_a_rule_that_leaves_out_others_each_time_names_nobody() -> None:
    """As mda with f = 4 of 10, and multi_krum with 3 of 9, on equal data."""
    for n, f in ((10, 4), (9, 3)):
        lot = Random(n)
        kept = [set(lot.sample(range(n), n - f)) for _ in range(2000)]
        assert reported([commit(*(peer in each for peer in range(n))) for each in kept]) == []
