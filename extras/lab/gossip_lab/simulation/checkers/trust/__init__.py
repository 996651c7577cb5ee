"""Who is suspected, and by what evidence."""

from .lengths import RuleKnowsUsualLengths
from .silent import OmissionsFollowTheCommits
from .trusting import (
    AccusesByExperience,
    TrustFollowsExperience,
    TrustFollowsTheCommits,
)
