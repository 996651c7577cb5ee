"""Who is there: SWIM with the Lifeguard extensions."""

from .dissemination import retransmit_limit as retransmit_limit
from .prober import RELAYS_MAX as RELAYS_MAX, Probe as Probe
from .rumors import LAST_WORDS_S as LAST_WORDS_S
from .stage_view import StageView as StageView
from .suspicion import longest_s as longest_s, shortest_s as shortest_s
from .swim import (
    STRAY_EVERY as STRAY_EVERY,
    TIMERS as TIMERS,
    Change as Change,
    Membership as Membership,
    MembershipMessage as MembershipMessage,
    table_interval_s as table_interval_s,
)
from .table import (
    REFUTATIONS as REFUTATIONS,
    Member as Member,
    MemberTable as MemberTable,
    incarnation_of as incarnation_of,
)
