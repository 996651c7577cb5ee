"""Learning task of a world: data, batches and updates of its learners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.aggregators import attacks, outer as outer_steps
from gossip.config import REFERENCE_SAMPLES
from gossip_lab import data_sets

from .adamw import Optimizer
from .counters import draw_below
from .graphs import count_labels
from .learners import Batches, Cohort, Evaluation
from .policies import MovePolicy, SharedOrder, carry_out, count_bytes, plan_moves
from .reference import ReferenceLoss


@dataclass(frozen=True, eq=False)
class Task:
    """Learning task of a world.

    Attributes:
        cohort: The learners' model.
        data: Training and test data.
        shares: For each peer, the indices of the training samples that it draws from.
        batch: Number of samples per local step.
        local_steps: Number of local steps per round.
        lr: Learning rate of the local steps, or of the step on the aggregate.
        outer: Step on the aggregate if updates are model differences; None if updates are
            gradients.
        seed: Seed of the batches.
        order: Order in which all peers read one shared data set; None if each peer draws from its
            own share.
        weight_decay: Coefficient of weight decay in local steps.
        optimizer: Optimizer that steps with the aggregate if updates are gradients.
        reference_samples: Number of samples by which a rule with a judge rates updates.
    """

    cohort: Cohort
    data: data_sets.TrainingData
    shares: Sequence[NDArray[np.int64]]
    batch: int
    local_steps: int
    lr: float
    outer: outer_steps.OuterStep | None
    seed: int
    order: SharedOrder | None = None
    weight_decay: float = 0.0
    optimizer: Optimizer = "sgd"
    reference_samples: int = REFERENCE_SAMPLES

    @cached_property
    def _flat(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return all shares concatenated, with the start and the length of each."""
        lengths = np.array([len(share) for share in self.shares], np.int64)
        return np.concatenate(self.shares), lengths.cumsum() - lengths, lengths

    @property
    def samples(self) -> int:
        """Number of samples in an update."""
        return self.batch * self.local_steps

    @property
    def vectors_mixed(self) -> int:
        """Number of vectors that a peer pushes in an exchange of parameters."""
        return 3 if self.optimizer == "adamw-mixed" else 1

    def draw_batches(self, peers: NDArray[np.int64], round_ids: NDArray[np.int64] | int) -> Tensor:
        """Return the indices of the samples that these peers use in a round, ``(n, local_steps *
        batch)``. The samples depend only on seed, peer and round."""
        if self.order is not None:
            return torch.from_numpy(self.order.draw_batches(peers, round_ids))
        flat, begins, lengths = self._flat
        at = np.arange(self.samples)[None, :]
        rounds = np.broadcast_to(np.asarray(round_ids, np.int64), peers.shape)
        limits = lengths[peers][:, None]
        drawn = draw_below(limits, "batch", self.seed, peers[:, None], rounds[:, None], at)
        return torch.from_numpy(flat[begins[peers][:, None] + drawn])

    def compute_updates(
        self,
        parameters: Tensor,
        peers: NDArray[np.int64],
        round_ids: NDArray[np.int64] | int,
        flipped: NDArray[np.bool_] | None = None,
    ) -> Tensor:
        """Return the true updates of these peers, ``(n, d)``: gradients, or model differences after
        local steps of plain SGD.

        Args:
            parameters: ``(n, d)``, one row per peer of ``peers``; may be one expanded row.
            flipped: ``(n,)`` bool: whether each peer trains on wrong labels (``label_flip``).
        """
        chosen = self.draw_batches(peers, round_ids)
        labels = self.data.labels[chosen]
        if flipped is not None and flipped.any():
            rows = torch.from_numpy(flipped)
            labels[rows] = attacks.flip_labels(labels[rows], self.data.classes)
        batches = Batches(self.data.images, chosen, labels)
        if self.outer is None:
            return self.cohort.gradients(parameters, batches)
        here = parameters.clone(memory_format=torch.contiguous_format)
        self.cohort.descend(here, batches, self.lr, self.local_steps, self.weight_decay)
        return torch.sub(parameters, here, out=here)

    def swap_samples(
        self, policy: MovePolicy, peers: NDArray[np.int64], updates: Tensor, round_id: int
    ) -> tuple[Task, int]:
        """Return the task after the swaps of a round, and the total bytes of the swapped samples.
        Sending histograms and computing cosines is assumed to cost no bytes.

        Args:
            updates: ``(n, d)``: updates, one row per peer of ``peers``.
        """
        data, shares = self.data, list(self.shares)
        held = [shares[peer] for peer in peers.tolist()]
        histograms = np.array(count_labels(data.labels, held, data.classes), float)
        moves = plan_moves(histograms, (updates @ updates.T).double().numpy(), policy.samples)
        swapped = carry_out(moves, held, data.labels.numpy(), self.seed, round_id)
        for peer, share in zip(peers.tolist(), swapped, strict=True):
            shares[peer] = share
        return replace(self, shares=shares), count_bytes(moves, data.images[0].nbytes)

    def reference_loss(
        self, parameters: Tensor, round_id: int, peer: int | None = None, reader: str = "judge"
    ) -> ReferenceLoss:
        """Return the loss by which the rule judges the updates of a round. The reference samples
        are drawn from all training samples.

        Args:
            parameters: ``(d,)``: parameters of the replica that judges.
            peer: In gossip rounds, the peer that judges. None in rolling rounds, in which only the
                server judges.
            reader: Who uses the loss. Each reader draws its own samples.
        """
        counters = (round_id,) if peer is None else (peer, round_id)
        at, limit = np.arange(self.reference_samples), len(self.data.labels)
        chosen = torch.from_numpy(draw_below(limit, reader, self.seed, *counters, at))[None]
        batch = Batches(self.data.images, chosen, self.data.labels[chosen])
        lr = self.lr if self.outer is None else self.outer.lr
        return ReferenceLoss(self.cohort, parameters, batch, lr)

    def evaluate(self, parameters: Tensor) -> Evaluation:
        """Return accuracy and loss of each learner on the test samples. ``parameters``: ``(m,
        d)``."""
        return self.cohort.evaluate(parameters, self.data.test_images, self.data.test_labels)
