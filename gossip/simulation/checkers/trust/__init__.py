"""Who is suspected, and by what evidence."""

from .silent import OmissionsFollowTheCommits
from .trusting import (
    AccusesByExperience,
    TrustFollowsExperience,
    TrustFollowsTheCommits,
)
