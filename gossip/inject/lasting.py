"""Tracks when lasting faults of the plan begin and end, and records both as events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from gossip.faults import LinkFault, Slow
from gossip.run import Journal

from .claims import ClaimFiles

Lasting: TypeAlias = LinkFault | Slow


class LastingFaults:
    """Faults that begin at a time of the run. One peer records each beginning and end for all
    peers. If the claim files cannot be written, every peer records them.

    Args:
        planned: Pairs (index of the fault in the plan, fault).
    """

    def __init__(
        self, planned: Sequence[tuple[int, Lasting]], claims: ClaimFiles, journal: Journal
    ) -> None:
        self.planned = planned
        self._claims, self._journal = claims, journal
        self._recorded: dict[int, bool] = {}  # index -> whether the end is recorded, too

    def on(self, run_s: float, round_id: int) -> list[tuple[Lasting, float]]:
        """Return the active faults, each with the seconds since it began. Record faults that have
        begun or ended since the last call."""
        on: list[tuple[Lasting, float]] = []
        for index, fault in self.planned:
            assert fault.at_s is not None, "it begins at a time"
            passed_s = run_s - fault.at_s
            if passed_s < 0.0:
                continue
            over = passed_s >= (math.inf if fault.for_s is None else fault.for_s)
            self._record_transition(index, fault, over, round_id)
            if not over:
                on.append((fault, passed_s))
        return on

    def _record_transition(self, index: int, fault: Lasting, over: bool, round_id: int) -> None:
        if self._recorded.get(index) in (over, True):
            return
        self._recorded[index] = over
        name = f"{index}.over" if over else str(index)
        if self._claims.try_claim(name, otherwise=True, fault=str(fault)):
            extra = {} if over or fault.for_s is None else {"seconds": fault.for_s}
            self._journal.event(
                "fault_over" if over else "fault",
                kind=fault.kind,
                round=round_id,
                fault=str(fault),
                **extra,
            )
