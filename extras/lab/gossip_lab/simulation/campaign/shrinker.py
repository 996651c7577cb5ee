"""Shrinks a failing schedule: fewer faults, fewer peers and a shorter run that still violates
the same invariant."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from gossip.faults import Fault
from gossip_lab.simulation.schedules import Schedule, without_peer

from .play import RunFunction, SimulationResult, run

RUNS_MAX = 150
PEERS_MIN = 2
AFTER_S = 0.1  # seconds that a shortened run continues after the violation


@dataclass(slots=True)
class Shrunk:
    """Result of the smallest failing schedule that was found, and the number of runs that the
    search took."""

    outcome: SimulationResult
    runs: int = 0

    @property
    def schedule(self) -> Schedule:
        return self.outcome.schedule


def shrink(failed: SimulationResult, play: RunFunction = run, runs_max: int = RUNS_MAX) -> Shrunk:
    """Search for a smaller failing schedule, until no smaller candidate fails or ``runs_max``
    candidates were played.

    Args:
        failed: Result of a schedule with a violation.
        play: Function that plays a schedule.
        Returns: The smallest schedule found that violates the same invariant, possibly ``failed``
            itself.
    """
    assert failed.violation is not None, "there is nothing to shrink in a run without a violation"
    best = Shrunk(failed)
    steps = (_fewer_faults, _fewer_peers, _shorter, _simpler)
    while sum(_exhaust(best, step, play, runs_max) for step in steps):
        pass  # a smaller schedule may allow a step that failed before
    return best


def _exhaust(best: Shrunk, step: Any, play: RunFunction, runs_max: int) -> bool:
    """Repeat one kind of step until no candidate of it fails. Return whether the schedule became
    smaller."""
    before = best.outcome
    assert before.violation is not None
    invariant = before.violation.invariant
    better = True
    while better:
        better = False
        for candidate in step(best.outcome):
            if best.runs >= runs_max:
                return best.outcome is not before
            best.runs += 1
            outcome = play(candidate)
            if outcome.violation is not None and outcome.violation.invariant == invariant:
                best.outcome, better = outcome, True
                break
    return best.outcome is not before


def _fewer_faults(outcome: SimulationResult) -> Iterator[Schedule]:
    """Yield schedules without half of the faults, without a quarter of them, and so on, down to a
    single fault (delta debugging, Zeller and Hildebrandt)."""
    schedule, faults = outcome.schedule, outcome.schedule.faults
    size = ceil(len(faults) / 2)
    while size >= 1:
        for start in range(0, len(faults), size):
            yield replace(schedule, faults=faults[:start] + faults[start + size :])
        if size == 1:
            return
        size = ceil(size / 2)


def _fewer_peers(outcome: SimulationResult) -> Iterator[Schedule]:
    schedule = outcome.schedule
    for peer in reversed(range(schedule.everybody)):
        if peer >= schedule.peers or schedule.peers > PEERS_MIN:
            yield without_peer(schedule, peer)


def _shorter(outcome: SimulationResult) -> Iterator[Schedule]:
    """Yield a schedule that ends soon after the violation, a schedule with an active phase that
    ends soon after the last fault, and then schedules with one shortened fault."""
    schedule = outcome.schedule
    assert outcome.violation is not None
    seen_s = round(outcome.violation.at_s + AFTER_S, 3)
    if seen_s < schedule.duration_s:
        active_s = min(schedule.active_s, seen_s)
        if max(schedule.joins_s, default=0.0) <= active_s:
            yield replace(schedule, duration_s=seen_s, rounds_min=0, active_s=active_s)
    over_s = round(
        max([*schedule.joins_s, *(_over_s(fault) for fault in schedule.faults)], default=0.0)
        + AFTER_S,
        3,
    )
    if over_s < schedule.active_s:
        yield replace(
            schedule,
            active_s=over_s,
            duration_s=max(over_s, schedule.duration_s - schedule.active_s + over_s),
        )
    for number, fault in enumerate(schedule.faults):
        for key in ("for_s", "after_s"):
            seconds = getattr(fault, key, 0.0)
            if seconds > 0.02:
                yield _with(schedule, number, **{key: round(seconds / 2, 3)})


def _simpler(outcome: SimulationResult) -> Iterator[Schedule]:
    """Yield simpler schedules: one shard, equal weights, no minimum number of peers, times in
    tenths of seconds."""
    schedule = outcome.schedule
    if schedule.server_weights:
        yield replace(schedule, server_weights="")
    if schedule.apart:
        yield replace(schedule, apart=False)
    if schedule.min_peers:
        yield replace(schedule, min_peers=0)
    if len(schedule.shards) > 1:
        yield replace(schedule, shards=(sum(schedule.shards),))
    for number, fault in enumerate(schedule.faults):
        for key, digits in itertools.product(
            ("at_s", "for_s", "after_s", "period_s", "delay_s", "share"), (1, 2)
        ):
            value = getattr(fault, key, None)
            if value is not None and round(value, digits) != value and round(value, digits) > 0:
                yield _with(schedule, number, **{key: round(value, digits)})


def _over_s(fault: Fault) -> float:
    """Return the time at which the fault's effect ends: infinity for a fault at a round, 0 for a
    fault without a time."""
    at_s = getattr(fault, "at_s", None)
    if at_s is None:
        return 0.0 if getattr(fault, "round", None) is None else float("inf")
    return float(at_s) + getattr(fault, "for_s", 0.0) + getattr(fault, "after_s", 0.0)


def _with(schedule: Schedule, number: int, **changes: Any) -> Schedule:
    changed: Any = dataclasses.replace(schedule.faults[number], **changes)
    return replace(
        schedule, faults=(*schedule.faults[:number], changed, *schedule.faults[number + 1 :])
    )
