"""Keeps a scheduler where the run is: a peer that was late has rounds applied that its script did
not see, while it waits or several in one ``optimizer.step()``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

SURE = 2
"""Steps in a row with which a scheduler was stepped once each: it is one of those."""


@dataclass(slots=True)
class _Seen:
    """Of one scheduler.

    Attributes:
        ahead: ``last_epoch`` less the number of the next step, which stays when it is stepped once
            a step.
        epoch: ``last_epoch`` at the last look.
        alike: Steps in a row with which it was stepped once each.
    """

    ahead: int
    epoch: int
    alike: int = 0


class SchedulerPace:
    """Steps the schedulers of ``keep`` for the steps that the script did not see.

    Only those that the script steps once a step. One that is stepped once an epoch is right by
    itself.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._stepped = False

    def stepped(self) -> None:
        """The script has made a step of its own. What it does behind that is yet to come."""
        self._stepped = True

    def loaded(self, kept: Mapping[str, Any], step: int) -> None:
        """The schedulers were set to a state of others, in which ``step`` was the next step."""
        self._stepped = False
        for name, scheduler in _schedulers(kept):
            ahead = scheduler.last_epoch - step
            # A swarm's scheduler that has come as far as its steps is stepped once with each.
            alike = SURE if not ahead and step >= SURE else 0
            self._seen[name] = _Seen(ahead, scheduler.last_epoch, alike)

    def follow(self, kept: Mapping[str, Any], step: int, *, over: bool = False) -> None:
        """To be called once the script has done what it does behind a step. It does nothing where
        the script has not made one: of the rounds that passed while it waited, one may be that of
        the step that it is about to make.

        Args:
            kept: What ``keep`` was given.
            step: Number of the next step.
            over: No step of the script follows.
        """
        stepped, self._stepped = self._stepped, False
        for name, scheduler in _schedulers(kept):
            epoch = scheduler.last_epoch
            seen = self._seen.setdefault(name, _Seen(epoch - step, epoch))
            if stepped:
                seen.alike = seen.alike + 1 if epoch == seen.epoch + 1 else 0
            if seen.alike < SURE:
                seen.ahead = epoch - step
            elif stepped or over:
                for _ in range(step + seen.ahead - epoch):
                    scheduler.step()
            seen.epoch = scheduler.last_epoch


def _schedulers(kept: Mapping[str, Any]) -> list[tuple[str, LRScheduler]]:
    return [
        (name, thing)
        for name, thing in kept.items()
        if isinstance(thing, LRScheduler) and not isinstance(thing, ReduceLROnPlateau)
    ]
