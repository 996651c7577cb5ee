"""How long each member of a stage takes for a micro-batch, by which they are shared.

Updates say how long their peer's passes took, commits repeat it. So this follows from the commits,
and every member of a stage knows it. Before anything is measured the plan's predictions stand.

A peer may lie about it. The f fastest claims count as the next one, so with f liars nobody gets
more than the fastest honest member would. In any case nobody counts as more than
``SPEED_RATIO_MAX`` times as fast as another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low
from typing import Any

from gossip.core.messages import Commit, PeerId

KEPT = 5
"""Rounds of a member, of which the median counts: a single one in which it was held up does not."""
SPEED_RATIO_MAX = 8
PASS_US_MAX = 2**40
UNLIKE = 3, 2
"""A member is not as its profile says when it takes 1.5 times as long, or as short."""
UNLIKE_LEAST_US = 5_000
"""Such a difference at least: what messages between processes take is in no profile."""
LEADING_BITS = 5
"""Leading bits of a time in microseconds that count: steps of 3 to 6 %. Finer steps move no
micro-batch."""


class StageSpeeds:
    """Times of the members of a stage for a micro-batch, in microseconds.

    Args:
        f: Members that may be Byzantine.
        predicted_us: Times by the plan; empty if it predicts none.
    """

    def __init__(self, f: int, predicted_us: Mapping[PeerId, int]) -> None:
        self.f, self.predicted_us = f, predicted_us
        self._told: dict[PeerId, deque[int]] = {}

    def observe_round(self, commits: Sequence[Commit]) -> None:
        """Learns from the commits of one round."""
        for peer, took_us in _reported_pass_times(commits):
            self._told.setdefault(peer, deque(maxlen=KEPT)).append(took_us)

    def measured_us(self, peer: PeerId) -> int | None:
        """The median of its last ``KEPT`` times; None: it has sent fewer."""
        told = self._told.get(peer, ())
        return median_low(told) if len(told) == KEPT else None

    def unlike_predicted(self, peer: PeerId) -> tuple[int, int] | None:
        """Its measured and its predicted time, where these are too far apart."""
        measured, predicted = self.measured_us(peer), self.predicted_us.get(peer)
        if measured is None or predicted is None:
            return None
        short, long = sorted((measured, predicted))
        apart = long - short > UNLIKE_LEAST_US and UNLIKE[1] * long > UNLIKE[0] * short
        return (measured, predicted) if apart else None

    def pass_us(self, roster: Sequence[PeerId], to_come: Sequence[Commit] = ()) -> tuple[int, ...]:
        """The times by which micro-batches are shared, in the order of ``roster``.

        Args:
            to_come: commits of a round that was not observed yet.
        """
        news = dict(_reported_pass_times(to_come))
        known = {peer: self._known_us(peer, news.get(peer)) for peer in roster}
        said = sorted([took_us for took_us in known.values() if took_us])
        if not said:
            return (1,) * len(roster)
        least = said[min(self.f, len(said) - 1)]
        usual = median_low(said)
        return tuple([_rounded(max(known[p] or usual, least)) for p in roster])

    def _known_us(self, peer: PeerId, news: int | None) -> int | None:
        told = [*self._told.get(peer, ()), *([news] if news else ())][-KEPT:]
        return median_low(told) if told else self.predicted_us.get(peer)

    # --- as data ----------------------------------------------------------------------------------

    def pack(self) -> tuple[Any, ...]:
        """Plain data."""
        return tuple([(peer, *told) for peer, told in sorted(self._told.items())])

    def unpack(self, packed: Any) -> None:
        """Takes over what ``pack`` gave elsewhere. Raises ``ValueError``, and changes nothing,
        when it is not that."""
        if not isinstance(packed, tuple | list):
            raise ValueError("speeds: no table")
        told: dict[PeerId, deque[int]] = {}
        for row in packed:
            if not isinstance(row, tuple | list) or not 2 <= len(row) <= KEPT + 1:
                raise ValueError("speeds: a peer and its times were expected")
            if not all(type(value) is int and 0 <= value <= PASS_US_MAX for value in row):
                raise ValueError("speeds: a time that cannot be")
            if row[0] in told:
                raise ValueError("speeds: a peer twice")
            told[row[0]] = deque(row[1:], maxlen=KEPT)
        self._told = told


def weights_of(pass_us: Mapping[PeerId, int]) -> dict[PeerId, float]:
    """How much of the micro-batches each of some members gets, by what each takes for one. It may
    be a peer's word."""
    most = SPEED_RATIO_MAX * min(pass_us.values(), default=1)
    return {peer: 1.0 / min(took_us, most) for peer, took_us in pass_us.items()}


def _reported_pass_times(commits: Sequence[Commit]) -> Iterable[tuple[PeerId, int]]:
    """Yield each peer that reports its time in the commits of a round, with this time in
    microseconds."""
    for given in commits[0].contributors if commits else ():
        if given.micro_batches and 0 < given.pass_us <= PASS_US_MAX:
            yield given.peer, given.pass_us


def _rounded(took_us: int) -> int:
    """To its leading bits, so that two measurements of one speed mostly agree."""
    spare = max(0, took_us.bit_length() - LEADING_BITS)
    return took_us >> spare << spare
