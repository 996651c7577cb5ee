"""Checkers of the invariants in docs/design_notes.md N19 and N20. A checker is an observer that
raises ``Violation`` when its invariant is broken.

    panel = Panel(every_checker(RunConditions.of(attackers=(3,))))
    swarm.hooks.append(panel)
    swarm.run_for(30.0)  # with faults
    swarm.network.heal(); ...
    panel.settle(swarm)  # calm: runs until everything required has happened, or is overdue

Two invariants have no checker here: S16 (the checkpoint on disk is always loadable) needs real
processes, and S18 (the same seed gives the same trace) is tested with ``Swarm.trace_hash``.
"""

from __future__ import annotations

from gossip.core import PeerId

from . import trust
from .base import Checker, Onlookers, RunConditions, TaintedStates, Violation
from .liveness import (
    Converges,
    NobodyIsStuck,
    consensus_distance,
)
from .panel import Panel
from .safety import (
    Bounded,
    ClosedIsSkipped,
    ComputesAlike,
    CountsOnce,
    EndsAlike,
    EverybodyEnds,
    NobodyAsksTheDead,
    NothingRaises,
    StageChecker,
    TimersAndHalt,
    blamed,
    rule_has_enough,
)
from .stages import StagePanel, StagePanels
from .traffic import NewsGrowOld, SpeaksInMeasure
from .transfer import RemindsTheSilent, SaysThatNoRoundComes, StaysForTakers
from .transitions import TableChecker
from .watching import Watching

__all__ = [
    "Checker",
    "EndsAlike",
    "EverybodyEnds",
    "Panel",
    "RemindsTheSilent",
    "RunConditions",
    "SaysThatNoRoundComes",
    "StagePanels",
    "StaysForTakers",
    "TaintedStates",
    "Violation",
    "blamed",
    "consensus_distance",
    "every_checker",
    "of_membership",
    "rule_has_enough",
]


def every_checker(
    circumstances: RunConditions | None = None, onlookers: Onlookers | None = None
) -> list[Watching]:
    """Return the observers and then all checkers, because checkers read the observers. Used by
    tests, and by runs that select some checkers."""
    c, known = circumstances or RunConditions(), onlookers or Onlookers.create(circumstances)
    return [*known, *[kind(c, known) for kind in Checker.kinds]]


OF_MEMBERSHIP = (
    NothingRaises,
    TimersAndHalt,
    Bounded,
    TableChecker,
    NobodyAsksTheDead,
    ClosedIsSkipped,
    NewsGrowOld,
    SpeaksInMeasure,
    Converges,
    NobodyIsStuck,
)
"""Checkers of membership, which is common to all stages of a pipeline, and of blocked rounds."""


def of_membership(
    circumstances: RunConditions | None = None, onlookers: Onlookers | None = None
) -> list[Watching]:
    """Return the observers and the checkers in ``OF_MEMBERSHIP``. A swarm without rounds has only
    these."""
    every = every_checker(circumstances, onlookers)
    return [each for each in every if isinstance(each, OF_MEMBERSHIP) or _is_onlooker(each)]


def _is_onlooker(each: Watching) -> bool:
    return not isinstance(each, Checker)


def stage_panels(
    stages: tuple[tuple[PeerId, ...], ...],
    micro_batches: int,
    circumstances: RunConditions | None = None,
) -> StagePanels:
    """Return all checkers of a pipeline: a panel for each stage, and one panel for membership and
    micro-batches of all stages."""
    onlookers = Onlookers.create(circumstances)

    def of_stage() -> list[Watching]:
        every = every_checker(circumstances, onlookers)
        return [c for c in every if not isinstance(c, OF_MEMBERSHIP) and not _is_onlooker(c)]

    of_all = of_membership(circumstances, onlookers)
    computed = ComputesAlike(stages, circumstances)
    counted = CountsOnce(computed, micro_batches, circumstances)
    others = [
        kind(stages, circumstances)
        for kind in StageChecker.kinds
        if kind not in (ComputesAlike, CountsOnce)
    ]
    of_stages = [StagePanel(members, of_stage()) for members in stages]
    return StagePanels(of_stages, Panel([*of_all, computed, counted, *others], False))
