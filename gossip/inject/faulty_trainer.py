"""Injects the faults of one trainer, from the plan and drills: slow steps, flipped labels, or false
results of pipeline passes. Only trainers with faults have an injector."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from gossip.aggregators.attacks import DATA_ATTACKS, flip_labels
from gossip.config import RunConfig
from gossip.errors import ConfigError
from gossip.faults import DrillFile, PassResult, corrupt_pass_result, kinds

from .claims import began_in


class FaultyTrainer:
    """Injector of the faults of one trainer. It replaces ``gossip.training.steps.Steps`` in the
    session."""

    def __init__(self, config: RunConfig, peer: int, run_dir: Path | None) -> None:
        self._peer = peer
        self._slow = [
            fault for fault in config.plan.for_peer(peer) if isinstance(fault, kinds.Slow)
        ]
        self._folder = None if run_dir is None else run_dir / "faults"
        self._began: float | None = None  # time when the run began; None until it is recorded
        self._drills = DrillFile(self._folder if config.drills else None)
        lie = config.plan.attackers.get(peer)
        self._flips = lie is not None and lie.attack in DATA_ATTACKS
        self._activation_lies = config.plan.activation_lies(peer)

    def computed(self, since: float) -> None:
        """Delay a finished update if a fault slows the trainer. ``since``: start of the
        computation."""
        now = time.monotonic()
        slowness = self._slowness(now) * self._drills.slowness(self._peer, now)
        if slowness > 1:
            time.sleep((slowness - 1) * (now - since))

    def _slowness(self, now: float) -> float:
        """Return the factor by which the plan lengthens this trainer's steps now."""
        timed = any(fault.at_s is not None for fault in self._slow)
        if timed and self._began is None and self._folder is not None:
            self._began = began_in(self._folder)
        run_s = None if self._began is None else now - self._began
        return math.prod(fault.factor for fault in self._slow if fault.is_on(run_s))

    def alteration(self, dataset: Any, classes: int | None) -> Callable[[Any], Any]:
        """Return the function that alters each batch, or returns it unchanged."""
        return LabelFlip(dataset, classes) if self._flips else lambda batch: batch

    def handed_on(self, about: PassResult, round_id: int, number: int, truth: Tensor) -> Tensor:
        """Return the tensor that this pipeline peer sends as its result for micro-batch
        ``number``."""
        return corrupt_pass_result(
            self._activation_lies, about, (self._peer, round_id, number), truth
        )


class LabelFlip:
    """The fault ``label_flip``: each integer target y becomes classes - 1 - y."""

    def __init__(self, dataset: Any, classes: int | None) -> None:
        """``classes``: number of classes. If it is 0 or None, it is derived from the data set, or
        else from the targets seen so far."""
        self._classes = classes or _count_classes(dataset)
        self._known = self._classes > 0

    def __call__(self, batch: Any) -> Any:
        """Return a copy of the batch (inputs, targets) with flipped targets. The data set does not
        change. Raises: ConfigError: The batch has no integer targets."""
        target = batch[1] if isinstance(batch, list | tuple) and len(batch) >= 2 else None
        if not isinstance(target, Tensor) or target.is_floating_point() or target.is_complex():
            raise ConfigError(
                "label_flip needs batches (inputs, targets) with a tensor of integer targets",
                "choose another fault for this peer",
            )
        if not self._known and target.numel():
            self._classes = max(self._classes, int(target.max()) + 1)
        changed = [*batch]
        changed[1] = flip_labels(target, self._classes)
        return changed if isinstance(batch, list) else tuple(changed)


def _count_classes(dataset: Any) -> int:
    targets: Any = getattr(dataset, "targets", None)
    if targets is None and isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        targets = dataset.tensors[1]
    if isinstance(targets, Sequence):
        targets = torch.as_tensor(targets)
    if isinstance(targets, Tensor) and targets.numel() and not targets.is_floating_point():
        return int(targets.max()) + 1
    return 0
