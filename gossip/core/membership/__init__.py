"""Membership: SWIM with the Lifeguard extensions."""

from .dissemination import retransmit_limit
from .prober import RELAYS_MAX, Probe
from .rumors import LAST_WORDS_S
from .suspicion import longest_s, shortest_s
from .swim import (
    STRAY_EVERY,
    TIMERS,
    Change,
    Membership,
    MembershipMessage,
    table_interval_s,
)
from .table import (
    REFUTATIONS,
    Member,
    MemberTable,
    incarnation_of,
)
