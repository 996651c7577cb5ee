"""The life of a peer: beginning, going on, coming back, ending."""

from . import bootstrap as bootstrap
from .bootstrap import HELLO_INTERVAL_S as HELLO_INTERVAL_S, Bootstrap as Bootstrap
from .exit_codes import (
    DIVERGED as DIVERGED,
    QUORUM_LOST as QUORUM_LOST,
    REFUSED as REFUSED,
    STATE_LOST as STATE_LOST,
)
from .final_check import FinalCheck as FinalCheck
from .hello import HelloExchange as HelloExchange
from .phases import Phase as Phase, Trigger as Trigger, after as after
from .progress import PeerProgress as PeerProgress
from .quorum_watch import (
    STALL_ROUNDS as STALL_ROUNDS,
    WATCH_INTERVAL_S as WATCH_INTERVAL_S,
    QuorumWatch as QuorumWatch,
)
from .rejoin import (
    RETURN_HELLO_EVERY as RETURN_HELLO_EVERY,
    RETURN_INTERVAL_S as RETURN_INTERVAL_S,
    Rejoin as Rejoin,
    RejoinRetry as RejoinRetry,
)
from .shutdown import LingerExpired as LingerExpired, Shutdown as Shutdown
