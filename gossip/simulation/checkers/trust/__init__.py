"""Who is suspected, and by what evidence."""

from .silent import OmissionsFollowTheCommits as OmissionsFollowTheCommits
from .trusting import (
    AccusesByExperience as AccusesByExperience,
    TrustFollowsExperience as TrustFollowsExperience,
    TrustFollowsTheCommits as TrustFollowsTheCommits,
)
