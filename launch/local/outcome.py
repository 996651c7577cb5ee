"""Outcome of a run for one launcher: all incarnations of its peers, and its exit code
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
    """Outcome of a run for one launcher."""

    config: RunConfig
    view: RunModel
    lives: list[ProcessLife] = field(default_factory=list)
    stopped: Stop = ""
    # Peers that were stopped because the start for which they waited had become impossible.
    dismissed: set[int] = field(default_factory=set)
    joins: bool = False  # whether its peers joined a run of another launcher
    wall_s: float = 0.0
    # Number of missing lines of each file that could not be written completely.
    lacking: dict[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> list[int]:
        """Peers with exit code 0 of their last incarnation."""
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
        """Peers that died without a planned fault."""
        return sorted({blow.peer for blow in self.view.failures.blows if not blow.planned})

    @property
    def exit_code(self) -> int:
        """The launcher's exit code (``docs/exit_codes.md``)."""
        if self.stopped in ("interrupt", "terminate") and self._all_done:
            # The training was complete: the signal only ended the wait for possible restarts.
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
        # Also use the reports of peers, which are more specific than the exit codes of processes.
        judged = [life for life in self.last_lives.values() if life.peer not in self.dismissed]
        codes = [code_of(life, self.view.lives.halted.get(life.peer)) for life in judged]
        code = telling(codes)
        # A restarted peer that finds no other peer reports that the run never started, although the
        # run has had rounds.
        began = self.view.progress.round >= 0
        return QUORUM_LOST if code == NeverStarted.exit_code and began else code

    @property
    def _all_done(self) -> bool:
        """Whether every peer of this launcher has completed the training."""
        ends = [self.view.lives.halted.get(peer) for peer in self.finished]
        done = all(end is not None and end.reason == "finished" for end in ends)
        return bool(ends) and done and len(ends) == len(self.last_lives)


def telling(codes: Sequence[int]) -> int:
    """Return the most informative of the exit codes of peers, none of which has finished."""
    for code in (6, 2, DIVERGED, STATE_LOST, 4, 1, 5):
        if code in codes:
            return code
    # All peers were killed: no quorum is left.
    return next((code for code in codes if code), 5)


def code_of(life: ProcessLife, halted: events.Halted | None) -> int:
    """Return the exit code of a peer. If its node has reported a more specific code than that of
    its process, return the code of the node."""
    code = None if halted is None else halted.exit_code
    if code is not None and code > 1 and life.code not in (None, 0):
        return code
    return life.code if life.code is not None else 5
