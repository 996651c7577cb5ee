"""Outcome of the run of one launcher: all incarnations of its peers, and the exit code
(``docs/exit_codes.md``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gossip.config import RunConfig
from gossip.core import DIVERGED, QUORUM_LOST, STATE_LOST
from gossip.errors import NeverStarted
from gossip.launch.report import RunModel
from gossip.observe import events

from .peer_process import ProcessLife

NOT_SAVED = 8
Stop = Literal["", "interrupt", "terminate", "killed", "never_started", "state_lost"]


@dataclass(slots=True)
class RunOutcome:
    """Outcome of a run."""

    config: RunConfig
    view: RunModel
    lives: list[ProcessLife] = field(default_factory=list)
    stopped: Stop = ""
    # peers that waited for a start that had become impossible
    dismissed: set[int] = field(default_factory=set)
    joins: bool = False  # its peers joined a run of another launcher
    wall_s: float = 0.0
    # files that could not be written -> lines that each lacks
    lacking: dict[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> list[int]:
        """Peers whose last incarnation ended with exit code 0."""
        return sorted(
            life.peer
            for life in self.last_lives.values()
            if life.code == 0 and life.peer not in self.dismissed
        )

    @property
    def last_lives(self) -> dict[int, ProcessLife]:
        return {life.peer: life for life in self.lives}

    @property
    def unplanned(self) -> list[int]:
        """Peers lost by other causes than planned faults."""
        return sorted({blow.peer for blow in self.view.failures.blows if not blow.planned})

    @property
    def exit_code(self) -> int:
        """The launcher's exit code (``docs/exit_codes.md``)."""
        if self.stopped in ("interrupt", "terminate") and self._all_done:
            # The signal only ended the wait for peers that might have been restarted.
            return NOT_SAVED if self.view.lives.not_saved else 0
        match self.stopped:
            case "interrupt" | "killed":
                return 130
            case "terminate":
                return 143
            case "never_started":
                return NeverStarted.exit_code
            case "state_lost":
                return STATE_LOST
            case "":
                pass
        if self.finished:
            return NOT_SAVED if self.view.lives.not_saved else 0
        # The reports of peers contain more than the exit codes of their processes.
        judged = [life for life in self.last_lives.values() if life.peer not in self.dismissed]
        codes = [code_of(life, self.view.lives.halted.get(life.peer)) for life in judged]
        code = telling(codes)
        # A restarted peer that finds no other peer reports that the run never started, even if the
        # run has had rounds.
        began = self.view.progress.round >= 0
        return QUORUM_LOST if code == NeverStarted.exit_code and began else code

    @property
    def _all_done(self) -> bool:
        """Whether the training had ended for every peer of this launcher."""
        ends = [self.view.lives.halted.get(peer) for peer in self.finished]
        done = all(end is not None and end.reason == "finished" for end in ends)
        return bool(ends) and done and len(ends) == len(self.last_lives)


def telling(codes: Sequence[int]) -> int:
    """Return the most informative exit code, if no peer has finished."""
    for code in (6, 2, DIVERGED, STATE_LOST, 4, 1, 5):
        if code in codes:
            return code
    # All peers were killed: no quorum is left.
    return next((code for code in codes if code), 5)


def code_of(life: ProcessLife, halted: events.Halted | None) -> int:
    """Return the exit code of a peer: that of its node if it is more specific than that of its
    process."""
    code = None if halted is None else halted.exit_code
    if code is not None and code > 1 and life.code not in (None, 0):
        return code
    return life.code if life.code is not None else 5
