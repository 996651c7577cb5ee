"""Rounds with a server (rolling) and without one (gossip)."""

from .arrivals import BUSY_S, TRANSFER_FACTOR, Transfer
from .departures import LocalLeave, PeerTimer
from .direct_gather import GatherOverdue
from .fork_choice import ForkChoice
from .future_buffer import FutureBuffer
from .gossip import (
    BEHIND_ROUNDS,
    PLANS_KEPT,
    TIMES_KEPT,
    GossipRounds,
    GossipTimer,
)
from .lag import CatchUpOverdue, LagDetector
from .progress import LocalProgress
from .quorum import quorum_of
from .rolling import BEHIND_MAX, BEHIND_S, RollingRounds
from .shard import RoundTimer, ShardRound
