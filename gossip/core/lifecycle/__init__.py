"""The life of a peer: beginning, going on, coming back, ending."""

from . import bootstrap as bootstrap
from .bootstrap import HELLO_INTERVAL_S as HELLO_INTERVAL_S
from .bootstrap import Bootstrap as Bootstrap
from .exit_codes import DIVERGED as DIVERGED
from .exit_codes import QUORUM_LOST as QUORUM_LOST
from .exit_codes import REFUSED as REFUSED
from .exit_codes import STATE_LOST as STATE_LOST
from .final_check import FinalCheck as FinalCheck
from .hello import HelloExchange as HelloExchange
from .phases import Phase as Phase
from .phases import Trigger as Trigger
from .phases import after as after
from .progress import PeerProgress as PeerProgress
from .quorum_watch import STALL_ROUNDS as STALL_ROUNDS
from .quorum_watch import WATCH_INTERVAL_S as WATCH_INTERVAL_S
from .quorum_watch import QuorumWatch as QuorumWatch
from .rejoin import RETURN_HELLO_EVERY as RETURN_HELLO_EVERY
from .rejoin import RETURN_INTERVAL_S as RETURN_INTERVAL_S
from .rejoin import Rejoin as Rejoin
from .rejoin import RejoinRetry as RejoinRetry
from .shutdown import LingerExpired as LingerExpired
from .shutdown import Shutdown as Shutdown
