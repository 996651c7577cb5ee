"""Estimates the honest updates for one Byzantine peer in a real run, from its own updates and the
result of each round."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

RESIDUALS_MAX = 8
WAITING_MAX = 16


class HonestEstimate:
    """Estimate of the honest updates of the next round.

    Every replica has the result of the last round, which is the estimate of the honest mean. The
    peer's honest update minus the result of the same round is one sample of an honest deviation.
    The last ``RESIDUALS_MAX`` samples estimate the deviations of the other peers. So attackers on
    different machines estimate the same mean, and nearly the same deviation, without communication.
    """

    def __init__(self) -> None:
        self.result: Tensor | None = None
        self._own: dict[int, Tensor] = {}  # honest updates of unfinished rounds, by round
        self._residuals: deque[Tensor] = deque(maxlen=RESIDUALS_MAX)
        self._round = -1  # round of ``result``

    def sends(self, update: Tensor, round_id: int) -> None:
        """Record the honest update of a round, ``(d,)``."""
        self._own[round_id] = update.clone()
        while len(self._own) > WAITING_MAX:
            del self._own[min(self._own)]

    def saw(self, result: Tensor, round_id: int) -> None:
        """Record the result of a round, ``(d,)``. It is stored without a copy, so the caller must
        not reuse its memory."""
        own = self._own.pop(round_id, None)
        if own is not None:
            self._residuals.append(own - result)
        if round_id > self._round:
            self.result, self._round = result, round_id
        for past in [past for past in self._own if past < round_id]:
            del self._own[past]

    def honest(self, update: Tensor, count: int) -> Tensor:
        """Return ``(count, d)``, estimates of the honest updates. Before the first result these are
        copies of the local update."""
        import torch

        middle = update if self.result is None else self.result
        if len(self._residuals) < 2:
            return middle.repeat(count, 1)
        residuals = torch.stack(tuple(self._residuals))
        rows = middle + residuals - residuals.mean(dim=0)
        return rows[torch.arange(count) % len(rows)]
