"""Tracks which batches of a round the user's loop has received, and whether it may step now.

One step follows one batch, or a fixed number of batches.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from gossip.core import Ranges
from gossip.errors import ConfigError, TrainingWarning
from gossip.ipc import StartRoundCommand

from .optimizer import version_of


def check_accumulate(accumulate: object) -> None:
    """Raise ConfigError if ``accumulate`` is not a number of batches."""
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ConfigError(
            f"accumulate is {accumulate!r}, not a number of batches", "1: a step follows each batch"
        )


def length_of(ranges: Ranges) -> int:
    """Return the number of samples in the ranges."""
    return sum([stop - start for start, stop in ranges])


def pieces_of(ranges: Ranges, pieces: int, least: int = 1) -> list[Ranges]:
    """Cut a round's slice into ``pieces`` batches. The number of batches is the same in every
    round, so a loop may count batches.

    Batch sizes differ by at most one, because a loop gives the mean of each batch the same weight.
    If a batch would have fewer than ``least`` samples, each batch is the whole slice, repeated as
    often as needed. The mean over these batches is the mean over the slice, and each sample counts
    as used once.
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


@dataclass
class LoaderPass:
    """A pass over the loader, up to its end or to a batch of another pass.

    Attributes:
        repeats: Number of batches in succession that were yielded again, in another pass.
    """

    repeats: int = 0

    def check_alone(self) -> None:
        """Raise ConfigError if two passes read the same batches."""
        if self.repeats > 1:
            raise ConfigError(
                "two iterators read the loader of peer.shard at the same time, as in zip(loader, "
                "loader) or next(iter(loader)) inside its loop: both have received the same "
                "batches",
                "let __getitem__ of the data set return a pair of samples, or pair the halves of a "
                "batch of twice the size, or read the other batch from a DataLoader of its own",
            )


class BatchTracker:
    """Batches of the current round that the user's loop has received.

    Attributes:
        expected: Number of batches before each step; 0 if there is no loader.
        least: Minimum number of samples in a batch. BatchNorm cannot train on one sample.
        has_statistics: Whether BatchNorm in training mode has running statistics.
        reading: Round that the current batches were read for. The round may have been predicted.
        is_outdated: Whether the current batches do not belong to the next round.
        is_extra: Whether the current batch is beyond the epoch that ``peer.epochs`` has yielded.
    """

    def __init__(self) -> None:
        self.expected, self.least, self.has_statistics = 0, 1, False
        self.reading: StartRoundCommand | None = None
        self.is_outdated = self.is_extra = False
        # Cumulative number of samples after each received batch of the round; None if there is no
        # current batch.
        self._upto: list[int] | None = None
        self._stepped = 0  # Batches of the round that had a step.
        self._accumulating = self._kept = False
        self._looked_at = False
        self._pass, self._handed_out = LoaderPass(), 0  # Current pass, batches in it.
        self._has_stepped = self._evaluates = False  # In this pass.
        self._steps_training = True  # The model's mode at the last step.
        self._witness: Tensor | None = None
        self._before: tuple[int, int] | None = None
        self._warned = False
        self._order = FetchOrder()

    def prepare(self, model: torch.nn.Module, witness: Tensor) -> None:
        """Attach the model. A change of the gradient of ``witness``, a parameter, shows that there
        was a backward pass."""
        self._order.model = model
        norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        self.least = 2 if norms else 1
        self.has_statistics = any(n.training and n.running_mean is not None for n in norms)
        self._witness = witness

    def hand_out(self, samples: int, batch: int = 0, content: object = None) -> None:
        """Record that the loop receives batch number ``batch`` of the round. ``samples``: number of
        samples of the round's batches up to this one; 0 if they do not count."""
        self._order.hand_out(content)
        self._handed_out += 1
        self._upto = [*(self._upto or [])[:batch], samples]
        self._stepped = min(self._stepped, batch)
        if batch == self._stepped:
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

    def belong_to(self, go: StartRoundCommand) -> bool:
        """Whether the current batches have samples of this round."""
        return self.reading is None or go.samples == self.reading.samples

    def note_collective(
        self, before: StartRoundCommand | None, after: StartRoundCommand | None
    ) -> None:
        """Record that the round ``before`` was used for a collective operation, and that ``after``
        is the next round."""
        if before is not None and after is not None and self.unused:
            self.is_outdated |= before.samples != after.samples

    def end_round(self, steps: int) -> int:
        """End the round and return the number of samples of its ``steps`` steps, or 0 if the
        samples are now assigned to other peers. Without a loader, each step counts as one
        sample."""
        if not self.expected:
            return steps
        samples = self._upto[-1] if self._upto else 0
        self.drop()
        outdated, self.is_outdated = self.is_outdated, False
        return 0 if outdated else samples

    def skip(self, steps: int) -> None:
        """Record that a step changed nothing. Batches after the first ``steps`` steps are then
        yielded again."""
        if self._upto is not None:
            del self._upto[self.expected * steps :]

    def check_batches(self, steps: int) -> None:
        """Raise ConfigError if the loop has received too few batches for the ``steps``-th step of
        the round."""
        if not self.expected:
            return
        self._has_stepped, self._steps_training = True, self._order.is_training
        self._order.check_step()
        if self.is_extra:
            raise ConfigError(
                "a further pass over the loader of peer.shard in one epoch of peer.epochs: its "
                "steps would use up the next epoch",
                "make one pass in each epoch: for two passes peer.epochs(2 * n), with the phase "
                "epoch % 2",
            )
        if not self._upto:
            raise ConfigError(
                "optimizer.step() was called without a fresh batch of the sharded loader",
                "one batch, one step; with peer.shard(loader, accumulate=k), k batches, one step",
            )
        if len(self._upto) < self.expected * steps:
            raise ConfigError(
                f"optimizer.step() was called after {len(self._upto)} of "
                f"{self.expected * steps} batches of its round",
                f"peer.shard(loader, accumulate={self.expected}) makes every {self.expected} "
                "batches one step",
            )
        self._stepped, self._looked_at = self.expected * steps, False
        self._order.note_step(exact=len(self._upto) == self._stepped)

    def drop(self) -> None:
        self._upto, self._looked_at = None, False

    @property
    def next_batch(self) -> int | None:
        """Number of the next batch of the round; None if the round's last step was made."""
        return None if self._upto is None else len(self._upto)

    @property
    def unused(self) -> bool:
        """Whether the loop has received a batch and has not stepped since."""
        return bool(self._upto)

    def resume_pass(self, resumed: LoaderPass | None) -> LoaderPass:
        """Continue the pass ``resumed`` over the loader, or begin one if it is None, and return
        it. If it is not the current pass, end the current pass.

        Raises: ConfigError: The previous pass was an evaluation.
        """
        if resumed is not self._pass:
            before, self._pass = self._pass, resumed or LoaderPass()
            if self._upto and self._handed_out == 1 and len(self._upto) > self._stepped:
                # The pass has read a single batch and has not used it. The loop receives that batch
                # again, but only once.
                if not self._looked_at and self._gradient() == self._before:
                    self._upto = self._upto[: self._stepped] or None
                    self._looked_at = True
                    before.repeats += 1
            elif self.unused and self._handed_out > self.expected:
                self._check_pass()
            self._handed_out, self._has_stepped, self._evaluates = 0, False, False
        else:
            self._pass.repeats = 0
        return self._pass

    def end_pass(self) -> None:
        """End the pass. Raises ConfigError: The pass was an evaluation."""
        if self._handed_out:
            self._check_pass()
        self._handed_out = 0

    def _check_pass(self) -> None:
        if self._has_stepped:
            return
        batches = f"{self._handed_out} batch{'es' if self._handed_out > 1 else ''}"
        what = (
            f"a pass over the loader of peer.shard had {batches}, and no step followed any of "
            "them: each batch of an epoch is handed out once, for a step"
        )
        hint = (
            "to evaluate, or to look at the data, read a loader of its own, such as "
            "torch.utils.data.DataLoader(loader.dataset, batch_size=loader.batch_size)"
        )
        if self._evaluates:
            raise ConfigError(what, hint)
        warnings.warn(f"{what}. {hint}", TrainingWarning, stacklevel=4)

    def drop_unused(self) -> None:
        """Drop the batches of a round in which the loop did not step. Raises ConfigError if the
        loop has accumulated their gradients in ``no_sync``, or if the pass is an evaluation."""
        if not self.unused:
            return
        # A batch without a step need not be an evaluation: a training loop may skip damaged
        # samples.
        trains = torch.is_grad_enabled() and self._order.is_training >= self._steps_training
        self._evaluates |= not trains and self._gradient() == self._before
        if self._evaluates and self._handed_out > self.expected:
            self._check_pass()
        hint = (
            "with peer.shard(loader, accumulate=k), k batches belong to one step and are counted "
            "with it"
        )
        if self._kept and len(self._upto or ()) >= self.expected:
            raise ConfigError(
                f"gradients were accumulated over more than the {self.expected} batch(es) of a "
                "step (peer.no_sync() without a step after it)",
                hint,
            )
        now = self._gradient()
        if now is not None and now != self._before and not self._warned:
            self._warned = True
            warnings.warn(
                "no optimizer.step() followed a batch with a backward pass: its samples count "
                f"as skipped, though they are used if you keep its gradients; {hint}",
                TrainingWarning,
                stacklevel=4,
            )
        self._order.pass_over()
        self.drop()

    def _gradient(self) -> tuple[int, int] | None:
        gradient = self._witness.grad if self._witness is not None else None
        return None if gradient is None else (id(gradient), version_of(gradient))


class FetchOrder:
    """Detector of loops that fetch a batch before the step on the previous one.

    A loop that prefetches requests two batches in a row, like a loop that skips a batch
    (``continue``). In a loop that prefetches, gradients would be attributed to the samples of the
    next batch. So the first step after a skipped batch needs evidence that the model has received
    the current batch, not the skipped one. After one step on exactly the batches that the loop has
    received, the loop is known to fetch in order.
    """

    def __init__(self) -> None:
        self.model: torch.nn.Module | None = None
        self._in_order = False
        self._content: object = None  # current batch, until the order is known
        self._passed_over: object = None
        self._hooks: list[Any] = []  # hooks of the model while evidence is needed

    @property
    def is_training(self) -> bool:
        """Whether the model is in training mode. For a container: all modules that the loop
        calls."""
        return self.model is None or all(each.training for each in _called_modules(self.model))

    def hand_out(self, content: object) -> None:
        """Record ``content`` as the current batch of the loop."""
        self._content = None if self._in_order else content

    def pass_over(self) -> None:
        """Record that the loop requests a batch without a step on the current batch."""
        if self._in_order or self.model is None or self._content is None:
            return  # a damaged batch (None) has no gradient
        self._passed_over = self._content
        if not self._hooks:
            self._hooks = [
                module.register_forward_pre_hook(self._compare, with_kwargs=True)
                for module in _called_modules(self.model)
            ]

    def check_step(self) -> None:
        """Raise ConfigError if the next step may be on the batch that was skipped."""
        if self._hooks:
            self._refuse()

    def note_step(self, exact: bool) -> None:
        """Record a step. ``exact``: whether the step covers exactly the batches that the loop has
        received."""
        if exact:
            self._in_order, self._content = True, None

    def _compare(self, _: torch.nn.Module, args: Any, kwargs: Any) -> None:
        given = list(leaves((args, kwargs)))
        passed_over, in_hand = list(leaves(self._passed_over)), list(leaves(self._content))
        # A tensor in both batches, such as an attention mask, is no evidence.
        found = {(_is_in(each, passed_over), _is_in(each, in_hand)) for each in given}
        if (True, False) in found:
            self._refuse()
        if (False, True) in found:
            self._end()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            "the loop requested a batch from the sharded loader before optimizer.step() of the "
            "previous batch (prefetching): each gradient would count for the samples of the "
            "next batch",
            "fetch the next batch after optimizer.step(); num_workers and prefetch_factor of the "
            "DataLoader load batches ahead. A loop that skips damaged samples with continue must "
            "leave them out in the data set or collate_fn",
        )

    def _end(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._passed_over = [], None


def _called_modules(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the module itself. If it is a container without ``forward``, yield its submodules that
    have one."""
    if type(module).forward is not torch.nn.Module.forward:
        yield module
        return
    for child in module.children():
        yield from _called_modules(child)


def leaves(content: object) -> Iterator[object]:
    """Yield all tensors and other objects in a nested batch."""
    if isinstance(content, Mapping):
        content = list(content.values())
    if isinstance(content, list | tuple):
        for each in content:
            yield from leaves(each)
    elif content is not None and not isinstance(content, str | bytes | int | float):
        yield content


def _is_in(one: object, others: list[object]) -> bool:
    """Whether ``one`` is among ``others``, or is a tensor that has the same values as one of them,
    on any device."""
    return any(one is other or _are_equal(one, other) for other in others)


def _are_equal(one: object, other: object) -> bool:
    return (
        isinstance(one, Tensor)
        and isinstance(other, Tensor)
        and one.shape == other.shape
        and one.dtype == other.dtype
        and torch.equal(one.detach(), other.detach().to(one.device))
    )
