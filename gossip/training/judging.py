"""Runs rules that need a loss. They run in the trainer, and leave the model unchanged."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gossip.aggregators import BoundRule, Verdict
from gossip.errors import ConfigError
from gossip.ipc import JudgeCommand, JudgeReply, Vector, clip, map_rows
from gossip.topologies import draw

from .layout import Layout
from .seeding import seed_generators, seeded_generators

Loss = Callable[..., Tensor]


class LossJudge:
    """Evaluator of updates by the loss of the user's ``judge``.

    A question of the node (``JudgeCommand``) is about all updates of a round. All evaluations for
    the same question start from the same random state. So a ``judge`` that samples its mini-batch
    with a generator of torch, numpy or Python rates all updates on the same mini-batch. The next
    question gets another mini-batch. A ``judge`` with an argument gets a batch of the reference
    samples, chosen for the round. Parameters, buffers, gradients, training mode and all three
    generators are restored bit for bit.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        layout: Layout,
        judge: Loss,
        seed: bytes,
        reference: Callable[[int], Any] | None = None,
    ) -> None:
        """
        Args:
            seed: Seed of the random state. It differs between peers, so that no two peers judge on
                the same data.
            reference: Function that returns the batch for a round. None if ``judge`` has no
                argument.
        """
        self._model, self._layout, self._judge, self._seed = model, layout, judge, seed
        self._reference = reference
        self._batch: tuple[Any, ...] = ()  # arguments of ``judge``
        self._asked = 0

    def explain(
        self, rule: BoundRule, question: JudgeCommand, rows: Vector, learning_rate: float
    ) -> Verdict:
        """Run ``rule`` on the first ``question.rows`` of ``rows``. The last ``question.outside`` of
        them are not aggregated, but the verdict has their outlyingness, too.

        If ``question.mix`` is set, the rows are parameters of peers. The difference d of a row from
        the local parameters x is then rated as a step to x + d.

        Raises: ConfigError: The rule cannot aggregate these rows, or the user's ``judge`` returned
            no loss.
        """
        self._asked += 1
        updates = torch.from_numpy(rows[: question.rows])
        own = updates[question.own] if question.own >= 0 else None
        sign = 1.0
        options: dict[str, Any] = {"round_id": question.round_id}
        if question.mix:
            if own is None:
                raise ConfigError(
                    f"{rule.name} can mix parameters only if those of this peer are among them"
                )
            updates, sign, learning_rate = updates - own, -1.0, 1.0
            own = torch.zeros_like(own)
        if "f" in rule.needs:
            options["f"] = question.f
        if "center" in rule.needs and own is not None:
            options["center"] = own.clone()
        if "learning_rate" in rule.needs:
            options["learning_rate"] = learning_rate
        with self._no_trace() as parameters:
            self._open(question.round_id)
            if "evaluate" in rule.needs:
                options["evaluate"] = lambda step: self._loss_at(parameters, step, sign)
            if "gradient" in rule.needs:
                options["gradient"] = self._gradient() * sign
            with torch.no_grad():
                return _explain(rule, updates, len(updates) - question.outside, options)

    def gradient(self, round_id: int) -> Tensor:
        """Return the gradient ``(d,)`` of the judge's loss. A server compares updates with this
        gradient.

        Raises: ConfigError: The user's ``judge`` returned no loss.
        """
        self._asked += 1
        with self._no_trace():
            self._open(round_id)
            return self._gradient()

    def _loss_at(self, parameters: list[Tensor], step: Tensor, sign: float) -> float:
        """Return the loss at x - sign * step. ``step``: ``(d,)``."""
        try:
            self._layout.add_to_parameters(step.to(torch.float32), -sign)
            self._same_draw()
            with torch.no_grad():
                return float(self._checked(self._judge(*self._batch)))
        finally:
            # Copy, because a subtraction would not restore the same bits.
            self._layout.set_parameters(parameters)

    def _gradient(self) -> Tensor:
        """Return the gradient ``(d,)`` of the loss at x, without changing any ``.grad``."""
        self._same_draw()
        with torch.enable_grad():
            loss = self._checked(self._judge(*self._batch))
            if not loss.requires_grad:
                raise ConfigError(
                    "judge() returned a loss without a graph",
                    "judge() must neither use no_grad nor detach the loss",
                )
            return self._layout.flatten(
                torch.autograd.grad(loss, self._layout.parameters, allow_unused=True)
            )

    def _open(self, round_id: int) -> None:
        """Read the batch of the round once for all evaluations of a question."""
        if self._reference is not None:
            self._same_draw()
            self._batch = (self._reference(round_id),)

    def _checked(self, loss: object) -> Tensor:
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            what = (
                f"{tuple(loss.shape)} {loss.dtype}"
                if isinstance(loss, Tensor)
                else type(loss).__name__
            )
            raise ConfigError(
                f"judge() returned {what}, not a loss: a floating point tensor with one element"
            )
        return loss.reshape(())

    def _same_draw(self) -> None:
        seed_generators(draw("judge", self._seed, self._asked))

    @contextmanager
    def _no_trace(self) -> Iterator[list[Tensor]]:
        """Restore the model's buffers and modes, and all generators, after the ``with`` block.
        Yield copies of the parameters."""
        parameters = self._layout.copy_parameters()
        buffers = [(buffer, buffer.detach().clone()) for buffer in self._model.buffers()]
        modes = [(module, module.training) for module in self._model.modules()]
        devices = [self._layout.device.index or 0] if self._layout.device.type == "cuda" else []
        with seeded_generators(draw("judge", self._seed, self._asked), devices):
            try:
                yield parameters
            finally:
                with torch.no_grad():
                    for buffer, before in buffers:
                        buffer.copy_(before)
                for module, training in modes:
                    module.training = training


class JudgeService:
    """Service that answers questions of the node. Updates and aggregate are in shared memory. The
    service has a ``LossJudge`` and the run's rule if the rule needs a loss."""

    def __init__(
        self, bench: LossJudge | None = None, rule: BoundRule | None = None, elements: int = 0
    ) -> None:
        self._bench, self._rule, self._elements = bench, rule, elements
        self._rows: Vector | None = None

    def answer(self, question: JudgeCommand, fds: deque[int], learning_rate: float) -> JudgeReply:
        """Return the weights and outlyingness of the rows, or the reason why there are none. Write
        the aggregate into row ``question.rows``. If the question has no rows, write only the
        gradient of the loss. ``fds``: file descriptors that arrived with the question and with
        later messages."""
        if question.capacity:
            fd = fds.popleft()
            try:
                self._rows = map_rows(fd, question.capacity, self._elements)
            finally:
                os.close(fd)
        if self._bench is None or self._rule is None or self._rows is None:
            return JudgeReply(question.ticket, (), (), "this peer has no loss to judge by")
        try:
            if not question.rows:
                gradient = self._bench.gradient(question.round_id)
                torch.from_numpy(self._rows[0]).copy_(gradient)
                return JudgeReply(question.ticket, (), (), "")
            verdict = self._bench.explain(self._rule, question, self._rows, learning_rate)
        except ConfigError as error:
            return JudgeReply(question.ticket, (), (), clip(str(error)))
        torch.from_numpy(self._rows[question.rows]).copy_(verdict.aggregate)
        return JudgeReply(
            question.ticket, _numbers(verdict.weights), _numbers(verdict.outlyingness), ""
        )

    def forget(self) -> None:
        """Drop the shared memory, because a restarted node sends new memory."""
        self._rows = None


def _explain(rule: BoundRule, updates: Tensor, inside: int, options: dict[str, Any]) -> Verdict:
    """Return the verdict on the first ``inside`` updates. Append the outlyingness of the other
    updates."""
    verdict = rule.explain(updates[:inside], **options)
    if inside == len(updates):
        return verdict
    measured = torch.tensor(rule.measure(updates, inside, **options), dtype=torch.float64)
    return replace(verdict, outlyingness=torch.cat([verdict.outlyingness, measured]))


def _numbers(tensor: Tensor) -> tuple[float, ...]:
    """Return the elements as floats. Non-finite values become finite, because messages allow no
    others."""
    most = torch.finfo(torch.float32).max
    return tuple(torch.nan_to_num(tensor.double(), nan=most, posinf=most, neginf=0.0).tolist())
