"""Checkers of trust: which peers are suspected, and by what evidence."""

from gossip_lab.simulation.checkers.base import Checker

from .lengths import RuleKnowsUsualLengths
from .silent import OmissionsFollowTheCommits
from .trusting import (
    AccusesByExperience,
    TrustFollowsExperience,
    TrustFollowsTheCommits,
)

CHECKERS: tuple[type[Checker], ...] = (
    TrustFollowsTheCommits,
    TrustFollowsExperience,
    AccusesByExperience,
    OmissionsFollowTheCommits,
    RuleKnowsUsualLengths,
)
