"""Rolling rounds, which have a server, and gossip rounds, which have none."""

from .arrivals import Transfer
from .departures import LocalLeave, PeerTimer
from .direct_gather import GatherOverdue
from .fork_choice import ForkChoice
from .future_buffer import FutureBuffer
from .gossip import GossipMessage, GossipRounds, GossipTimer
from .lag import CatchUpOverdue, LagDetector
from .mixing import MixingController
from .progress import DonorRounds, LocalProgress
from .quorum import quorum_of
from .rolling import RollingMessage, RollingRounds
from .shard import RoundTimer, ShardRound
