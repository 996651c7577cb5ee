"""Keeps a scheduler where the run is: a peer that was late has several rounds applied in one
``optimizer.step()``, behind which its script steps its scheduler once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau


class SchedulerPace:
    """Steps the schedulers of ``keep`` for the steps that the script did not see.

    Only those that the script steps once a step: ``last_epoch`` is the number of the step, or grew
    by one with the last step. One that is stepped once an epoch is right by itself.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # name -> last_epoch, step
        self._ahead: dict[str, int] = {}  # name -> last_epoch - step, of those stepped once a step

    def follow(self, kept: Mapping[str, Any], step: int) -> None:
        """To be called once the script has done what it does behind a step.

        Args:
            kept: What ``keep`` was given.
            step: Number of the next step.
        """
        for name, thing in kept.items():
            if isinstance(thing, LRScheduler) and not isinstance(thing, ReduceLROnPlateau):
                self._follow(name, thing, step)

    def _follow(self, name: str, scheduler: LRScheduler, step: int) -> None:
        epoch_before, step_before = self._seen.get(name, (0, 0))
        made, moved = step - step_before, scheduler.last_epoch - epoch_before
        if name in self._seen and not made:
            return  # a second look at the same step
        ahead = self._ahead.get(name)
        if ahead is not None and moved > 0:
            for _ in range(step + ahead - scheduler.last_epoch):
                scheduler.step()
        self._seen[name] = scheduler.last_epoch, step
        if made == moved == 1 or scheduler.last_epoch == step:
            self._ahead[name] = scheduler.last_epoch - step
        elif not moved:
            self._ahead.pop(name, None)
