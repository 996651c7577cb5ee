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
    blamed,
    rule_has_enough,
)
from .stages import StagePanel, StagePanels
from .traffic import AsksInMeasure, FallsSilent, NewsGrowOld, SpeaksInMeasure
from .transfer import RemindsTheSilent, SaysThatNoRoundComes, StaysForTakers
from .transitions import TableChecker
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


def of_membership(
    circumstances: RunConditions | None = None, onlookers: Onlookers | None = None
) -> list[Watching]:
    """Return the observers and the checkers of membership. Swarms without rounds use them alone."""
    every = every_checker(circumstances, onlookers)
    return [each for each in every if isinstance(each, OF_MEMBERSHIP) or _is_onlooker(each)]


def _is_onlooker(each: Watching) -> bool:
    return not isinstance(each, Checker)


def stage_panels(
    stages: tuple[tuple[PeerId, ...], ...],
    micro_batches: int,
    circumstances: RunConditions | None = None,
) -> StagePanels:
    """Return the panels of all checkers of a pipeline: those of a swarm for each stage, those of
    membership for all stages together, and those of micro-batches."""
    onlookers = Onlookers.create(circumstances)
    unfit = (*OF_MEMBERSHIP, *NOT_OF_STAGES)

    def of_stage() -> list[Watching]:
        every = every_checker(circumstances, onlookers)
        return [c for c in every if not isinstance(c, unfit) and not _is_onlooker(c)]

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
