"""Fetches batches of a map-style data set as the user's DataLoader would: with workers, prefetching
and pinned memory.

A worker's random numbers, for example for augmentation, depend only on the run's seed, the peer and
the batch. So they are the same in a resumed run.

The swarm assigns the samples of this peer at the start of each round, so prefetching needs a
prediction. The node predicts the next rounds, and workers prefetch the batches of these rounds. A
batch is used only if the prediction was right.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, Self, TypeAlias
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from gossip.core import PREDICTED_ROUNDS
from gossip.topologies import draw

from .seeding import seed_generators
from .watch import TerminationHandler

Key: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]
"""Key of a batch: epoch, and the ranges of positions in it."""

PR_SET_PDEATHSIG = 1


class Fetcher:
    """Fetcher of batches. The fetcher uses a new DataLoader with the workers, ``collate_fn`` and
    memory options of the given loader.

    Workers seed the generators of Python, numpy and torch before each batch.

    Workers run for one epoch; with ``persistent_workers`` they run until ``close``. After a wrong
    prediction, workers complete the fetches that have begun, and the batches are dropped.

    Attributes:
        ahead: Number of batches after the next one that workers prefetch; 0 without workers.
    """

    def __init__(
        self, loader: DataLoader[Any], indices: Callable[[Key], Tensor], *words: object
    ) -> None:
        """
        Args:
            indices: Function that returns the indices of the samples in a key's batch.
            words: Values that, together with the batch's key, determine the seed of a batch.
        """
        self._given, self._indices, self._words = loader, indices, words
        self._generator = torch.Generator().manual_seed(draw("workers", *words) % 2**63)
        self.ahead = min(PREDICTED_ROUNDS, loader.num_workers * (loader.prefetch_factor or 0))
        self._asked: deque[Key] = deque()  # keys of running fetches, in order
        self._wanted = _Wanted(self._start_fetch)
        self._own: DataLoader[Any] | None = None
        self._batches: Iterator[Any] | None = None
        dataset: Any = loader.dataset
        plain = (
            loader.collate_fn is default_collate
            and not loader.num_workers
            and not loader.pin_memory
        )
        self._cuts = type(dataset) is TensorDataset and plain

    def fetch(self, key: Key, coming: Iterable[Key] = ()) -> Any:
        """Return the batch of ``key``. Workers then prefetch the batches of the keys ``coming``.

        Raises: Errors of the data set and of ``collate_fn``, as in the given loader.
        """
        if self._cuts:
            # Index the whole tensors. The result equals that of collating single samples. The
            # indices stay a tensor, because indexing with a list takes several times as long.
            indices = self._indices(key)
            tensors: tuple[Tensor, ...] = self._given.dataset.tensors  # type: ignore[attr-defined]
            return [tensor[indices] for tensor in tensors]
        if not self._given.persistent_workers:
            # the workers end with the epoch
            coming = [guess for guess in coming if guess[0] == key[0]]
        plan = [key, *coming] if self.ahead else [key]
        try:
            self._want(plan)
            assert self._batches is not None
            batch = next(self._batches)
        except BaseException:
            self.close()  # drop running fetches
            raise
        self._asked.popleft()
        return batch

    def _want(self, plan: list[Key]) -> None:
        known = len(self._asked)
        if self._batches is None or (self.ahead and (not known or self._asked[0] != plan[0])):
            self._asked.clear()
            self._wanted.keys = deque(plan)
            if self._own is None:
                self._own = self._make()
            # Persistent workers complete the fetches that have begun, and then continue with these
            # keys.
            self._batches = start_workers(self._own)
        elif list(self._asked) == plan[:known]:
            self._wanted.keys = deque(plan[known:])
        else:
            self._wanted.keys.clear()  # the prediction was wrong: no further fetches begin

    def _make(self) -> DataLoader[Any]:
        given = self._given
        return loader_like(
            given,
            SeededDataset(given.dataset) if given.num_workers else given.dataset,
            self._generator,
            # Workers must survive a wrong prediction. ``rest`` ends them after an epoch, unless
            # those of the given loader persist.
            persists=True,
            batch_sampler=self._wanted,
        )

    def _start_fetch(self, key: Key) -> list[int]:
        """Return the indices of the batch for the loader. If there are workers, the first element
        is the seed of the batch."""
        self._asked.append(key)
        # plain ints, because a data set may use the index as a dictionary key
        indices: list[int] = self._indices(key).tolist()
        if not self._given.num_workers:
            return indices
        return [draw("batch", *self._words, *[at for pair in key[1] for at in pair]), *indices]

    def rest(self) -> None:
        """End the workers after an epoch, unless ``persistent_workers`` is set."""
        if not self._given.persistent_workers:
            self.close()

    def close(self) -> None:
        """End the workers, if there are any."""
        batches, self._batches, self._own = self._batches, None, None
        self._asked.clear()
        end_workers(batches)


class _Wanted:
    """Batch sampler of a fetcher's loader. It yields the index lists of the requested keys. When no
    key is left it ends, but yields again after new requests."""

    def __init__(self, start_fetch: Callable[[Key], list[int]]) -> None:
        self.keys: deque[Key] = deque()
        self._start_fetch = start_fetch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[int]:
        if not self.keys:
            raise StopIteration
        return self._start_fetch(self.keys.popleft())


class DatasetProxy:
    """Proxy that forwards reads and writes of attributes to the data set. Attributes that a
    subclass defines are not forwarded.

    A ``worker_init_fn`` may set attributes of ``get_worker_info().dataset``, which is this proxy,
    so writes are forwarded, too.
    """

    def __init__(self, dataset: Any, **own: Any) -> None:
        self.__dict__.update(_dataset=dataset, **own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)  # during unpickling there is no data set yet
        return getattr(self.__dict__["_dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)


class SeededDataset(DatasetProxy, Dataset[Any]):
    """Data set that seeds the worker's generators before it fetches a batch."""

    def __getitems__(self, wanted: list[int]) -> Any:
        seed, *indices = wanted
        # A forked process must not use the generators of devices.
        seed_generators(seed, devices=False)
        many = getattr(self._dataset, "__getitems__", None)
        return many(indices) if many is not None else [self._dataset[at] for at in indices]

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __len__(self) -> int:
        return len(self._dataset)


_workers: dict[int, WeakSet[BaseProcess]] = {}
"""Workers of the loaders; the key is the pid of the process that started them. A fork of that
process must not end its workers."""


def start_workers(loader: DataLoader[Any]) -> Iterator[Any]:
    """Return an iterator over a ``loader``, which comes from ``loader_like``.

    SIGTERM may arrive while a worker still imports modules, so workers start with the signal
    blocked, and unblock it themselves. A fork server is excluded: its processes would inherit the
    mask and never unblock the signal.
    """
    if not loader.num_workers:
        return iter(loader)
    blocked = {signal.SIGTERM} if _start_method(loader) != "forkserver" else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        batches = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if os.getpid() not in _workers:
        _workers[os.getpid()] = WeakSet()
        # At exit multiprocessing sends SIGTERM to the workers and waits for them, although workers
        # ignore SIGTERM. So this finalizer kills them before.
        Finalize(None, _kill_workers, exitpriority=0)
    _workers[os.getpid()].update(getattr(batches, "_workers", ()))
    return batches


def end_workers(batches: Any) -> None:
    """End the workers of an iterator that ``start_workers`` returned, if there are any.

    torch would end the workers when the last reference to the iterator is dropped. After an error
    in a sample, its traceback may hold a reference for a long time.
    """
    if (shut_down := getattr(batches, "_shutdown_workers", None)) is not None:
        shut_down()
        for worker in getattr(batches, "_workers", ()):
            worker.kill()  # torch sends only SIGTERM to a worker that hangs


def _kill_workers() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises when a worker is killed
    for worker in _workers[os.getpid()]:
        worker.kill()


def _start_method(loader: DataLoader[Any]) -> str | None:
    context: Any = loader.multiprocessing_context or multiprocessing
    method: str | None = context.get_start_method()
    return method


def loader_like(
    given: DataLoader[Any],
    dataset: Any,
    generator: torch.Generator,
    *,
    persists: bool,
    **options: Any,
) -> DataLoader[Any]:
    """Return a loader of ``dataset`` with the workers, ``collate_fn`` and memory options of
    ``given``. ``persists``: whether workers continue after an iteration over the loader."""
    if given.num_workers:
        options["prefetch_factor"] = given.prefetch_factor
        options["persistent_workers"] = persists
        options["multiprocessing_context"] = given.multiprocessing_context
        options["worker_init_fn"] = _WorkerStart(given)
    if given.pin_memory_device:
        options["pin_memory_device"] = given.pin_memory_device
    return DataLoader(
        dataset,
        num_workers=given.num_workers,
        pin_memory=given.pin_memory,
        timeout=given.timeout,
        generator=generator,
        **{"collate_fn": given.collate_fn, **options},
    )


class _WorkerStart:
    """Picklable ``worker_init_fn`` that makes the worker end together with this process, and then
    calls the loader's own ``worker_init_fn``. Without it, the workers of a killed trainer would
    survive for up to five seconds, because torch's workers check for their parent only that often.
    Until then they would hold the trainer's memory and output pipes, and delay the restart of the
    peer.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        # The kernel would send the signal when the thread that started the worker ends, so this
        # must be the main thread. Workers of a fork server have another parent process.
        in_main = threading.current_thread() is threading.main_thread()
        tied = _start_method(loader) != "forkserver" and in_main
        self._given, self._parent = loader.worker_init_fn, os.getpid() if tied else 0

    def __call__(self, worker: int) -> None:
        if self._parent:
            libc = ctypes.CDLL(None, use_errno=True)
            if (
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0
                and os.getppid() != self._parent
            ):
                os._exit(1)  # The parent died before the call.
        # systemd and containers send SIGTERM to all processes at once, but the trainer needs its
        # workers until the end of its round. So the worker ignores the signal.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        TerminationHandler().install()
        signal.siginterrupt(signal.SIGTERM, False)  # system calls of the data set continue
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if self._given is not None:
            self._given(worker)
