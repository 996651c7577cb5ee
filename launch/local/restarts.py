"""Decides whether and when to restart peers that have died without a planned fault
(``--restarts``).

Planned restarts are handled elsewhere. Peers that left on request are not restarted.
"""

from __future__ import annotations

import signal
from collections import Counter

from gossip.launch.report import EXIT_ASKED
from gossip.observe import events

from .outcome import code_of
from .peer_process import ProcessLife

FIRST_S = 1.0
MOST_S = 30.0
DOUBLINGS_MAX = 16  # keeps the power of two finite; ``MOST_S`` bounds the wait
STEADY_S = 60.0  # After an incarnation of this length, the next wait is again ``FIRST_S``.
ASKED_BY = (signal.SIGINT, signal.SIGTERM)
FINAL = (0, 2, 4, 5, 6, 7, 9, 130, EXIT_ASKED)
"""Exit codes after which a restart would not help: the training has ended, the peer left on
request, its command line is wrong, or the swarm cannot use the peer (``docs/exit_codes.md``)."""


class RestartCounter:
    """Remaining number of restarts of each peer of a launcher.

    Args:
        most: Maximum number of restarts of each peer.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._used = Counter[int]()
        self._in_a_row = Counter[int]()

    def next_restart(self, life: ProcessLife) -> tuple[int, float] | None:
        """Use up the next restart of a peer that failed. Return its number, from 1, and the time
        to wait before it, in seconds; None if no restart is left."""
        peer = life.peer
        if self._used[peer] >= self.most:
            return None
        if life.ended_at - life.began_at >= STEADY_S:
            self._in_a_row[peer] = 0
        wait_s = min(MOST_S, FIRST_S * 2.0 ** min(self._in_a_row[peer], DOUBLINGS_MAX))
        self._used[peer] += 1
        self._in_a_row[peer] += 1
        return self._used[peer], wait_s


def died_by_itself(life: ProcessLife, halted: events.Halted | None) -> bool:
    """Whether the process ended without a request to end, and a restart may help.

    Args:
        halted: Last report of the peer's node about its end. It is ignored if it is from an earlier
            incarnation.
    """
    if life.signal is not None:
        return life.signal not in ASKED_BY
    own = halted if halted is not None and halted.t >= life.began_at else None
    return code_of(life, own) not in FINAL
