"""Liveness checkers: events that must happen once the faults have ended, with deadlines."""

from . import branches, crashes, fault_free, newcomers, pushes, server_waits
from .consensus import consensus_distance
from .liveness import Liveness, MembershipConvergence
from .promptness import AT_ONCE_S, BoundedRoundDuration, PromptRoundEnd
