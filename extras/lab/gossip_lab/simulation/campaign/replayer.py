"""Replays a recorded node's life: the same events at the same times, given to the same core, must
lead to the same effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import getfile
from pathlib import Path
from typing import TypeAlias

from gossip import topologies
from gossip.core import Effect, Event, Peer, PeerId, events
from gossip.node import peer_class
from gossip.run import Header, Step, recorder

Listener: TypeAlias = Callable[[float, Event, list[Effect]], None]
"""``(now, event, effects)`` of each step, in order."""


class ReplayDiverged(AssertionError):
    """The core returned other effects than in the recording: its code has changed, or it depends on
    more than its events."""

    def __init__(
        self, path: Path, number: int, step: Step, effects: list[Effect], changed: bool
    ) -> None:
        # args mirror the signature: errors are pickled between processes
        super().__init__(path, number, step, effects, changed)
        self.path, self.number, self.step, self.effects, self.changed = (
            path,
            number,
            step,
            effects,
            changed,
        )

    def __str__(self) -> str:
        assert self.step.effects is not None
        why = (
            "the core's code has changed since it was recorded"
            if self.changed
            else "the code is the very same: this is a bug"
        )
        asked = ", ".join(type(effect).__name__ for effect in self.effects) or "nothing"
        return (
            f"{self.path} diverges at step {self.number} (clock {self.step.now!r}): "
            f"{self.step.event!r} led to {self.step.effects[0]} effects, now to "
            f"{len(self.effects)} ({asked}) that differ; {why}"
        )[:2000]


@dataclass(slots=True)
class ReplayResult:
    """A life that was replayed as recorded."""

    header: Header
    steps: int = 0
    effects: int = 0
    began_s: float = 0.0  # on the recorded node's clock
    ended_s: float = 0.0
    rounds: int = 0  # that ended
    commits: list[events.Committed] = field(default_factory=list)
    halt: events.Halt | None = None
    cut_off: Event | None = None
    """The event in which the recording ends: its node was killed, or its core raised."""
    changed: bool = False
    """Whether the core's code has changed since, without a difference in its effects."""

    @property
    def peer(self) -> PeerId:
        return self.header.peer

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.began_s


def replay(path: Path, listen: Listener | None = None) -> ReplayResult:
    """Replay a recording and compare every effect with those of the recorded core.

    Args:
        listen: Called for every step.

    Raises:
        ReplayDiverged: The core returned other effects in one step.
        ConfigError: The file is no recording, or of another version.
    """
    header, steps = recorder.read(path)
    core = core_of(header)
    seen = ReplayResult(header, changed=header.code != recorder.code_digest(getfile(type(core))))
    for number, step in enumerate(steps):
        if number == 0:
            seen.began_s = step.now
        seen.ended_s = step.now
        if step.effects is None:
            seen.cut_off = step.event  # its replay may end in the same way
            break
        effects = core.handle(step.event, step.now)
        if recorder.digest_of(effects) != step.effects:
            raise ReplayDiverged(path, number, step, effects, seen.changed)
        _count(seen, effects)
        if listen is not None:
            listen(step.now, step.event, effects)
    return seen


def core_of(header: Header) -> Peer:
    """Return a new core with the recorded one's arguments."""
    return peer_class(header.settings)(
        header.peer,
        header.incarnation,
        header.settings,
        topologies.load(header.topology),
        control=header.control,
        bulk=header.bulk,
        seeds={peer: (control, bulk) for peer, control, bulk in header.seeds},
    )


def _count(seen: ReplayResult, effects: list[Effect]) -> None:
    seen.steps += 1
    seen.effects += len(effects)
    for effect in effects:
        if isinstance(effect, events.Committed):
            seen.commits.append(effect)
        elif isinstance(effect, events.Halt):
            seen.halt = effect
        elif isinstance(effect, events.Report) and effect.event == "round":
            seen.rounds += 1
