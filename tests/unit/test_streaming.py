"""Streams: each peer reads every n-th element, by its rank in the roster as a pass begins."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from gossip.inject.faulty_trainer import LabelFlip
from gossip.ipc.messages import StartRoundCommand
from gossip.training.batches import LoaderPass
from gossip.training.streaming import ShardedStream, _Every


class Count(IterableDataset):
    """Counts. Its workers may be told to count parts, as in torch's own example."""

    def __init__(self, stop: int, start: int = 0) -> None:
        self.start, self.stop = start, stop

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))


class Halves(Count):
    def __len__(self) -> int:
        return self.stop


class Rounds:
    """A session in a roster of ``peers``; the run has ``rounds``."""

    least = 1
    batches = run = rounds = steps = property(lambda self: self)
    peer = 0

    def __init__(self, rank: int = 0, peers: int = 1, rounds: int = 1000) -> None:
        self.rank, self.peers, self.limit = rank, peers, rounds
        self.planned_peers = peers
        self.at = self.handed = self.batch = 0
        self.passed: list[int] = []
        self.stepped: list[int] = []

    def next_round(self) -> StartRoundCommand | None:
        return (
            StartRoundCommand(self.at, 0, False, 0, (), False, self.peers, self.peers, self.rank)
            if self.at < self.limit
            else None
        )

    def hand_out(self, samples: int, batch: int = 0, content: object = None) -> None:
        self.handed, self.batch = samples, batch

    @property
    def next_batch(self) -> int | None:
        return self.batch + 1 if self.handed else None

    def resume_pass(self, resumed: LoaderPass | None) -> LoaderPass:
        return resumed or LoaderPass()

    def end_pass(self, epoch: int | None = None) -> None:
        pass

    def pass_round(self, skipped: bool = False) -> None:
        self.passed.append(self.at)
        self.at, self.handed = self.at + 1, 0

    @property
    def unused(self) -> bool:
        return self.handed > 0

    def step(self) -> None:
        self.stepped.append(self.handed)
        self.at, self.handed = self.at + 1, 0


def stream(rounds: Rounds, dataset: Any, flip: bool = False, **options: Any) -> ShardedStream:
    options.setdefault("batch_size", 2)
    if options.get("num_workers"):
        options["multiprocessing_context"] = "fork"
    alter = LabelFlip(dataset, None) if flip else lambda batch: batch
    return ShardedStream(DataLoader(dataset, **options), rounds, 7, alter)


def one_pass(rounds: Rounds, data: ShardedStream) -> list[list[int]]:
    seen = []
    for batch in data:
        seen.append(batch.tolist())
        rounds.step()
    return seen


def test_the_peers_of_a_roster_read_each_element_once() -> None:
    parts = []
    for rank in range(3):
        rounds = Rounds(rank, 3)
        parts.append(one_pass(rounds, stream(rounds, Count(11))))
        assert rounds.stepped == [len(batch) for batch in parts[-1]]
    assert parts == [[[0, 3], [6, 9]], [[1, 4], [7, 10]], [[2, 5], [8]]]


def test_a_pass_keeps_its_share_and_the_next_takes_that_of_the_new_roster() -> None:
    rounds = Rounds(2, 3)
    data = stream(rounds, Count(12))
    batches = iter(data)
    assert next(batches).tolist() == [2, 5]
    rounds.step()
    rounds.rank, rounds.peers = 1, 2  # peer 0 is lost
    assert next(batches).tolist() == [8, 11]
    assert data.share == (2, 3)
    rounds.step()
    assert next(batches, None) is None
    assert one_pass(rounds, data) == [[1, 3], [5, 7], [9, 11]]
    assert data.share == (1, 2)


def part_of_worker(worker: int) -> None:
    info = get_worker_info()
    half = info.dataset.stop // info.num_workers
    info.dataset.start, info.dataset.stop = worker * half, (worker + 1) * half


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_split_the_stream_among_them_go_on_doing_so(persistent: bool) -> None:
    read = []
    for rank in range(2):
        rounds = Rounds(rank, 2)
        data = stream(
            rounds,
            Count(16),
            num_workers=2,
            worker_init_fn=part_of_worker,
            persistent_workers=persistent,
        )
        passes = [sorted(at for batch in one_pass(rounds, data) for at in batch) for _ in range(2)]
        assert passes[0] == passes[1]
        read += passes[0]
        data.close()
    assert sorted(read) == list(range(16))


def test_the_run_ends_an_endless_stream() -> None:
    rounds = Rounds(rounds=5)
    assert len(one_pass(rounds, stream(rounds, Count(10**9)))) == 5
    assert one_pass(rounds, stream(rounds, Count(10**9))) == []


def test_a_batch_without_a_step_is_gone_and_its_round_passes() -> None:
    rounds = Rounds()
    seen = []
    for at, batch in enumerate(stream(rounds, Count(6))):
        seen.append(batch.tolist())
        if at != 1:
            rounds.step()
    assert seen == [[0, 1], [2, 3], [4, 5]]
    assert rounds.passed == [1]


def test_a_peer_whose_part_is_empty_does_not_keep_the_others_waiting() -> None:
    rounds = Rounds(2, 3)
    assert one_pass(rounds, stream(rounds, Count(2))) == []
    assert rounds.passed == [0]


@pytest.mark.parametrize(
    ("element", "samples"),
    [
        (torch.zeros(5, 2), 5),
        ((torch.zeros(3, 2), torch.zeros(3)), 3),
        ({"x": torch.zeros(4)}, 4),
        (torch.tensor(1.0), 1),
        (7, 1),
    ],
)
def test_a_stream_of_batches_counts_their_samples(element: Any, samples: int) -> None:
    class Batches(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            return iter([element])

    rounds = Rounds()
    for _ in stream(rounds, Batches(), batch_size=None):
        rounds.step()
    assert rounds.stepped == [samples]


def test_drop_last_means_what_it_says() -> None:
    rounds = Rounds()
    assert one_pass(rounds, stream(rounds, Count(5), drop_last=True)) == [[0, 1], [2, 3]]


def test_the_length_is_batches_a_pass_if_the_stream_knows_it() -> None:
    assert len(stream(Rounds(0, 3), Halves(12))) == 2
    with pytest.raises(TypeError):
        len(stream(Rounds(0, 3), Count(12)))


def test_a_label_flipper_lies_about_streams_too() -> None:
    class PairStream(IterableDataset):
        classes = ("a", "b", "c")

        def __iter__(self) -> Iterator[tuple[float, int]]:
            return iter([(float(at), at % 3) for at in range(4)])

    rounds = Rounds()
    ((_, targets),) = list(stream(rounds, PairStream(), flip=True, batch_size=4))
    assert targets.tolist() == [2, 1, 0, 2]


def test_a_part_of_a_stream_survives_the_way_to_a_worker() -> None:
    again = copy.deepcopy(_Every(Count(9), 1, 4))
    assert list(again) == [1, 5]
    again.stop = 6
    assert list(again) == [1, 5]
    again.stop = 5
    assert (list(again), again.start) == ([1], 0)


def test_of_a_stream_several_batches_make_one_step_and_what_is_left_of_it_is_left_out() -> None:
    rounds = Rounds()
    for at, _ in enumerate(
        ShardedStream(DataLoader(Count(21), batch_size=2), rounds, 7, accumulate=4)
    ):
        if at % 4 == 3:
            rounds.step()
    assert (rounds.stepped, rounds.passed) == ([8, 8], [2])
