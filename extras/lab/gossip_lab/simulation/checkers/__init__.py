"""Checkers of the invariants in docs/design_notes.md N19 and N20. A checker is an observer that
raises ``Violation`` when its invariant is broken.

    suite = CheckerSuite(every_checker(RunConditions.of(attackers=(3,))))
    swarm.hooks.append(suite)
    swarm.run_for(30.0)  # with faults
    swarm.network.heal(); ...
    suite.settle(swarm)  # calm: runs until everything required has happened, or is overdue

Two invariants have no checker here: S16 (the checkpoint on disk is always loadable) needs real
processes, and S18 (the same seed gives the same trace) is tested with ``Swarm.trace_hash``.
"""

from __future__ import annotations

from gossip.core import PeerId

from . import trust
from .base import Checker, Recorders, RunConditions, TaintedStates, Violation
from .liveness import (
    AT_ONCE_S,
    BoundedRoundDuration,
    MembershipConvergence,
    PromptRoundEnd,
    consensus_distance,
)
from .safety import (
    AllPeersEnd,
    BoundedStores,
    IdenticalFinalStates,
    IdenticalGradients,
    MicroBatchesCountedOnce,
    NoExceptionsOrFloods,
    NoRequestsToDeadPeers,
    SkipOnConnectionClose,
    StageChecker,
    TimersAndHalt,
    as_violation,
    rule_has_enough,
)
from .stages import PipelineSuite, StageSuite
from .suite import CheckerSuite
from .traffic import BoundedMessageRates, BoundedRumorTransmissions
from .transfer import DonorsStayReachable, FinalRoundReplies, RepeatedAttestationRequests
from .transitions import TableChecker

__all__ = [
    "AT_ONCE_S",
    "AllPeersEnd",
    "Checker",
    "CheckerSuite",
    "DonorsStayReachable",
    "FinalRoundReplies",
    "IdenticalFinalStates",
    "PipelineSuite",
    "RepeatedAttestationRequests",
    "RunConditions",
    "TaintedStates",
    "Violation",
    "as_violation",
    "consensus_distance",
    "every_checker",
    "membership_checkers",
    "rule_has_enough",
]


def every_checker(
    conditions: RunConditions | None = None, recorders: Recorders | None = None
) -> list[Checker]:
    """Return all checkers, which read the same observers."""
    known = recorders or Recorders.create(conditions)
    return [kind(conditions, known) for kind in Checker.kinds]


MEMBERSHIP_CHECKERS = (
    NoExceptionsOrFloods,
    TimersAndHalt,
    BoundedStores,
    TableChecker,
    NoRequestsToDeadPeers,
    SkipOnConnectionClose,
    BoundedRumorTransmissions,
    BoundedMessageRates,
    MembershipConvergence,
    BoundedRoundDuration,
)
"""Checkers of membership, which is common to all stages of a pipeline, and of blocked rounds."""


def membership_checkers(
    conditions: RunConditions | None = None, recorders: Recorders | None = None
) -> list[Checker]:
    """Return the checkers in ``MEMBERSHIP_CHECKERS``. A swarm without rounds has only these."""
    every = every_checker(conditions, recorders)
    return [each for each in every if isinstance(each, MEMBERSHIP_CHECKERS)]


def pipeline_suite(
    stages: tuple[tuple[PeerId, ...], ...],
    micro_batches: int,
    conditions: RunConditions | None = None,
) -> PipelineSuite:
    """Return all checkers of a pipeline: a suite for each stage, and one suite for membership and
    micro-batches of all stages."""
    recorders = Recorders.create(conditions)

    def of_stage() -> list[Checker]:
        # After all updates have arrived, a stage still waits for micro-batches and other stages.
        unfit = (*MEMBERSHIP_CHECKERS, PromptRoundEnd)
        every = every_checker(conditions, recorders)
        return [each for each in every if not isinstance(each, unfit)]

    of_all = membership_checkers(conditions, recorders)
    computed = IdenticalGradients(stages, conditions)
    counted = MicroBatchesCountedOnce(computed, micro_batches, conditions)
    others = [
        kind(stages, conditions)
        for kind in StageChecker.kinds
        if kind not in (IdenticalGradients, MicroBatchesCountedOnce)
    ]
    of_stages = [StageSuite(members, of_stage()) for members in stages]
    overall = CheckerSuite([*recorders, *of_all, computed, counted, *others], has_recorders=False)
    return PipelineSuite(of_stages, overall)
