"""Where results lie: nothing is written to that somebody still reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gossip import aggregators
from gossip.core.events import Aggregate, Apply, Payload, Row
from gossip.node.reducer import BLOCK_BYTES, LENT_BYTES, Reducer, ResultMaker, ResultWriter
from gossip.node.result_slots import ResultSlots
from gossip.node.worker import Worker
from gossip.transport.lending import Buffer, BufferPool
from gossip.vectors import payload_digest

BOUNDS = ((0, 16), (16, 24))
SIZES = (64, 32)


class Slots:
    """Two slots for copies, and ``landings`` behind them."""

    def __init__(self, landings: int = 2, *, lent: bool = True) -> None:
        self.vectors = [np.zeros(24, np.float32) for _ in range(2 + landings)]
        self.sent: list[Any] = []
        self.slots = ResultSlots(self.vectors, 2, BOUNDS, self.in_flight, lent=lent)

    def in_flight(self, data: object) -> bool:
        return any(np.shares_memory(data, each) for each in self.sent)

    def apply_another(self) -> None:
        """What the trainer has applied last is not in its gradients any more."""
        at, there = self.slots.place(Apply(99, (Payload(np.zeros(24, np.float32), 96),))) or (0, 1)
        assert not there
        self.slots.applied(at)

    def receive(self, round_id: int, value: float = 1.0) -> tuple[Payload, ...]:
        """A result that lands shard by shard, or wherever there is no room."""
        payloads = []
        for shard, nbytes in enumerate(SIZES):
            room = self.slots.room(round_id, shard, nbytes)
            data = (np.empty(nbytes, np.uint8) if room is None else room).view(np.float32)
            data[:] = value
            payloads.append(Payload(data, nbytes))
        return tuple(payloads)


def test_a_result_that_landed_is_where_the_trainer_reads_it():
    rig = Slots()
    payloads = rig.receive(5, 3.0)
    at, there = rig.slots.place(Apply(5, payloads))
    assert there
    assert at >= 2
    assert rig.vectors[at].tolist() == [3.0] * 24


def test_a_result_of_which_a_shard_lies_elsewhere_is_copied():
    rig = Slots()
    first, last = rig.receive(5)
    elsewhere = Payload(last.data.copy(), last.nbytes)
    assert rig.slots.place(Apply(5, (first, elsewhere))) == (1, False)
    assert rig.slots.place(Apply(6, (elsewhere, first))) == (0, False)
    assert rig.slots.place(Apply(7, (elsewhere,))) is None, "both are in use"
    rig.slots.applied(1)
    assert rig.slots.place(Apply(7, (elsewhere,))) is None, "it is in the trainer's gradients"
    rig.slots.applied(0)
    assert rig.slots.place(Apply(7, (elsewhere,))) == (1, False)


def test_a_round_that_also_mixes_is_copied():
    rig = Slots()
    payloads = rig.receive(5)
    assert rig.slots.place(Apply(5, payloads, mix=payloads[0])) == (1, False)


def test_another_result_of_the_same_shard_does_not_land_on_the_first():
    rig = Slots()
    first = rig.receive(5, 1.0)
    second = rig.receive(5, 2.0)
    assert first[0].data.tolist() == [1.0] * 16
    assert second[0].data.tolist() == [2.0] * 16
    at, there = rig.slots.place(Apply(5, first))
    assert there
    assert rig.vectors[at].tolist() == [1.0] * 24
    del first
    assert rig.slots.room(5, 0, 64) is None, "the trainer reads it"


@pytest.mark.parametrize("user", ["the trainer", "its gradients", "the core", "a lane"])
def test_a_slot_is_not_given_again_while_somebody_reads_it(user):
    rig = Slots(landings=1)
    payloads = rig.receive(5)
    at, there = rig.slots.place(Apply(5, payloads))
    assert there
    if user == "a lane":
        rig.sent.append(rig.vectors[at][20:])
    if user != "the trainer":
        rig.slots.applied(at)
    if user in ("the core", "a lane"):
        rig.apply_another()
    payloads = payloads[1:] if user == "the core" else ()
    assert rig.slots.room(6, 0, 64) is None
    assert rig.vectors[at].all(), "nothing was written there"
    rig.sent.clear()
    payloads = ()
    if user == "the trainer":
        rig.slots.applied(at)
    if user in ("the trainer", "its gradients"):
        rig.apply_another()
    assert rig.slots.room(6, 0, 64) is not None


def test_no_room_is_given_for_what_is_no_shard():
    rig = Slots()
    assert rig.slots.room(5, 0, 60) is None
    assert rig.slots.room(5, 2, 32) is None
    assert ResultSlots((), 0, (), rig.in_flight, lent=True).room(5, 0, 64) is None


def test_a_slot_whose_result_is_not_lent_is_free_once_it_is_read():
    rig = Slots(landings=1, lent=False)
    at, _ = rig.slots.place(Apply(5, rig.receive(5)))
    assert rig.slots.room(6, 0, 64) is None
    rig.slots.applied(at)
    assert rig.slots.room(6, 0, 64) is not None


@pytest.mark.parametrize(("kept", "turns"), [(1, [2, 3, 2, 3, 2, 3]), (3, [2, 3, 4, 2, 3, 4])])
def test_slots_are_used_in_turn_and_no_more_of_them_than_results_are_kept(kept, turns):
    rig = Slots(landings=5)
    used, held = [], []
    for round_id in range(6):
        held = [*held, rig.receive(round_id)][-kept:]
        at, there = rig.slots.place(Apply(round_id, held[-1]))
        assert there
        used.append(at)
        rig.slots.applied(at)
        held = held[1:] if len(held) == kept > 1 else held
    assert used == turns


# --- memory that is used again --------------------------------------------------------------------


def test_memory_is_used_again_once_no_array_over_it_lives():
    pool = BufferPool()
    first = pool.allocate(1000)
    start = first.ctypes.data
    tail = first.view(np.float32)[100:]
    del first
    other = pool.allocate(1000)
    assert other.ctypes.data != start, "a part of it lives"
    del tail
    assert pool.allocate(900).ctypes.data == start


def test_memory_of_another_size_is_let_go():
    pool = BufferPool()
    pool.allocate(1000)
    kept = pool.allocate(5000)
    pool.allocate(100)
    assert [buffer.nbytes for buffer in pool._buffers] == [5000, 100]
    assert len(kept) == 5000


def test_memory_is_lent_to_one_at_a_time():
    buffer = Buffer(np.zeros(8, np.uint8))
    lent = buffer.lend(4)
    with pytest.raises(AssertionError):
        buffer.lend(4)
    del lent
    assert len(buffer.lend(8)) == 8


# --- results that are made there ------------------------------------------------------------------

LONG = np.arange(BLOCK_BYTES // 4 * 2 + 5, dtype=np.float32)


def room() -> np.ndarray:
    return np.zeros(LONG.nbytes, np.uint8)


def test_a_result_is_the_same_wherever_it_is_made():
    place = room()
    there, anywhere = ResultMaker(room=place).payload(LONG), ResultMaker().payload(LONG)
    assert np.shares_memory(there.data, place)
    assert there.data.tobytes() == anywhere.data.tobytes() == LONG.tobytes()
    assert there.digest == anywhere.digest == payload_digest(LONG)
    assert (there.nbytes, there.finite) == (anywhere.nbytes, anywhere.finite)


def test_a_rule_on_rows_gives_the_same_block_by_block():
    rows = [LONG, LONG[::-1].copy()]

    mean = aggregators.load("mean").from_rows
    assert mean is not None
    there = ResultMaker(room=room()).from_rows(mean, rows)
    anywhere = ResultMaker().from_rows(mean, rows)
    assert there.data.tobytes() == anywhere.data.tobytes()
    assert there.digest == anywhere.digest


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_result_with_a_number_that_is_not_finite_is_none(at, bad):
    spoilt = LONG.copy()
    spoilt[at] = bad
    mean = aggregators.load("mean").from_rows
    assert mean is not None
    for maker in (ResultMaker(room=room()), ResultMaker()):
        assert maker.payload(spoilt) is None
        assert maker.from_rows(mean, [spoilt]) is None
        assert maker.answer(1, spoilt, (), ()).reason == "non_finite result"


def test_a_rule_that_gives_up_on_a_block_gives_up():
    for maker in (ResultMaker(room=room()), ResultMaker()):
        assert maker.from_rows(lambda rows, out: bool(rows[0][0]), [LONG * 0]) is None


def rows_of(elements: int) -> tuple[Row, ...]:
    return tuple(Row(p, Payload(np.ones(elements, np.float32), 4 * elements), 1) for p in (0, 1))


@pytest.mark.parametrize(
    ("elements", "more", "asked"),
    [
        (LENT_BYTES // 4, {}, False),
        (LENT_BYTES // 4 + 1, {}, True),
        (LENT_BYTES // 4 + 1, {"mix": True, "own": 0}, False),
    ],
)
def test_room_is_asked_for_where_others_are_to_read_it(elements, more, asked):
    worker, done, rooms = Worker(), [], []

    def ask(*what: int) -> None:
        rooms.append(what)

    writer = ResultWriter(room=ask)
    reducer = Reducer(aggregators.load("mean"), worker, done.append, centered=False, results=writer)
    reducer.reduce(Aggregate(1, 7, 2, rows_of(elements), 0, **more))
    worker.close()
    assert rooms == ([(7, 2, 4 * elements)] if asked else [])
    assert done[0].payload is not None
