"""Who is suspected, and by what evidence."""

from .silent import SilencesFollowTheCommits as SilencesFollowTheCommits
from .trusting import ChargesByExperience as ChargesByExperience
from .trusting import TrustFollowsExperience as TrustFollowsExperience
from .trusting import TrustFollowsTheCommits as TrustFollowsTheCommits
