"""Reads iterable data sets. Each peer reads a part of the stream. The guarantees are weaker than
for data sets with an index.

Every peer iterates over the whole stream, in its workers if there are any, and uses every n-th
element, beginning with element number ``rank``. Here n is the size of the roster, and ``rank`` the
peer's position in the roster, **when the pass begins**. So, in one pass:

* While the roster does not change, and the stream yields the same elements in the same order on
  every peer, exactly one peer reads each element.
* Elements of a lost peer remain unread. After a change of the roster, a peer uses the new n and
``rank`` from its next pass on. Until all peers have begun their next pass, an element may be read
twice or not at all.
* No batch returns to the stream. If a round ended without this peer, the peer's batch is lost. A
batch that is not followed by a step is lost, too.
* A returning peer begins the stream again. Passes of different peers are independent: no peer waits
for the others at the end of a pass.

With ``num_workers`` each worker iterates over the stream, as in torch: a data set that does not
read ``get_worker_info`` yields every element once per worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from gossip.topologies import draw

from .batches import leaves
from .fetching import DatasetProxy, loader_like, start_workers
from .loops import TrainingLoop


class ShardedStream:
    """Iterable over this peer's part of a stream: one batch (or ``accumulate``) per round.

    One iteration reads the stream once.

    Attributes:
        dataset: The iterable data set that was given.
        batch_size: Samples per batch.
        share: ``(rank, n)`` of the latest pass. This peer reads every n-th element, beginning with
            number ``rank``.
        ahead: Always 0: batches of a stream need no prediction.
    """

    ahead = 0  # no prediction is needed, because only one batch can be next

    def __init__(
        self,
        loader: DataLoader[Any],
        loop: TrainingLoop,
        seed: int,
        alter: Callable[[Any], Any] = lambda batch: batch,
        accumulate: int = 1,
    ) -> None:
        self.dataset: Any = loader.dataset
        self.batch_size = loader.batch_size
        self.share: tuple[int, int] | None = None
        self._given, self._accumulate = loader, accumulate
        self._loop, self._batches = loop, loop.rounds.batches
        peer = loop.run.peer
        self._generator = torch.Generator().manual_seed(draw("workers", seed, peer) % 2**63)
        self._alter = alter
        self._own: DataLoader[Any] | None = None

    def __len__(self) -> int:
        """Return the number of batches per pass for the planned number of peers.

        Raises: TypeError: The data set has no length.
        """
        return -(-len(self.dataset) // ((self.batch_size or 1) * self._loop.run.planned_peers))

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of one pass. The pass ends with the stream, or with the run.

        Batches at the end that are too few for a step are dropped.
        """
        this = self._batches.resume_pass(None)
        go = self._loop.next_round()
        if go is None:
            return
        share = (go.rank % go.peers, go.peers)
        if self._own is None or share != self.share or not self._given.persistent_workers:
            self.share, self._own = share, self._make(share)
        read, at, total = False, 0, 0
        try:
            for samples, batch in start_workers(self._own):
                read, total = True, total + samples
                content = self._alter(batch)
                self._loop.hand_out(total, at, content)
                yield content
                this = self._batches.resume_pass(this)
                if (following := self._batches.next_batch) is not None:
                    at = following
                    if at < self._accumulate:
                        continue
                at = total = 0
                if self._batches.unused:
                    self._loop.steps.pass_round(skipped=True)
                if self._loop.next_round() is None:
                    return
            if not read or at:
                # Take part in a round. Otherwise a loop over an empty part would block the other
                # peers.
                self._loop.steps.pass_round()
            self._loop.end_pass()
        finally:
            if not self._given.persistent_workers:
                self._own = None

    def _make(self, share: tuple[int, int]) -> DataLoader[Any]:
        given = self._given
        batches = given.batch_size is not None
        return loader_like(
            given,
            _Every(given.dataset, *share),
            self._generator,
            persists=given.persistent_workers,
            batch_size=given.batch_size,
            drop_last=batches and given.drop_last,
            collate_fn=_Counted(given.collate_fn, batches),
        )

    def close(self) -> None:
        """End the workers, if there are any."""
        self._own = None


class _Every(DatasetProxy, IterableDataset[Any]):
    """Every n-th element of a stream."""

    def __init__(self, dataset: Any, rank: int, n: int) -> None:
        super().__init__(dataset, _rank=rank, _n=n)

    def __iter__(self) -> Iterator[Any]:
        for at, element in enumerate(self._dataset):
            if at % self._n == self._rank:
                yield element


class _Counted:
    """Collate function that also returns the number of samples in the batch."""

    def __init__(self, collate: Callable[[Any], Any], batches: bool) -> None:
        self._collate, self._batches = collate, batches

    def __call__(self, elements: Any) -> tuple[int, Any]:
        batch = self._collate(elements)
        return len(elements) if self._batches else _samples_in(batch), batch


def _samples_in(batch: Any) -> int:
    """Return the number of samples in a batch that the data set itself has built: the first
    dimension of the batch's first tensor."""
    first = next((each for each in leaves(batch) if isinstance(each, Tensor)), None)
    return (len(first) or 1) if first is not None and first.dim() else 1
