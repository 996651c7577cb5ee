"""Adapts schedulers that were created for a single process to a run of several peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import LRScheduler


class ProcessSteps(LRScheduler):
    """Scheduler that advances another scheduler by the number of processes in each ``step``. A
    script creates that scheduler for the batches of a single process, but these batches are divided
    among the processes. This scheduler is stepped once per step of the run, so it can be aligned
    with the run on a late peer.

    Attributes:
        optimizer: Optimizer of the other scheduler.
    """

    # LRScheduler's constructor is not called, because it would change the learning rates.
    def __init__(self, scheduler: LRScheduler, processes: Callable[[], int]) -> None:
        self.optimizer = scheduler.optimizer
        self._scheduler, self._processes = scheduler, processes
        self._step_count = 1  # Accelerate increases this count while gradients accumulate

    @property
    def last_epoch(self) -> int:  # type: ignore[override]
        """Number of steps of this scheduler."""
        return -(-self._scheduler.last_epoch // self._processes())

    def step(self, epoch: int | None = None) -> None:
        """Advance the other scheduler, but not beyond its ``total_steps``, if it has this
        attribute."""
        end = getattr(self._scheduler, "total_steps", None)
        for _ in range(self._processes()):
            if end is None or self._scheduler.last_epoch < end:
                self._scheduler.step()

    def get_last_lr(self) -> list[Any]:
        """Return the learning rates of the last step."""
        return self._scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the other scheduler."""
        return self._scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state into the other scheduler."""
        self._scheduler.load_state_dict(state_dict)
