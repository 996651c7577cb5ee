"""Which batches of a round were handed to the user's loop, and whether a step may follow: one batch
or several, one step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from gossip.core import Ranges
from gossip.errors import ConfigError

from .optimizer import version_of


def check_accumulate(accumulate: object) -> None:
    """Raises ConfigError: It is no number of batches."""
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ConfigError(
            f"accumulate is {accumulate!r}, not a number of batches", "1: a step follows each batch"
        )


def length_of(ranges: Ranges) -> int:
    """Samples in it."""
    return sum([stop - start for start, stop in ranges])


def pieces_of(ranges: Ranges, pieces: int, least: int = 1) -> list[Ranges]:
    """Cuts a round's slice in as many batches, so that a loop which counts them stays in step to
    the end of an epoch.

    They are as equal as can be, because a loop weighs the mean of each alike. When they would have
    fewer than ``least`` samples, each is the whole slice, if need be several times: the mean of
    those means is that over the slice, and each sample counts as once used.
    """
    total = length_of(ranges)
    if total < pieces * least:
        return [ranges * -(-least // total)] * pieces
    if pieces == 1:
        return [ranges]
    found, left = [], list(ranges)
    for at in range(pieces):
        wanted = total // pieces + (at < total % pieces)
        piece = []
        while wanted:
            start, stop = left.pop(0)
            taken = min(wanted, stop - start)
            piece.append((start, start + taken))
            wanted -= taken
            if start + taken < stop:
                left.insert(0, (start + taken, stop))
        found.append(tuple(piece))
    return found


class BatchTracker:
    """What the loop has in hand.

    Attributes:
        expected: Batches that a step follows.
        least: Samples that the model needs in a batch: BatchNorm cannot train on one.
    """

    def __init__(self) -> None:
        self.expected = self.least = 1
        # samples up to each batch of the round, that one included; None: no batch is in hand
        self._upto: list[int] | None = None
        self._accumulating = self._kept = False
        self._witness: Tensor | None = None
        self._before: tuple[int, int] | None = None
        self._warned = False

    def prepare(self, model: torch.nn.Module, witness: Tensor) -> None:
        """``witness``: a parameter by whose gradient one sees that a loss was propagated."""
        self.least = 2 if any(isinstance(module, _BatchNorm) for module in model.modules()) else 1
        self._witness = witness

    def hand_out(self, samples: int, batch: int = 0) -> None:
        """The round's batch number ``batch`` goes to the loop. ``samples``: that a step behind it
        is on, with those of the round's batches before; 0: it counts for nothing."""
        self._upto = [*(self._upto or [])[:batch], samples]
        if batch == 0:
            self._kept, self._before = False, self._gradient()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self._accumulating = self._accumulating, True
        try:
            yield
            self._kept = True
        finally:
            self._accumulating = before

    def check_step(self) -> None:
        if self._accumulating:
            raise ConfigError(
                "optimizer.step() was called inside peer.no_sync()",
                "step outside of it, after the last of the backward passes",
            )

    def take(self) -> int:
        """The round is over: the samples that its steps are on."""
        samples = self._upto[-1] if self._upto else 0
        self.drop()
        return samples

    def skip(self, steps: int) -> None:
        """A step changed nothing: the batches behind the ``steps`` before it are to come again."""
        if self._upto is not None:
            del self._upto[self.expected * steps :]

    def check_taken(self, steps: int) -> None:
        """Step number ``steps`` of a round follows, from 1. Raises ConfigError when it is too
        soon."""
        if self._upto is None:
            raise ConfigError(
                "optimizer.step() was called without a fresh batch of the sharded loader",
                "one batch, one step; with peer.shard(loader, accumulate=k), k batches, one step",
            )
        if len(self._upto) < self.expected * steps:
            raise ConfigError(
                f"optimizer.step() came after {len(self._upto)} of {self.expected * steps} batches "
                "of its round",
                f"peer.shard(loader, accumulate={self.expected}) makes every {self.expected} "
                "batches one step",
            )

    def drop(self) -> None:
        self._upto = None

    @property
    def next_batch(self) -> int | None:
        """Number of the batch that is to be handed out next in the round; None: none of it is in
        hand, as a step has followed."""
        return None if self._upto is None else len(self._upto)

    @property
    def unused(self) -> bool:
        """A batch was handed out, and no step has followed."""
        return self._upto is not None

    def give_back(self) -> None:
        """A round passes without a step. Raises ConfigError when the loop has said that it keeps
        the gradients of what it had."""
        if not self.unused:
            return
        hint = (
            "with peer.shard(loader, accumulate=k), k batches belong to one step and are counted "
            "with it"
        )
        if self._kept and len(self._upto or ()) >= self.expected:
            raise ConfigError(
                f"gradients were accumulated over more than the {self.expected} batch(es) that a "
                "step is on (peer.no_sync() without a step after it)",
                hint,
            )
        now = self._gradient()
        if now is not None and now != self._before and not self._warned:
            self._warned = True
            warnings.warn(
                "no optimizer.step() followed a batch whose loss was propagated: its samples go "
                f"back to the swarm, and are used again if you keep its gradients; {hint}",
                stacklevel=4,
            )
        self.drop()

    def _gradient(self) -> tuple[int, int] | None:
        gradient = self._witness.grad if self._witness is not None else None
        return None if gradient is None else (id(gradient), version_of(gradient))
