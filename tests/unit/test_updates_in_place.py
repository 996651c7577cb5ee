"""Updates that are added up where they lie, in memory of peers that may change it at any time: what
they change is out of the round, or is their own update as it then is, and nothing else changes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import numpy as np
import pytest

from gossip import aggregators
from gossip.core.events import NO_ROWS, Aggregate, Aggregated, Payload, Row
from gossip.node.reducer import BLOCK_BYTES, Reducer, ResultWriter
from gossip.node.worker import Worker
from gossip.vectors import payload_digest

NUMBERS = BLOCK_BYTES // 4 * 2 + 5


def long(value: float) -> np.ndarray:
    return np.full(NUMBERS, value, np.float32)


class Swarm:
    """A server's own update, and those of others in memory that is theirs."""

    def __init__(self, *others: float, own: float = 1.0) -> None:
        self.memories = [long(value) for value in others]
        views = [memory.view() for memory in self.memories]
        for view in views:
            view.flags.writeable = False
        vectors = [long(own), *views]
        self.rows = tuple(
            Row(peer, Payload(vector, vector.nbytes, finite=True), 1)
            for peer, vector in enumerate(vectors)
        )
        self.outside: tuple[Row, ...] = ()

    def result(self, *, room: bool) -> Aggregated:
        worker, done = Worker(), []
        results = ResultWriter(
            room=lambda *shard: np.zeros(4 * NUMBERS, np.uint8) if room else None
        )
        reducer = Reducer(
            aggregators.load("mean"), worker, done.append, centered=False, results=results
        )
        assert reducer.only_adds_up
        reducer.reduce(Aggregate(1, 7, 0, self.rows, 0, 0, outside=self.outside))
        worker.close()
        (answer,) = done
        if answer.payload is not None:
            assert answer.payload.finite
            assert np.isfinite(answer.payload.data).all()
            assert answer.payload.digest == payload_digest(answer.payload.data)
        return answer


@pytest.mark.parametrize("room", [True, False])
def test_updates_in_others_memory_are_added_up(room):
    answer = Swarm(3.0, 8.0).result(room=room)
    assert (answer.payload.data == 4.0).all()
    assert answer.weights == (1 / 3,) * 3


@pytest.mark.parametrize("at", [0, NUMBERS // 2, -1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("room", [True, False])
def test_one_that_is_not_finite_any_more_is_out_and_the_others_count(room, bad, at):
    swarm = Swarm(3.0, 8.0)
    swarm.memories[0][at] = bad  # it was finite when it came
    answer = swarm.result(room=room)
    assert (answer.payload.data == 4.5).all()
    assert answer.weights == (0.5, 0.0, 0.5)
    assert answer.outlyingness == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("bad", [np.nan, 1e30])
def test_what_is_changed_between_two_blocks_harms_no_other_update(bad, monkeypatch):
    swarm = Swarm(3.0)
    rule = aggregators.load("mean").from_rows
    assert rule is not None
    blocks: list[int] = []

    def rewriting(rows: Sequence[np.ndarray], out: np.ndarray) -> bool:
        blocks.append(len(rows[0]))
        added_up = rule(rows, out)
        swarm.memories[0][:] = bad  # all that was read, and all that is to come
        return added_up

    monkeypatch.setattr(aggregators.BoundRule, "from_rows", property(lambda _: rewriting))
    answer = swarm.result(room=True)
    assert len(blocks) > 1
    if np.isnan(bad):
        assert (answer.payload.data == 1.0).all(), "the server's own is left"
        assert answer.weights == (1.0, 0.0)
    else:
        assert answer.payload.data[0] == 2.0
        assert answer.payload.data[-1] == np.float32((1.0 + np.float32(bad)) / 2)
        assert answer.weights == (0.5, 0.5)


@pytest.mark.parametrize("spoilt", [0, 1])
def test_who_is_outside_the_rule_is_told_of_and_changes_nothing(spoilt):
    swarm = Swarm(3.0, 8.0)
    swarm.outside, swarm.rows = swarm.rows[2:], swarm.rows[:2]
    swarm.memories[spoilt][0] = np.nan
    answer = swarm.result(room=True)
    assert (answer.payload.data == (2.0 if spoilt else 1.0)).all()
    assert answer.weights == ((0.5, 0.5) if spoilt else (1.0, 0.0))
    assert answer.outside == (1.0,)


def test_a_sum_beyond_float32_of_finite_updates_is_their_mean():
    answer = Swarm(3e38, own=3e38).result(room=True)
    assert np.allclose(answer.payload.data, 3e38)
    assert answer.weights == (0.5, 0.5)


def test_a_round_of_nobody_but_such_is_lost():
    swarm = Swarm(3.0, 8.0)
    swarm.rows = swarm.rows[1:]
    for memory in swarm.memories:
        memory[0] = np.nan
    assert swarm.result(room=True) == Aggregated(1, None, reason=NO_ROWS)


def test_only_a_rule_that_adds_up_reads_what_others_may_change():
    for name, adds_up in (("mean", True), ("median", False), ("krum", False)):
        reducer = Reducer(aggregators.load(name), Worker(), print, centered=False)
        assert reducer.only_adds_up == adds_up


def test_a_worker_that_waits_refers_to_no_job_any_more():
    worker, done = Worker(), threading.Event()
    memory = np.zeros(8)
    gone = weakref.ref(memory, lambda _: done.set())
    worker.submit(memory.sum, lambda _: None)
    del memory
    while gone() is not None:
        worker.finish()
        assert done.wait(20) or gone() is None
    worker.close()
