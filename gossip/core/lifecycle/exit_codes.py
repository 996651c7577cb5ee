"""What a peer that gives up ends with."""

QUORUM_LOST = 5
STATE_LOST = 7
DIVERGED = 9
