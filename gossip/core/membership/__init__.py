"""Membership: SWIM with the Lifeguard extensions."""

from .dissemination import retransmit_limit
from .prober import Probe
from .suspicion import longest_s, shortest_s
from .swim import TIMERS, Change, Membership, MembershipMessage, table_interval_s
from .table import (
    REFUTATIONS,
    Member,
    MemberTable,
    incarnation_of,
)
