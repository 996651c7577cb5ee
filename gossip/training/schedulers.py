"""Keeps a scheduler where the run is: a peer that was late has rounds applied that its script did
not see, while it waits or several in one ``optimizer.step()``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

SURE = 2
"""Steps in a row with which a scheduler was stepped once each: it is one of those."""
ENDS = ("total_steps", "total_iters", "T_max")
"""Attributes in which schedulers of torch keep the number of steps until their end."""


@dataclass(slots=True)
class _Seen:
    """Observations of one scheduler.

    Attributes:
        ahead: Its steps less the number of the run's next step. That difference is constant if the
            scheduler is stepped once a step.
        steps: Its number of steps at the last check.
        alike: Steps in a row with which it was stepped once each.
    """

    ahead: int
    steps: int
    alike: int = 0


class SchedulerPace:
    """Steps the schedulers of ``keep`` for the steps that the script did not see.

    Only those that the script steps once a step, or once an epoch. One that another of them steps
    follows that.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._stepped = False
        # the last epoch, the steps before it, and epochs in a row that had one step each
        self._begun: dict[str, tuple[int, int, int]] = {}

    def stepped(self) -> None:
        """The script has made a step of its own. What it does after that is yet to come."""
        self._stepped = True

    def loaded(self, kept: Mapping[str, Any], step: int) -> None:
        """The schedulers were set to a state of others, in which ``step`` was the next step, as
        ``follow`` counts them."""
        self._stepped = False
        self._begun.clear()
        for name, scheduler in _schedulers(kept):
            steps = steps_of(scheduler)
            # A swarm's scheduler that has come as far as its steps is stepped once with each.
            alike = SURE if steps == step and step >= SURE else 0
            self._seen[name] = _Seen(steps - step, steps, alike)

    def undone(self, kept: Mapping[str, Any]) -> None:
        """The schedulers, and the step, were set back to where they were some steps before."""
        self._stepped = False
        for name, scheduler in _schedulers(kept):
            if name in self._seen:
                self._seen[name].steps = steps_of(scheduler)

    def begin_epoch(self, kept: Mapping[str, Any], epoch: int) -> None:
        """Step those that the script has stepped once in each of the last epochs that it saw, once
        for each that it did not see."""
        for name, scheduler in _schedulers(kept):
            last, steps, alike = self._begun.get(name, (epoch, 0, -1))
            alike = alike + 1 if alike < 0 or steps_of(scheduler) == steps + 1 else 0
            every_step = name in self._seen and self._seen[name].alike >= SURE
            if alike >= SURE and not every_step:
                for _ in range(_reach(scheduler, steps + epoch - last) - steps - 1):
                    scheduler.step()
            self._begun[name] = epoch, steps_of(scheduler), alike

    def follow(self, kept: Mapping[str, Any], step: int, *, over: bool = False) -> None:
        """To be called once the script has done what it does after a step. It does nothing where
        the script has not made one: of the rounds that passed while it waited, one may be that of
        the step that it is about to make.

        Args:
            kept: What ``keep`` was given.
            step: Number of the next step, without those that changed nothing: in plain torch a
                batch that is left out steps no scheduler.
            over: No step of the script follows.
        """
        stepped, self._stepped = self._stepped, False
        if not kept:
            return
        for name, scheduler in _schedulers(kept):
            steps = steps_of(scheduler)
            seen = self._seen.setdefault(name, _Seen(steps - step, steps))
            if stepped:
                seen.alike = seen.alike + 1 if steps == seen.steps + 1 else 0
            # A script may step it where its optimizer makes no step, as after an overflow.
            if seen.alike < SURE or steps - step > seen.ahead:
                seen.ahead = steps - step
            elif stepped or over:
                for _ in range(_reach(scheduler, step + seen.ahead) - steps):
                    scheduler.step()
            seen.steps = steps_of(scheduler)


def counts_steps(thing: object) -> TypeGuard[LRScheduler]:
    """Whether it is a scheduler that can be stepped by its count. ``ReduceLROnPlateau`` goes by a
    loss, and one of a user may count in a way of its own."""
    if not isinstance(thing, LRScheduler) or isinstance(thing, ReduceLROnPlateau):
        return False
    return hasattr(thing, "last_epoch") or any(map(counts_steps, _parts(thing)[:1]))


def steps_of(scheduler: LRScheduler) -> int:
    """How often one that ``counts_steps`` was stepped. A ``ChainedScheduler`` does not count that;
    its parts do."""
    while not hasattr(scheduler, "last_epoch"):
        scheduler = _parts(scheduler)[0]
    return scheduler.last_epoch


def _reach(scheduler: LRScheduler, steps: int) -> int:
    """How far it is to be stepped, of ``steps``: no farther than to its next end, where the script
    may leave it. One that the script has stepped beyond that is not left there."""
    return min([steps, *[end for end in _ends(scheduler) if steps_of(scheduler) <= end]])


def _ends(scheduler: LRScheduler) -> list[int]:
    """Its steps after which it, or a part of it, has come to an end. ``OneCycleLR`` cannot be
    stepped beyond that."""
    parts = _parts(scheduler)
    if milestones := getattr(scheduler, "_milestones", ()):  # of a SequentialLR: the last goes on
        return [milestones[-1] + end for end in _ends(parts[-1])]
    own = [end for name in ENDS if isinstance(end := getattr(scheduler, name, None), int)]
    return [*own, *[end for part in parts for end in _ends(part)]]


def _parts(scheduler: LRScheduler) -> list[LRScheduler]:
    """Return the schedulers that a ``SequentialLR`` or ``ChainedScheduler`` steps."""
    return list(getattr(scheduler, "_schedulers", ()))


def _all_parts(scheduler: LRScheduler) -> Iterator[LRScheduler]:
    for part in _parts(scheduler):
        yield part
        yield from _all_parts(part)


def _schedulers(kept: Mapping[str, Any]) -> list[tuple[str, LRScheduler]]:
    found = {name: thing for name, thing in kept.items() if counts_steps(thing)}
    stepped_by_others = {id(part) for each in found.values() for part in _all_parts(each)}
    return [(name, each) for name, each in found.items() if id(each) not in stepped_by_others]
