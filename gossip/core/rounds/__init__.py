"""Rounds, with a server and without: who computes, who serves, what is committed."""

from .arrivals import BUSY_S as BUSY_S
from .arrivals import TRANSFER_FACTOR as TRANSFER_FACTOR
from .arrivals import Transfer as Transfer
from .departures import LocalLeave as LocalLeave
from .departures import PeerTimer as PeerTimer
from .direct_gather import GatherOverdue as GatherOverdue
from .fork_choice import ForkChoice as ForkChoice
from .future_buffer import FutureBuffer as FutureBuffer
from .gossip import BEHIND_ROUNDS as BEHIND_ROUNDS
from .gossip import PLANS_KEPT as PLANS_KEPT
from .gossip import TIMES_KEPT as TIMES_KEPT
from .gossip import GossipRounds as GossipRounds
from .gossip import GossipTimer as GossipTimer
from .lag import CatchUpOverdue as CatchUpOverdue
from .lag import LagDetector as LagDetector
from .progress import LocalProgress as LocalProgress
from .quorum import quorum_of as quorum_of
from .rolling import BEHIND_MAX as BEHIND_MAX
from .rolling import BEHIND_S as BEHIND_S
from .rolling import RollingRounds as RollingRounds
from .server import RoundTimer as RoundTimer
from .shard import ShardRound as ShardRound
