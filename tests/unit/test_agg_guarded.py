"""guarded_mean: the mean, until an update is longer than any honest one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_lineage import commit

from gossip.aggregators import load, mean
from gossip.core import TRUST_ROUNDS
from gossip.core.events import Aggregate, Aggregated, Payload, Row
from gossip.core.ledger.log import CommitLog
from gossip.node.reducer import Reducer, ResultWriter
from gossip.node.worker import Worker

guarded = load("guarded_mean")


def updates(n: int, d: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_it_is_the_mean_bit_for_bit_while_nothing_is_wrong(n: int) -> None:
    given = updates(n)
    verdict = guarded.explain(given)
    assert torch.equal(verdict.aggregate, mean(given))
    assert verdict.outlyingness.tolist() == n * [1.0]


@pytest.mark.parametrize("factor", [4.0, -10.0, 1e3, 1e30])
@pytest.mark.parametrize("n", [3, 4, 8])
def test_an_update_that_is_too_long_is_clipped_to_the_usual_length(n: int, factor: float) -> None:
    given = updates(n)
    lengths = given.norm(dim=1)
    given[1] *= factor
    verdict = guarded.explain(given)
    clipped = given.clone()
    clipped[1] *= verdict.length / given[1].double().norm().item()
    assert torch.allclose(verdict.aggregate, clipped.mean(dim=0), atol=1e-5)
    assert min(lengths) <= verdict.length <= max(lengths)
    assert verdict.outlyingness[1] > 3.0
    assert verdict.weights[1] < verdict.weights[0]


def test_what_is_usual_is_learnt_from_earlier_rounds() -> None:
    """Of peers that have learnt most samples few send much."""
    given = updates(4) * 1e-3
    given[2] *= 100
    assert guarded.explain(given).outlyingness[2] > 3.0
    verdict = guarded.explain(given, usual=5.0)
    assert torch.equal(verdict.aggregate, mean(given))
    assert verdict.length < 0.01


def test_a_peer_without_a_gradient_does_not_make_zero_usual() -> None:
    given = updates(3)
    given[0] = given[1] = 0.0
    assert torch.equal(guarded.explain(given).aggregate, mean(given))


def test_of_two_nobody_knows_which_is_broken() -> None:
    given = updates(2)
    given[1] *= 1000
    assert torch.equal(guarded.explain(given).aggregate, mean(given))


def reduce(given: torch.Tensor, outside: int = 0, in_place: bool = False, usual: float = 0.0):
    told: list[Aggregated] = []
    rows = [
        Row(peer, Payload(row, row.nbytes), 32)
        for peer, row in enumerate(given.numpy().astype(np.float32))
    ]
    kept = len(rows) - outside
    memory = np.zeros(4 * given.shape[1], np.uint8)
    writer = ResultWriter(room=(lambda *_: memory) if in_place else None)
    worker = Worker()
    try:
        reducer = Reducer(guarded, worker, told.append, centered=False, results=writer)
        reducer.reduce(
            Aggregate(1, 0, 0, tuple(rows[:kept]), 1, outside=tuple(rows[kept:]), usual=usual)
        )
    finally:
        worker.close()
    return told[0]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("broken", [False, True])
def test_a_node_makes_the_same_of_updates_where_they_lie(
    monkeypatch: pytest.MonkeyPatch, broken: bool, in_place: bool
) -> None:
    if in_place:
        monkeypatch.setattr("gossip.node.reducer.LENT_BYTES", 0)
    given = updates(5)
    given[1] *= 50 if broken else 1
    given[4] *= 50
    answer = reduce(given, outside=1, in_place=in_place)
    verdict = guarded.explain(given[:4], f=1)
    assert np.allclose(answer.payload.data, verdict.aggregate.numpy(), atol=1e-6)
    assert answer.length == pytest.approx(verdict.length, rel=1e-5)
    assert answer.outlyingness == pytest.approx(verdict.outlyingness.tolist(), rel=1e-5)
    assert answer.outside[0] > 3.0


def test_a_log_tells_the_longest_of_recent_rounds() -> None:
    log = CommitLog(64, 2**20)
    payload = Payload(None, 8, True, b"d" * 16)
    for round_id in range(TRUST_ROUNDS + 1):
        of = commit(round_id, length=9.0 if round_id == 0 else 1.0, kind=2)
        assert log.usual(2, 0) == (9.0 if round_id else 0.0)
        log.append(round_id, ((of, payload),))
    assert (log.usual(2, 0), log.usual(0, 0)) == (1.0, 0.0)
