"""Shares of the samples in gossip rounds. No commit records which samples are used, so each peer
has its own fixed share of each epoch.

The guarantee is weaker than that of the data cursor. No sample is used twice, but some samples are
never read: the samples of a crashed peer, and the samples of rounds that a peer skips.
"""

from __future__ import annotations

from gossip.core.events import DataSlice
from gossip.core.frozen import record
from gossip.core.settings import PREDICTED_ROUNDS

from .data_cursor import Ranges
from .prefetch import bounded


def rounds_per_epoch(peers: int, samples_total: int, batch: int) -> int:
    """Return the number of rounds in an epoch, which is equal for all peers: the number of rounds
    in which a peer can read the largest share."""
    largest = -(-samples_total // peers)
    return -(-largest // batch)


@record
class DataShare:
    """The contiguous share of each epoch that peer number ``rank`` of ``peers`` reads."""

    rank: int
    peers: int
    samples_total: int
    batch: int

    def slice(self, round_id: int, ahead: int = 0) -> DataSlice:
        """Return the samples that this peer reads in a round.

        The last two rounds of an epoch share the remaining samples equally, so that no step has
        only a few samples. With batches of one sample, peers with a smaller share read nothing in
        the last round. The result includes the slices of the next ``ahead`` rounds, at most
        ``PREDICTED_ROUNDS``. The peer will read these slices unless it skips rounds.
        """
        coming = range(round_id + 1, round_id + 1 + min(ahead, PREDICTED_ROUNDS))
        return DataSlice(*self._part(round_id), bounded([self._part(at) for at in coming]))

    def _part(self, round_id: int) -> tuple[int, Ranges]:
        rounds = rounds_per_epoch(self.peers, self.samples_total, self.batch)
        epoch, step = divmod(round_id, rounds)
        before = epoch * self.samples_total
        start, stop = (before + self._start(edge, rounds) for edge in (step, step + 1))
        return epoch, ((start, stop),) if start < stop else ()

    def _start(self, step: int, rounds: int) -> int:
        """Return the position of the first sample of a step. For ``step == rounds``, return the end
        of the share."""
        first = self.rank * self.samples_total // self.peers
        end = (self.rank + 1) * self.samples_total // self.peers
        if step == rounds:
            return end
        if step < rounds - 1 or not step:
            return first + step * self.batch
        halved = first + max(0, rounds - 2) * self.batch
        return halved + -(-(end - halved) // 2)
