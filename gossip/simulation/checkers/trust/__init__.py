"""Who is suspected, and by what evidence."""

from .silent import OmissionsFollowTheCommits as OmissionsFollowTheCommits
from .trusting import AccusesByExperience as AccusesByExperience
from .trusting import TrustFollowsExperience as TrustFollowsExperience
from .trusting import TrustFollowsTheCommits as TrustFollowsTheCommits
