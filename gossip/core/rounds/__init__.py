"""Rounds, with a server and without: who computes, who serves, what is committed."""

from .arrivals import BUSY_S as BUSY_S, TRANSFER_FACTOR as TRANSFER_FACTOR, Transfer as Transfer
from .departures import LocalLeave as LocalLeave, PeerTimer as PeerTimer
from .direct_gather import GatherOverdue as GatherOverdue
from .fork_choice import ForkChoice as ForkChoice
from .future_buffer import FutureBuffer as FutureBuffer
from .gossip import (
    BEHIND_ROUNDS as BEHIND_ROUNDS,
    PLANS_KEPT as PLANS_KEPT,
    TIMES_KEPT as TIMES_KEPT,
    GossipRounds as GossipRounds,
    GossipTimer as GossipTimer,
)
from .lag import CatchUpOverdue as CatchUpOverdue, LagDetector as LagDetector
from .progress import LocalProgress as LocalProgress
from .quorum import quorum_of as quorum_of
from .rolling import BEHIND_MAX as BEHIND_MAX, BEHIND_S as BEHIND_S, RollingRounds as RollingRounds
from .server import RoundTimer as RoundTimer
from .shard import ShardRound as ShardRound
