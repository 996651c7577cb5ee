"""Times of the members of a stage for a micro-batch. Micro-batches are distributed according to
these times.

Each update reports the time of the passes of its peer, and the commit repeats this time. So the
times follow from the commits and are equal on all members of a stage. Before the first report of a
member, the prediction of the plan is used.

A Byzantine peer may report a wrong time. So the f shortest times are replaced by the next longer
time. A peer therefore gets at most as many micro-batches as the fastest honest member would get. In
addition, the ratio of two speeds is limited to ``SPEED_RATIO_MAX``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low
from typing import Any

from gossip.core.messages import Commit, PeerId
from gossip.core.settings import (
    PASS_BITS,
    PASS_TIMES,
    PASS_UNLIKE,
    PASS_UNLIKE_US,
    SPEED_RATIO_MAX,
    TIME_US_MAX,
)

from .unpacking import count, rows, unpacked


class StageSpeeds:
    """Times of the members of a stage for a micro-batch, in microseconds.

    Args:
        f: Number of members that may be Byzantine.
        predicted_us: Times that the plan predicts; empty without predictions.
    """

    def __init__(self, f: int, predicted_us: Mapping[PeerId, int]) -> None:
        self.f, self.predicted_us = f, predicted_us
        self._reported: dict[PeerId, deque[int]] = {}

    def observe_round(self, commits: Sequence[Commit]) -> None:
        """Record the times in the commits of one round."""
        for peer, took_us in _reported_pass_times(commits):
            self._reported.setdefault(peer, deque(maxlen=PASS_TIMES)).append(took_us)

    def measured_us(self, peer: PeerId) -> int | None:
        """Return the median of the last ``PASS_TIMES`` times of a peer, in microseconds; None if
        the peer has reported fewer times."""
        times = self._reported.get(peer, ())
        return median_low(times) if len(times) == PASS_TIMES else None

    def unlike_predicted(self, peer: PeerId) -> tuple[int, int] | None:
        """Return the measured and the predicted time of a peer if these times differ too much,
        otherwise None."""
        measured, predicted = self.measured_us(peer), self.predicted_us.get(peer)
        if measured is None or predicted is None:
            return None
        short, long = sorted((measured, predicted))
        apart = long - short > PASS_UNLIKE_US and PASS_UNLIKE[1] * long > PASS_UNLIKE[0] * short
        return (measured, predicted) if apart else None

    def pass_us(self, roster: Sequence[PeerId], to_come: Sequence[Commit] = ()) -> tuple[int, ...]:
        """Return the times according to which micro-batches are distributed, in the order of
        ``roster``.

        Args:
            to_come: Commits of a round that ``observe_round`` has not recorded yet.
        """
        news = dict(_reported_pass_times(to_come))
        known = {peer: self._known_us(peer, news.get(peer)) for peer in roster}
        times = sorted([took_us for took_us in known.values() if took_us])
        if not times:
            return (1,) * len(roster)
        least = times[min(self.f, len(times) - 1)]
        usual = median_low(times)
        return tuple([_rounded(max(known[p] or usual, least)) for p in roster])

    def _known_us(self, peer: PeerId, news: int | None) -> int | None:
        times = [*self._reported.get(peer, ()), *([news] if news else ())][-PASS_TIMES:]
        return median_low(times) if times else self.predicted_us.get(peer)

    # --- as data ----------------------------------------------------------------------------------

    def pack(self) -> tuple[Any, ...]:
        """Return the table as plain tuples."""
        return tuple([(peer, *times) for peer, times in sorted(self._reported.items())])

    def unpack(self, packed: Any) -> None:
        """Load the result of another peer's ``pack``. Raises ``ValueError``, and changes nothing,
        if the data is invalid."""
        schema = rows(rows(count(TIME_US_MAX), most=PASS_TIMES + 1))
        table = unpacked("speeds", schema, packed)
        reported = {peer: deque(times, maxlen=PASS_TIMES) for peer, *times in table}
        if len(reported) < len(table):
            raise ValueError("speeds: a peer is listed twice")
        if not all(reported.values()):
            raise ValueError("speeds: a peer has no times")
        self._reported = reported


def weights_of(pass_us: Mapping[PeerId, int]) -> dict[PeerId, float]:
    """Return the weight of each member in the distribution of micro-batches. ``pass_us``: time of
    each member for one micro-batch, which a Byzantine member may have reported."""
    most = SPEED_RATIO_MAX * min(pass_us.values(), default=1)
    return {peer: 1.0 / min(took_us, most) for peer, took_us in pass_us.items()}


def _reported_pass_times(commits: Sequence[Commit]) -> Iterable[tuple[PeerId, int]]:
    """Yield each peer that reports its time in the commits of a round, together with this time in
    microseconds."""
    for given in commits[0].contributors if commits else ():
        if given.micro_batches and 0 < given.pass_us <= TIME_US_MAX:
            yield given.peer, given.pass_us


def _rounded(took_us: int) -> int:
    """Round a time down to its leading bits, so that repeated measurements of the same speed mostly
    agree."""
    spare = max(0, took_us.bit_length() - PASS_BITS)
    return took_us >> spare << spare
