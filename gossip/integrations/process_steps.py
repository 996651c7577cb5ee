"""Schedulers for the steps of one process, used with several peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import LRScheduler


class ProcessSteps(LRScheduler):
    """Scheduler that advances by the number of processes in each step. A script creates it for the
    batches of one process, which are then divided among the processes. It is stepped once for each
    step of the run, so that a late peer can catch up.

    Attributes:
        optimizer: Value of the scheduler.
    """

    # LRScheduler's own constructor would step the optimizer's rates.
    def __init__(self, scheduler: LRScheduler, processes: Callable[[], int]) -> None:
        self.optimizer = scheduler.optimizer
        self._scheduler, self._processes = scheduler, processes
        self._step_count = 1  # Accelerate increases it while gradients accumulate

    @property
    def last_epoch(self) -> int:  # type: ignore[override]
        """Number of its steps."""
        return -(-self._scheduler.last_epoch // self._processes())

    def step(self, epoch: int | None = None) -> None:
        """Advance the schedule, at most to its ``total_steps`` if it has them."""
        end = getattr(self._scheduler, "total_steps", None)
        for _ in range(self._processes()):
            if end is None or self._scheduler.last_epoch < end:
                self._scheduler.step()

    def get_last_lr(self) -> list[Any]:
        """Return the learning rates of the last step."""
        return self._scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler."""
        return self._scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the scheduler."""
        self._scheduler.load_state_dict(state_dict)
