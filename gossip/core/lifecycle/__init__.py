"""Lifecycle of a peer: bootstrap, rejoin, final check and shutdown."""

from . import bootstrap
from .bootstrap import Bootstrap, Decision, RebuildStage, TakeState
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
from .quorum_watch import QuorumWatch
from .rejoin import Rejoin, RejoinRetry
from .shutdown import LingerExpired, Shutdown
