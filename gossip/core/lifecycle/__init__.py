"""Lifecycle of a peer: bootstrap, rejoin, the final check and the shutdown."""

from . import bootstrap
from .bootstrap import (
    HELLO_INTERVAL_S,
    Bootstrap,
    Decision,
    HaltStateLost,
    RebuildStage,
    TakeState,
    end_of,
)
from .exit_codes import (
    DIVERGED,
    QUORUM_LOST,
    REFUSED,
    STATE_LOST,
)
from .final_check import FinalCheck
from .hello import HelloExchange
from .phases import Phase, Trigger, after
from .progress import PeerProgress
from .quorum_watch import (
    STALL_ROUNDS,
    WATCH_INTERVAL_S,
    QuorumWatch,
)
from .rejoin import (
    RETURN_HELLO_EVERY,
    RETURN_INTERVAL_S,
    Rejoin,
    RejoinRetry,
)
from .shutdown import LingerExpired, Shutdown
