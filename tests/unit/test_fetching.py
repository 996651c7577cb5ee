"""Batches that real DataLoader workers fetch beforehand: always those of the round,
whatever was guessed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import select
import signal
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, get_worker_info

from gossip.training.fetching import Fetcher, Key


class Squares(Dataset):
    """Says which process was asked for what."""

    def __init__(self, n: int = 100) -> None:
        self.n = n
        self.asked: Any = multiprocessing.get_context("fork").SimpleQueue()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        if index == 66:
            raise LookupError("the 66th is broken")
        self.asked.put((os.getpid(), index))
        return index, index * index, os.getpid()


def indices(key: Key) -> torch.Tensor:
    return torch.cat([torch.arange(start, stop) for start, stop in key[1]])


def key(start: int, epoch: int = 0) -> Key:
    return epoch, ((start, start + 4),)


@contextlib.contextmanager
def fetching(dataset: Any, words: tuple[object, ...] = (5,), **options: Any) -> Iterator[Fetcher]:
    options.setdefault("num_workers", 2)
    if options["num_workers"]:
        options.setdefault("multiprocessing_context", "fork")
    fetcher = Fetcher(DataLoader(dataset, batch_size=4, **options), indices, *words)
    try:
        yield fetcher
    finally:
        fetcher.close()


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}],
)
def test_a_batch_is_what_the_round_says_despite_wrong_guesses(options: dict[str, Any]) -> None:
    lot = Random(3)
    with fetching(
        TensorDataset(torch.arange(60)),
        collate_fn=lambda rows: [int(row[0]) for row in rows],
        **options,
    ) as fetcher:
        plan = [key(lot.randrange(56), epoch=at // 20) for at in range(60)]
        for at, now in enumerate(plan):
            coming = plan[at + 1 : at + 1 + lot.randint(0, fetcher.ahead)]
            if lot.random() < 0.3:
                coming = [key(lot.randrange(56), now[0]) for _ in coming]
            assert fetcher.fetch(now, coming) == indices(now).tolist()
            if at % 20 == 19:
                fetcher.rest()


def test_workers_fetch_what_is_coming_before_anybody_asks_and_nothing_twice() -> None:
    dataset = Squares()
    with fetching(dataset) as fetcher:
        assert fetcher.ahead == 4
        plan = [key(4 * at) for at in range(12)]
        fetcher.fetch(plan[0], plan[1:5])
        # Five batches without being asked again: were nothing fetched ahead,
        # this would never return.
        seen = [dataset.asked.get() for _ in range(5 * 4)]
        for at in range(1, 12):
            fetcher.fetch(plan[at], plan[at + 1 : at + 5])
        seen += [dataset.asked.get() for _ in range(7 * 4)]
        assert dataset.asked.empty()
    assert sorted(index for _, index in seen) == list(range(48))
    assert len({pid for pid, _ in seen} - {os.getpid()}) == 2


def test_a_guess_that_turned_out_wrong_is_not_gone_on_with() -> None:
    dataset = Squares()
    with fetching(dataset, num_workers=1, prefetch_factor=2) as fetcher:
        fetcher.fetch(key(0), [key(4), key(8), key(12), key(16)])
        fetcher.fetch(key(4), [key(40), key(44)])  # 8 is under way, and will not come
        fetcher.fetch(key(40), [key(44)])
        # Before closing: a worker that is told to end drops what it was asked for.
        seen = [dataset.asked.get()[1] for _ in range(5 * 4)]
    assert dataset.asked.empty()
    assert seen == [*range(12), *range(40, 48)]


def mark(worker: int) -> None:
    get_worker_info().dataset.n = 1000 + worker


def test_the_loaders_own_functions_run_in_its_workers() -> None:
    def collate(rows: list[Any]) -> tuple[int, int, int]:
        return os.getpid(), get_worker_info().dataset.n, torch.initial_seed()

    with fetching(Squares(), collate_fn=collate, worker_init_fn=mark) as fetcher:
        state = torch.get_rng_state()
        first = fetcher.fetch(key(0), [key(4)])
        second = fetcher.fetch(key(4))
        assert torch.equal(state, torch.get_rng_state()), "the user's random numbers were drawn"
    assert os.getpid() not in (first[0], second[0])
    assert (first[1], second[1]) == (1000, 1001)
    assert second[2] != first[2]


class Noisy(Dataset):
    """Augments what it reads with all that one may draw with."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, float(torch.rand(())), float(np.random.rand()), random.random()


class ManyNoisy(Noisy):
    def __getitems__(self, indices: list[int]) -> list[tuple[int, float, float, float]]:
        return [self[index] for index in reversed(indices)]


def drawn(plan: list[Key], ahead: int, wrong: int, dataset: Any, **options: Any) -> list[Any]:
    """The batches of a plan when ``wrong`` in four guesses are wrong."""
    with fetching(dataset, collate_fn=list, **options) as fetcher:
        found = []
        for at, now in enumerate(plan):
            coming = plan[at + 1 : at + 1 + ahead]
            if at % 4 < wrong:
                coming = [key(90) for _ in coming]
            found.append(fetcher.fetch(now, coming))
        return found


@pytest.mark.parametrize("kind", [Noisy, ManyNoisy])
def test_what_a_worker_draws_for_a_batch_follows_from_the_batch(kind: type[Noisy]) -> None:
    plan = [key(4 * at) for at in range(8)]
    whole = drawn(plan, 4, 0, kind(), num_workers=2)
    assert len({row[1:] for batch in whole for row in batch}) == 8 * 4
    # another number of workers, others' batches before it, and a run that was resumed
    assert drawn(plan, 2, 3, kind(), num_workers=1, persistent_workers=True) == whole
    assert drawn(plan[3:], 4, 1, kind(), num_workers=2) == whole[3:]
    other = drawn(plan, 4, 0, kind(), num_workers=2, words=(5, 1))
    assert [row[0] for batch in other for row in batch] == [r[0] for b in whole for r in b]
    assert not {row[1:] for batch in other for row in batch} & {r[1:] for b in whole for r in b}


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_persist_if_they_are_to(persistent: bool) -> None:
    with fetching(Squares(), num_workers=1, persistent_workers=persistent) as fetcher:
        first = fetcher.fetch(key(0), [key(4, epoch=1)])[2][0].item()
        fetcher.rest()
        assert is_there(first) == persistent
        second = fetcher.fetch(key(4, epoch=1))[2][0].item()
        assert (first == second) == persistent
    assert not is_there(second)


def is_there(pid: int) -> bool:
    return (
        os.path.exists(f"/proc/{pid}/stat")
        and open(f"/proc/{pid}/stat").read().split(") ")[1][0] != "Z"
    )


def test_a_broken_sample_is_told_as_torch_would_and_the_rest_can_be_read() -> None:
    for workers in (0, 1):
        with fetching(Squares(), num_workers=workers) as fetcher:
            fetcher.fetch(key(0), [key(64)])
            with pytest.raises(LookupError, match="the 66th is broken"):
                fetcher.fetch(key(64), [key(4)])
            assert fetcher.fetch(key(4))[0].tolist() == [4, 5, 6, 7]
        # A broken sample that was only guessed is nobody's business.
        with fetching(Squares(), num_workers=workers) as fetcher:
            fetcher.fetch(key(0), [key(64), key(4)])
            assert fetcher.fetch(key(8))[0].tolist() == [8, 9, 10, 11]


def test_workers_end_at_once_with_a_trainer_that_is_killed() -> None:
    """By themselves they look for their parent every five seconds only."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with fetching(Squares(), num_workers=1) as fetcher:
                worker = fetcher.fetch(key(0))[2][0].item()
                os.write(write, str(worker).encode())
                signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    worker = int(os.read(read, 20))
    os.close(read)
    handle = os.pidfd_open(worker)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    ended, _, _ = select.select([handle], [], [], 2.0)
    os.close(handle)
    assert ended, "the worker outlives its trainer"


def test_workers_outlive_the_sigterm_of_a_group() -> None:
    with fetching(Squares(), num_workers=2) as fetcher:
        for at in range(0, 20, 4):  # the first signal meets workers that have just been started
            pids = set(fetcher.fetch(key(at), [key(at + 4)])[2].tolist())
            for worker in multiprocessing.active_children():
                os.kill(worker.pid or 0, signal.SIGTERM)
        assert len(pids) == 1


class Stuck(Squares):
    """Gets on no more after a while, and has no use for signals meanwhile."""

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        if index > 3:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            signal.pause()
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", [Squares, Stuck])
def test_workers_that_are_left_end_with_their_trainer(kind: type[Squares]) -> None:
    """multiprocessing ends them by one SIGTERM, and waits."""

    def train() -> None:
        globals()["left"] = left = Fetcher(
            DataLoader(kind(), batch_size=4, num_workers=2, persistent_workers=True), indices
        )
        left.fetch(key(0), [key(4)])

    trainer = multiprocessing.get_context("fork").Process(target=train)
    trainer.start()
    trainer.join(20)
    ended = trainer.exitcode
    trainer.kill()
    assert ended == 0
