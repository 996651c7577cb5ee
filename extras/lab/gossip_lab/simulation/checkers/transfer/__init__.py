"""Checkers of state transfer between peers."""

from . import attestations, pieces
from .donors import DonorsStayReachable, FinalRoundReplies, RepeatedAttestationRequests
