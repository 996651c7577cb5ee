"""Samples in gossip rounds, where no commit says who has used what:
every peer has its own share of each epoch.

A weaker promise than the data cursor's: nothing is used twice, but what a crashed peer would have
read, or a peer that jumped ahead passed over, is not read by anybody in that epoch.
"""

from __future__ import annotations

from gossip.core.events import DataSlice

from .data_cursor import Ranges
from .prefetch import AHEAD_MAX, bounded


def rounds_per_epoch(peers: int, samples_total: int, batch: int) -> int:
    """The same for every peer: as many as the largest share needs."""
    largest = -(-samples_total // peers)
    return -(-largest // batch)


def share_of(
    rank: int, peers: int, samples_total: int, batch: int, round_id: int, ahead: int = 0
) -> DataSlice:
    """What the ``rank``-th of ``peers`` reads in a round:
    the next part of its own contiguous share of the epoch.

    The last two rounds of an epoch halve what is left, so that neither is a step on a handful of
    samples. With batches of one the last is empty for those whose share is smaller than the
    largest. The slices of the ``ahead`` rounds behind it come along: what it will read,
    unless it jumps ahead.
    """
    rounds = rounds_per_epoch(peers, samples_total, batch)
    first, end = rank * samples_total // peers, (rank + 1) * samples_total // peers
    halved = first + max(0, rounds - 2) * batch  # from here on

    def beginning(step: int) -> int:
        if step == rounds:
            return end
        return (
            first + step * batch
            if step < rounds - 1 or not step
            else halved + -(-(end - halved) // 2)
        )

    def part(at: int) -> tuple[int, Ranges]:
        epoch, step = divmod(at, rounds)
        start, stop = beginning(step), beginning(step + 1)
        return epoch, ((start, stop),) if start < stop else ()

    return DataSlice(
        *part(round_id), bounded([part(round_id + k) for k in range(1, min(ahead, AHEAD_MAX) + 1)])
    )
