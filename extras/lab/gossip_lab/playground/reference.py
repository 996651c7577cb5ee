"""Loss on reference samples, for rules that judge updates by a loss."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .learners import Batches, Cohort


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceLoss:
    """Loss of one replica on reference samples.

    Attributes:
        parameters: ``(d,)``: parameters x of the replica that judges.
        batch: Reference samples, as the batch of one learner.
        lr: Learning rate of the step on the aggregate.
    """

    cohort: Cohort
    parameters: Tensor
    batch: Batches
    lr: float

    def inputs(self, needs: Collection[str], *, mix: bool = False) -> dict[str, Any]:
        """Return the arguments of a rule that judges by this loss: ``evaluate``, ``learning_rate``
        and ``gradient``. Only those in ``needs`` are returned.

        Args:
            mix: Whether the rule aggregates differences between parameters and x. A difference d is
                then rated as a step to x + d, as in a run.
        """
        sign = -1.0 if mix else 1.0
        found: dict[str, Any] = {}
        if "learning_rate" in needs:
            found["learning_rate"] = 1.0 if mix else self.lr
        if "evaluate" in needs:
            found["evaluate"] = lambda step: self._loss_at(self.parameters - sign * step)
        if "gradient" in needs:
            found["gradient"] = sign * self.cohort.gradients(self.parameters[None], self.batch)[0]
        return found

    def _loss_at(self, parameters: Tensor) -> float:
        images = self.batch.images[self.batch.chosen[0]]
        with torch.no_grad():
            logits = self.cohort.logits(parameters, images)
            return float(cross_entropy(logits, self.batch.labels[0]))
