"""Checkers, one per invariant (docs/design_notes.md N19, N20): observers that raise ``Violation``
when it is broken.

    panel = Panel(every_checker(RunConditions.of(attackers=(3,))))
    swarm.hooks.append(panel)
    swarm.run_for(30.0)  # with faults
    swarm.network.heal(); ...
    panel.settle(swarm)  # calm: runs until everything required has happened, or is overdue

S16 (the checkpoint on disk is always loadable) needs real processes; S18 (one seed, one
trace) is ``Swarm.trace_hash``.
"""

from __future__ import annotations

from gossip.core import PeerId

from . import trust
from .base import Checker, Onlookers, RunConditions, TaintedStates, Violation
from .liveness import (
    AT_ONCE_S,
    Converges,
    NobodyIsStuck,
    OverWhenAllIsThere,
    consensus_distance,
)
from .panel import Panel
from .safety import (
    AnAnswerEndsTheSkip,
    Bounded,
    ClosedIsSkipped,
    ComputesAlike,
    CountsOnce,
    EndsAlike,
    EverybodyEnds,
    FormerLivesAreNotAnswered,
    NobodyAsksTheDead,
    NothingRaises,
    StageChecker,
    TheAccusedHear,
    TimersAndHalt,
    rule_has_enough,
)
from .stages import StagePanel, StagePanels
from .traffic import AsksInMeasure, FallsSilent, NewsGrowOld, SpeaksInMeasure
from .transfer import RemindsTheSilent, SaysThatNoRoundComes, StaysForTakers
from .transitions import TableChecker, TableWatch, watch_life
from .watching import Watching

__all__ = [
    "AT_ONCE_S",
    "Checker",
    "EndsAlike",
    "EverybodyEnds",
    "Panel",
    "RemindsTheSilent",
    "RunConditions",
    "SaysThatNoRoundComes",
    "StagePanels",
    "StaysForTakers",
    "TableWatch",
    "TaintedStates",
    "Violation",
    "consensus_distance",
    "every_checker",
    "rule_has_enough",
    "watch_life",
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
    TheAccusedHear,
    FormerLivesAreNotAnswered,
    NobodyAsksTheDead,
    ClosedIsSkipped,
    AnAnswerEndsTheSkip,
    NewsGrowOld,
    AsksInMeasure,
    SpeaksInMeasure,
    FallsSilent,
    Converges,
    NobodyIsStuck,
)
"""Checkers of the membership that all stages of a pipeline share, and of whether its rounds are
blocked."""
NOT_OF_STAGES = (OverWhenAllIsThere,)
"""A stage waits until every micro-batch is in an update, and until the other stages have
committed."""


def stage_panels(
    stages: tuple[tuple[PeerId, ...], ...],
    micro_batches: int,
    circumstances: RunConditions | None = None,
) -> StagePanels:
    """Return the panels of all checkers of a pipeline: those of a swarm for each stage, those of
    membership for all stages together, and those of micro-batches."""
    onlookers = Onlookers.create(circumstances)
    elsewhere = (*OF_MEMBERSHIP, *map(type, onlookers))
    unfit = (*elsewhere, *NOT_OF_STAGES)

    def of_stage() -> list[Watching]:
        each = every_checker(circumstances, onlookers)
        return [checker for checker in each if not isinstance(checker, unfit)]

    of_all = [c for c in every_checker(circumstances, onlookers) if isinstance(c, elsewhere)]
    computed = ComputesAlike(stages, circumstances)
    counted = CountsOnce(computed, micro_batches, circumstances)
    others = [
        kind(stages, circumstances)
        for kind in StageChecker.kinds
        if kind not in (ComputesAlike, CountsOnce)
    ]
    of_stages = [StagePanel(members, of_stage()) for members in stages]
    return StagePanels(of_stages, Panel([*of_all, computed, counted, *others], False))
