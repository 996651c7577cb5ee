"""Who is there: SWIM with the Lifeguard extensions."""

from .dissemination import retransmit_limit as retransmit_limit
from .prober import RELAYS_MAX as RELAYS_MAX
from .prober import Probe as Probe
from .rumors import LAST_WORDS_S as LAST_WORDS_S
from .stage_view import StageView as StageView
from .suspicion import longest_s as longest_s
from .suspicion import shortest_s as shortest_s
from .swim import STRAY_EVERY as STRAY_EVERY
from .swim import TIMERS as TIMERS
from .swim import Change as Change
from .swim import Membership as Membership
from .swim import MembershipMessage as MembershipMessage
from .swim import table_interval_s as table_interval_s
from .table import REFUTATIONS as REFUTATIONS
from .table import Member as Member
from .table import MemberTable as MemberTable
from .table import incarnation_of as incarnation_of
from .transitions import CONNECT_GRACE_S as CONNECT_GRACE_S
