"""Reads the user's data. In each round the swarm assigns each peer a slice of a shared permutation
of the samples."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from gossip.core import EpochReport, Ranges
from gossip.errors import ConfigError
from gossip.ipc import StartRoundCommand
from gossip.topologies import draw

from .batches import length_of, pieces_of
from .fetching import Fetcher, Key
from .loops import TrainingLoop
from .orders import arrange, labels_for
from .reference import ReferenceData

ORDERS_KEPT = 3
"""Number of cached permutations: one for the current epoch, one for the next epoch (for
prefetching), and one for an earlier epoch with unread samples."""


class ShardedLoader:
    """Loader of this peer's share of each epoch: one batch (or ``accumulate``) per round.

    The swarm assigns samples round by round, so that none is lost or read twice when peers join and
    leave. The order within an epoch is random, from the run's seed, or by labels (``orders``).
    ``shuffle`` and ``drop_last`` of the given loader have no effect. Its workers, ``collate_fn``
    and pinned memory are used. Workers prefetch the batches that this peer will probably read next.

    Each ``optimizer.step()`` uses one batch, or ``accumulate`` of them. With local steps, the
    batches of a step that a GradScaler skips are yielded again. If the script requests the next
    batch without a step on the current batch, the current batch is skipped: its samples are not
    read again, and this peer sends no update in that round. An epoch has ``len(loader)`` batches
    even if peers fail; samples that failures leave unread are read first in the next epoch. A peer
    without samples in a round, for example in quarantine, still gets a batch. Its step is
    counted, but its update is not used.

    Attributes:
        dataset: The data set that was given.
        samples_total: Samples in an epoch, over all peers.
        ahead: Batches after the next one that the workers prefetch.
        report: How often the samples of the last completed epoch were used, over all peers. None
            before the first epoch is complete, and with topologies without commits.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        loop: TrainingLoop,
        seed: int,
        alter: Callable[[Any], Any] = lambda batch: batch,
        accumulate: int = 1,
    ) -> None:
        """Raises: ConfigError: The data cannot be split among peers, for example because of the
        sampler."""
        _check(loader)
        note_ignored(loader)
        assert loader.batch_size is not None
        dataset: Any = loader.dataset
        self.dataset = dataset
        self._batch_size = loader.batch_size
        self._loop, self._batches = loop, loop.rounds.batches
        self._seed, self._accumulate = seed, accumulate
        self._collate = loader.collate_fn
        self._sampler: Any = loader.sampler
        chosen = isinstance(loader.sampler, SubsetRandomSampler)
        self._given: Any = self._sampler.indices if chosen else ()  # type: ignore[attr-defined]
        self._chosen = torch.tensor(list(map(int, self._given))) if chosen else None
        self.samples_total = len(dataset) if self._chosen is None else len(self._chosen)
        if self.samples_total == 0:
            raise ConfigError("the data set is empty")
        self._fetcher = Fetcher(loader, self._indices, seed, loop.run.peer)
        self.ahead = self._fetcher.ahead
        self._alter = alter
        self._kind, self._labels = "", torch.empty(0)
        self._orders: dict[int, Tensor] = {}
        # Epoch that ``peer.epochs`` has yielded, and the rounds that were read since then.
        self._read: tuple[int, set[int]] = -1, set()
        self.report: EpochReport | None = None

    def order_by(self, kind: str) -> None:
        """Set the order of an epoch, one of ``orders.ORDERS``, before the first round.

        Raises: ConfigError: There is no such order, or the data set has no labels for it.
        """
        self._kind, self._labels = kind, labels_for(kind, self.dataset)

    @property
    def batch_size(self) -> int:
        """Samples per batch, which never changes."""
        return self._batch_size

    def __len__(self) -> int:
        """Return the number of batches per epoch, which never changes."""
        return self._accumulate * self.steps

    @property
    def steps(self) -> int:
        """Number of steps per epoch, which never changes."""
        batch = self.batch_size * self._accumulate
        return -(-self.samples_total // (batch * self._loop.run.planned_peers))

    @property
    def plan(self) -> tuple[int, int, int]:
        """Samples in an epoch, samples per peer and round, and number of rounds to predict, for
        prefetching."""
        return self.samples_total, self.batch_size * self._accumulate, self.ahead

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this peer in the rest of the current epoch."""
        self._check_unchanged()
        this = self._batches.resume_pass(None)
        go = self._next_round()
        if go is None:
            return
        epoch = go.epoch
        try:
            while go is not None and go.epoch == epoch:
                self._batches.is_extra = self._is_extra(go)
                total = length_of(go.ranges)
                keys = self._keys(go)
                upto = list(
                    itertools.accumulate(
                        [length_of(ranges) for _, ranges in keys[: self._accumulate]]
                    )
                )
                at: int | None = 0
                while at is not None and at < self._accumulate:
                    batch = self._alter(self._fetcher.fetch(keys[at], keys[at + 1 :]))
                    # A small slice is repeated to fill its batches, so its length is the maximum.
                    # The length of an empty slice is 0, so its batches count as no samples.
                    self._loop.hand_out(min(upto[at], total), at, batch)
                    yield batch
                    this.check_alone()
                    this = self._batches.resume_pass(this)
                    at = self._batches.next_batch
                if self._batches.unused:
                    self._loop.steps.pass_round(skipped=True)
                go = self._next_round(self.steps)
            self._loop.end_pass(epoch)
        finally:
            self._fetcher.rest()

    def _is_extra(self, go: StartRoundCommand) -> bool:
        """Record that the script reads the round. Return whether it belongs to a later epoch than
        that of ``peer.epochs``, of which the script has read all rounds."""
        epoch = self._loop.run.epoch
        if epoch != self._read[0]:
            self._read = epoch, set()
        if epoch >= 0:
            self._read[1].add(go.round_id)
        return 0 <= epoch < go.epoch and len(self._read[1]) > self.steps

    def _check_unchanged(self) -> None:
        """Raise ConfigError if the samples are not those that ``peer.shard`` has divided."""
        indices = self._given if self._chosen is None else self._sampler.indices
        now = len(self.dataset if self._chosen is None else indices)
        if now != self.samples_total or indices is not self._given:
            raise ConfigError(
                f"the loader of peer.shard has changed its samples: it has {now}, and had "
                f"{self.samples_total} when they were divided among the peers",
                "do not change the samples of a data set, nor their number: to use only the first "
                "ones for a while, return samples[at % wanted] from __getitem__",
            )

    def _keys(self, go: StartRoundCommand) -> list[Key]:
        """Return the keys of the round's batches, followed by those of the predicted next
        batches."""
        has_samples = any(start < stop for start, stop in go.ranges)
        now = go.ranges if has_samples else self._for_nothing(go)
        # If the script's own batches have one sample, the model can train on one.
        least = min(self._batches.least, self.batch_size)
        return [
            (epoch, piece)
            for epoch, ranges in [(go.epoch, now), *go.coming]
            for piece in pieces_of(ranges, self._accumulate, least)
        ]

    def _for_nothing(self, go: StartRoundCommand) -> Ranges:
        """Return the batch that this peer reads in a round without samples for it: random samples,
        which other peers read, too."""
        size = min(self.batch_size * self._accumulate, self.samples_total)
        first = draw("for nothing", self._seed, self._loop.run.peer, go.round_id)
        start = go.epoch * self.samples_total + first % (self.samples_total - size + 1)
        return ((start, start + size),)

    def _next_round(self, epoch_steps: int = 0) -> StartRoundCommand | None:
        go = self._loop.next_round(epoch_steps)
        if go is not None and go.last:
            self.report = EpochReport(*go.last, given_up_ranges=go.given_up_ranges)
        return go

    @property
    def given_up(self) -> list[int]:
        """Indices of samples that were discarded in the last completed epoch. The gradient of a
        sample was not finite in two rounds, or an extended epoch (``peer.epochs(n,
        remainder="extend")``) could not use it. A long list is cut."""
        ranges = () if self.report is None else self.report.given_up_ranges
        return self._indices((0, ranges)).tolist() if ranges else []

    def reference(self, size: int) -> ReferenceData:
        """Return reference data from the same data set. This peer samples batches from it to judge
        updates."""
        return self._drawn(size, (self._seed, self._loop.run.peer))

    def set_apart(self, samples: int) -> tuple[Any, Callable[[int, int], Any]]:
        """Split the data for trials. Return a held-out batch, and a function ``(order, step)`` that
        returns a batch of the remaining samples. Both are the same on all peers."""
        return self._drawn(self.batch_size, (self._seed, "search")).set_apart(samples)

    def _drawn(self, size: int, words: Sequence[object]) -> ReferenceData:
        dataset = self.dataset
        if self._chosen is not None:
            dataset = Subset(dataset, self._chosen.tolist())
        return ReferenceData(
            dataset, lambda samples: self._alter(self._collate(samples)), size, words
        )

    def close(self) -> None:
        """End the workers, if there are any."""
        self._fetcher.close()

    def _indices(self, key: Key) -> Tensor:
        _, ranges = key
        pieces = []
        for start, stop in ranges:
            while start < stop:
                epoch, at = divmod(start, self.samples_total)
                here = min(self.samples_total - at, stop - start)
                pieces.append(self._order(epoch)[at : at + here])
                start += here
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _order(self, epoch: int) -> Tensor:
        """Return the permutation of an epoch. The last few permutations are cached."""
        order = self._orders.pop(epoch, None)
        if order is None:
            # A separate generator, seeded alike on every peer, leaves the user's generators
            # unchanged.
            generator = torch.Generator().manual_seed(draw("epoch", self._seed, epoch) % 2**63)
            order = torch.randperm(self.samples_total, generator=generator)
            order = order if self._chosen is None else self._chosen[order]
            if self._kind:
                block = self.plan[1] * self._loop.run.planned_peers
                order = order[arrange(self._kind, self._labels[order], block)]
        self._orders[epoch] = order
        while len(self._orders) > ORDERS_KEPT:
            del self._orders[next(iter(self._orders))]
        return order


def loader_of(data: Any, batch_size: int | None, options: dict[str, Any]) -> DataLoader[Any]:
    """Return the loader that was passed to ``shard``, or build a loader for the data set that was
    passed.

    Raises: ConfigError: ``data`` is neither a loader nor a data set, or it is a loader and there
        are options.
    """
    if isinstance(data, DataLoader):
        given = {**({} if batch_size is None else {"batch_size": batch_size}), **options}
        if given:
            raise ConfigError(
                f"shard received a DataLoader and, in addition, {', '.join(given)}",
                "pass these options to the DataLoader",
            )
        return data
    if not isinstance(data, Dataset) and not (
        hasattr(data, "__getitem__") and hasattr(data, "__len__")
    ):
        raise ConfigError(
            f"shard takes a torch DataLoader or a data set, got {type(data).__name__}",
            "write peer.shard(DataLoader(...)), or pass an object with __getitem__ and __len__",
        )
    if batch_size is None:
        raise ConfigError(
            "shard needs to know the batch size of a data set",
            "write peer.shard(dataset, batch_size=32)",
        )
    if not isinstance(data, IterableDataset) and "sampler" not in options:
        options = {"shuffle": True, **options}
    try:
        return DataLoader(data, batch_size=batch_size, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"shard cannot build a DataLoader from that: {error}") from error


def _check(loader: DataLoader[Any]) -> None:
    dataset: Any = loader.dataset
    if not hasattr(dataset, "__len__"):
        raise ConfigError(
            f"a {type(dataset).__name__} has no length, so it cannot be split by index",
            "add a __len__, or make it an IterableDataset: then each peer reads a part of the "
            "stream",
        )
    if loader.batch_size is None or type(loader.batch_sampler).__name__ != "BatchSampler":
        raise ConfigError(
            "a loader with its own batch sampler cannot be split",
            "use a batch_size and no batch_sampler; drop_last is ignored",
        )
    sampler = loader.sampler
    if (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(dataset)
    ):
        return
    if type(sampler) not in (SequentialSampler, SubsetRandomSampler):
        raise ConfigError(
            f"{type(sampler).__name__} is a sampler that cannot be split",
            "leave it out: the swarm draws the order; torch.utils.data.Subset selects a part of a "
            "data set",
        )


def note_ignored(loader: DataLoader[Any]) -> None:
    """Warn about options of a loader that have no effect."""
    ignored = ["drop_last"] if loader.drop_last else []
    if isinstance(loader.sampler, SequentialSampler):
        ignored.append("shuffle=False")
    if ignored:
        consequence = "every sample of an epoch is read, in an order drawn from the run's seed"
        warnings.warn(
            f"gossip ignores {', '.join(ignored)} of the loader: {consequence}", stacklevel=4
        )
