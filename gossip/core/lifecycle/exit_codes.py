"""Exit codes of a peer that halts with an error."""

NEVER_STARTED = 4
QUORUM_LOST = 5
REFUSED = 6
STATE_LOST = 7
DIVERGED = 9
