"""Liveness checkers: events that must happen once the faults have ended, with deadlines."""

from . import branches, crashes, fault_free, newcomers, pushing, waiting
from .consensus import consensus_distance
from .liveness import Converges, Liveness
from .promptness import NobodyIsStuck
