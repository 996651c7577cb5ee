"""Keeps learning-rate schedulers at the step of the run. A late peer applies rounds for which its
script made no step: rounds during a wait, or several rounds in one ``optimizer.step()``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

SURE = 2
"""If a scheduler was stepped exactly once in this number of consecutive steps of the run, it counts
as stepped once per step."""
ENDS = ("total_steps", "total_iters", "T_max")
"""Names of the attributes in which torch's schedulers store their total number of steps."""


@dataclass(slots=True)
class _Seen:
    """Observations of one scheduler.

    Attributes:
        ahead: Number of the scheduler's steps minus the number of the run's next step. The
            difference is constant if the scheduler is stepped once per step of the run.
        steps: Number of the scheduler's steps at the last check.
        alike: Number of consecutive steps of the run in which the scheduler was stepped once.
    """

    ahead: int
    steps: int
    alike: int = 0


class SchedulerPace:
    """Steps the schedulers that were passed to ``keep``, for steps of the run that the script did
    not make.

    Only schedulers that the script steps once per step or once per epoch are stepped. A scheduler
    inside another scheduler is not stepped here.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._stepped = False
        # For each scheduler: last epoch that began, number of the scheduler's steps at that time,
        # and number of consecutive epochs with exactly one step. The key is the name in ``keep``.
        self._begun: dict[str, tuple[int, int, int]] = {}

    def stepped(self) -> None:
        """Record a step of the script, before the work that follows it."""
        self._stepped = True

    def loaded(self, kept: Mapping[str, Any], step: int) -> None:
        """Record that the schedulers have loaded a state from other peers. ``step`` is the number
        of the next step, as in ``follow``."""
        self._stepped = False
        self._begun.clear()
        for name, scheduler in _schedulers(kept):
            steps = steps_of(scheduler)
            # If a scheduler has made as many steps as the run, it counts as stepped once per step.
            alike = SURE if steps == step and step >= SURE else 0
            self._seen[name] = _Seen(steps - step, steps, alike)

    def undone(self, kept: Mapping[str, Any]) -> None:
        """Record that the schedulers and the run were reset to an earlier step."""
        self._stepped = False
        for name, scheduler in _schedulers(kept):
            if name in self._seen:
                self._seen[name].steps = steps_of(scheduler)

    def begin_epoch(self, kept: Mapping[str, Any], epoch: int) -> None:
        """Step the schedulers that the script steps once per epoch, for epochs that the script did
        not run."""
        for name, scheduler in _schedulers(kept):
            last, steps, alike = self._begun.get(name, (epoch, 0, -1))
            alike = alike + 1 if alike < 0 or steps_of(scheduler) == steps + 1 else 0
            every_step = name in self._seen and self._seen[name].alike >= SURE
            if alike >= SURE and not every_step:
                for _ in range(_reach(scheduler, steps + epoch - last) - steps - 1):
                    scheduler.step()
            self._begun[name] = epoch, steps_of(scheduler), alike

    def follow(self, kept: Mapping[str, Any], step: int, *, over: bool = False) -> None:
        """Advance the schedulers by the steps that the run has taken without this script. Call this
        method after the work of the script that follows a step, such as its scheduler steps.

        If the script has not stepped, no scheduler is stepped: a round that was applied during a
        wait may belong to the step that the script is about to make.

        Args:
            kept: Objects of ``keep``.
            step: Number of the next step. Steps that changed nothing are not counted, because in
                plain torch a skipped batch steps no scheduler.
            over: Whether the script makes no further step.
        """
        stepped, self._stepped = self._stepped, False
        if not kept:
            return
        for name, scheduler in _schedulers(kept):
            steps = steps_of(scheduler)
            seen = self._seen.setdefault(name, _Seen(steps - step, steps))
            if stepped:
                seen.alike = seen.alike + 1 if steps == seen.steps + 1 else 0
            # A scheduler may be ahead: a script may step it without an optimizer step, as after an
            # overflow.
            if seen.alike < SURE or steps - step > seen.ahead:
                seen.ahead = steps - step
            elif stepped or over:
                for _ in range(_reach(scheduler, step + seen.ahead) - steps):
                    scheduler.step()
            seen.steps = steps_of(scheduler)


def counts_steps(thing: object) -> TypeGuard[LRScheduler]:
    """Whether ``thing`` is a scheduler that counts its steps in ``last_epoch``.
    ``ReduceLROnPlateau`` follows a metric, not steps, and a user's scheduler may count
    differently."""
    if not isinstance(thing, LRScheduler) or isinstance(thing, ReduceLROnPlateau):
        return False
    return hasattr(thing, "last_epoch") or any(map(counts_steps, _parts(thing)[:1]))


def steps_of(scheduler: LRScheduler) -> int:
    """Return the number of steps of a scheduler for which ``counts_steps`` is True. For a
    ``ChainedScheduler`` this is the number of its first part."""
    while not hasattr(scheduler, "last_epoch"):
        scheduler = _parts(scheduler)[0]
    return scheduler.last_epoch


def _reach(scheduler: LRScheduler, steps: int) -> int:
    """Return the step to which a scheduler is advanced: ``steps``, but at most the next end of its
    schedule, because the script may stop stepping it there. Ends that the script has passed do not
    matter."""
    return min([steps, *[end for end in _ends(scheduler) if steps_of(scheduler) <= end]])


def _ends(scheduler: LRScheduler) -> list[int]:
    """Return the steps at which the schedule of the scheduler, or of a part of it, ends.
    ``OneCycleLR`` raises an error beyond its end."""
    parts = _parts(scheduler)
    if milestones := getattr(scheduler, "_milestones", ()):  # SequentialLR
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
