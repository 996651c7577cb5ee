"""Checkers, one an invariant (docs/design_notes.md N19, N20): observers that raise ``Violation``
when it is broken.

    [panel] = checkers = all_checkers(RunConditions.of(liars=(3,)))
    swarm.hooks.extend(checkers)
    swarm.run_for(30.0)  # with faults
    swarm.network.heal(); ...
    panel.settle(swarm)  # calm: runs on until all that must come about has, or is overdue

S16 (the checkpoint on disk is always loadable) is a matter of real processes; S18 (one seed, one
trace) is ``Swarm.trace_hash``.
"""

from __future__ import annotations

from gossip.core import PeerId
from gossip_lab.simulation.world import Observer

from . import liveness, safety, traffic, transfer, trust
from .base import Checker, PassiveObserver, RunConditions, Violation
from .disturbances import Disturbances
from .hearing import Hearing
from .liveness import (
    AT_ONCE_S,
    Converges,
    CrashCostsLittle,
    EverybodyEnds,
    NobodyIsStuck,
    NobodyStarves,
    NoRoundStands,
    OverWhenAllIsThere,
    StopEnds,
    consensus_distance,
)
from .panel import Panel
from .reach import Reach
from .safety import (
    AnAnswerEndsTheSkip,
    Bounded,
    ClosedIsSkipped,
    ComputesAlike,
    CountsOnce,
    EndsAlike,
    FindsLiarsAlone,
    FormerLivesAreNotAnswered,
    GoesOnTogether,
    LeavesWhatIsCounted,
    NobodyAsksTheDead,
    NoDeathByAStalledPeer,
    NoFalseDeath,
    NothingRaises,
    NoUnfoundedAccusation,
    NoUnfoundedDeath,
    OneHistory,
    SendsToWhoHasBegun,
    SharesAlike,
    StageGoesOn,
    TheAccusedHear,
    TimersAndHalt,
    UsesNothingOld,
    rule_has_enough,
)
from .stages import StagePanel, StagePanels
from .traffic import AsksInMeasure, FallsSilent, NewsGrowOld, SpeaksInMeasure
from .transfer import RemindsTheSilent, SaysThatNoRoundComes, StaysForTakers
from .transitions import TableChecker, TableWatch, watch_life

__all__ = [
    "AT_ONCE_S",
    "Checker",
    "EndsAlike",
    "EverybodyEnds",
    "Observer",
    "Panel",
    "PassiveObserver",
    "RemindsTheSilent",
    "RunConditions",
    "SaysThatNoRoundComes",
    "StagePanels",
    "StaysForTakers",
    "TableWatch",
    "Violation",
    "all_checkers",
    "consensus_distance",
    "every_checker",
    "rule_has_enough",
    "watch_life",
]


Onlookers = tuple[Disturbances, Hearing, Reach]
"""They judge nothing themselves: checkers ask them."""


def every_checker(
    circumstances: RunConditions | None = None, onlookers: Onlookers | None = None
) -> list[PassiveObserver]:
    """Each checker by itself, after what they ask: for tests,
    and for a run that wants some of them."""
    c = circumstances or RunConditions()
    disturbances, hearing, reach = onlookers or (Disturbances(), Hearing(), Reach())
    return [
        disturbances,
        hearing,
        reach,
        NoFalseDeath(disturbances, c),
        NoDeathByAStalledPeer(disturbances, c),
        NoUnfoundedDeath(hearing, c),
        NoUnfoundedAccusation(hearing, reach, c),
        AnAnswerEndsTheSkip(hearing, c),
        OneHistory(disturbances, c),
        NobodyIsStuck(disturbances, c),
        OverWhenAllIsThere(disturbances, c),
        CrashCostsLittle(disturbances, c),
        NoRoundStands(disturbances, c),
        NobodyStarves(disturbances, c),
        StopEnds(disturbances, c),
        *[
            kind(c)
            for family in (safety, trust, transfer, traffic, liveness)
            for kind in family.CHECKERS
        ],
    ]


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
"""Checkers of the one membership that all stages of a pipeline have, and of whether anything is in
the way of its rounds."""
NOT_OF_STAGES = (OverWhenAllIsThere,)
"""A stage waits until every micro-batch is in an update, and until the others have committed."""


def stage_panels(
    stages: tuple[tuple[PeerId, ...], ...],
    micro_batches: int,
    circumstances: RunConditions | None = None,
) -> StagePanels:
    """Every checker of a pipeline: those of a swarm for each stage, those of membership for all of
    them, and those of micro-batches."""
    onlookers = Disturbances(), Hearing(), Reach()
    elsewhere = (*OF_MEMBERSHIP, Disturbances, Hearing, Reach)
    unfit = (*elsewhere, *NOT_OF_STAGES)

    def of_stage() -> Panel:
        each = every_checker(circumstances, onlookers)
        return Panel([checker for checker in each if not isinstance(checker, unfit)])

    of_all = [c for c in every_checker(circumstances, onlookers) if isinstance(c, elsewhere)]
    computed = ComputesAlike(stages, circumstances)
    of_pipelines = [
        computed,
        CountsOnce(computed, micro_batches, circumstances),
        UsesNothingOld(stages, circumstances),
        GoesOnTogether(stages, circumstances),
        FindsLiarsAlone(stages, circumstances),
        StageGoesOn(stages, circumstances),
        SharesAlike(stages, circumstances),
        LeavesWhatIsCounted(stages, circumstances),
        SendsToWhoHasBegun(stages, circumstances),
    ]
    of_stages = [StagePanel(members, of_stage()) for members in stages]
    return StagePanels(of_stages, Panel([*of_all, *of_pipelines]))


def all_checkers(circumstances: RunConditions | None = None) -> list[Observer]:
    """Every checker behind one observer, a ``Panel``,
    which is several times faster than each by itself."""
    return [Panel(every_checker(circumstances))]
