"""The life of a peer: beginning, going on, coming back, ending."""

from . import bootstrap as bootstrap
from .bootstrap import HELLO_INTERVAL_S as HELLO_INTERVAL_S
from .bootstrap import Gathering as Gathering
from .final_check import Confirming as Confirming
from .hello import Greeting as Greeting
from .phases import Phase as Phase
from .phases import Trigger as Trigger
from .phases import after as after
from .progress import Others as Others
from .quorum_watch import STALL_ROUNDS as STALL_ROUNDS
from .quorum_watch import WATCH_INTERVAL_S as WATCH_INTERVAL_S
from .quorum_watch import QuorumWatch as QuorumWatch
from .rejoin import RETURN_HELLO_EVERY as RETURN_HELLO_EVERY
from .rejoin import RETURN_INTERVAL_S as RETURN_INTERVAL_S
from .rejoin import Returning as Returning
from .rejoin import ReturnTurn as ReturnTurn
from .shutdown import QUORUM_LOST as QUORUM_LOST
from .shutdown import STATE_LOST as STATE_LOST
from .shutdown import Ending as Ending
from .shutdown import Helped as Helped
