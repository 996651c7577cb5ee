"""Accusations against one peer, by round. An accusation takes effect after more than f peers have
made it for the same round, because at least one of them is honest."""

from __future__ import annotations

from typing import TypeAlias

from gossip.core.messages import PeerId
from gossip.core.settings import ACCUSED_ROUNDS

from .unpacking import COUNT, row, rows

AccusedRounds: TypeAlias = tuple[tuple[int, tuple[PeerId, ...]], ...]
"""Accused rounds with their accusers, ascending by round. An empty tuple of accusers means that
more than f peers have made the accusation."""


def is_news(accused: AccusedRounds, accuser: PeerId, round_id: int) -> bool:
    """Whether an accusation is not stored yet, and may still take effect."""
    known = dict(accused).get(round_id)
    return known is None or (bool(known) and accuser not in known)


def accuse(
    accused: AccusedRounds, accuser: PeerId, round_id: int, oldest: int, f: int
) -> tuple[AccusedRounds, bool]:
    """Add an accusation and drop the rounds before ``oldest``. Return the new rounds, and whether
    the accusation takes effect now."""
    rounds = {at: by for at, by in accused if at >= oldest}
    by = tuple(sorted({*rounds.get(round_id, ()), accuser}))
    enough = len(by) > f
    rounds[round_id] = () if enough else by
    # Keep the rounds with the most accusers, so that a single Byzantine peer cannot displace
    # accusations by several peers.
    kept = sorted(rounds.items(), key=lambda item: (not item[1], len(item[1]), item[0]))
    return tuple(sorted(kept[-ACCUSED_ROUNDS:])), enough


ACCUSED = rows(row(COUNT, rows(COUNT)), most=ACCUSED_ROUNDS)
"""Schema of ``AccusedRounds``."""
