"""Effect of an encoding on updates and results."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from gossip.errors import Malformed
from gossip.training import UpdateEncoder
from gossip.vectors import WireFormat, load_encoding


class EncodedLink:
    """Link between the workers of a trial and its rule.

    Honest workers use error feedback: they store the part of an update that encoding loses.
    Byzantine workers encode any vector.
    """

    def __init__(
        self, encoding: str, shapes: Sequence[tuple[int, ...]], honest: int, workers: int, seed: int
    ) -> None:
        d = sum(map(math.prod, shapes))
        self._wire = WireFormat(load_encoding(encoding), seed, (d,), d, workers, tuple(shapes))
        self._encoders = [UpdateEncoder(self._wire) for _ in range(workers)]
        self._honest = honest
        self._memory = np.empty(self._wire.update_bytes[0], np.uint8)

    def pass_updates(self, updates: Tensor, round_id: int) -> Tensor:
        """Return the ``(n, d)`` updates after encoding and decoding. A malformed update becomes
        NaN."""
        passed = updates.numpy().copy()
        for encoder, update in zip(self._encoders[: self._honest], passed, strict=False):
            encoder.encode(update, self._memory, round_id)
        for lie in passed[self._honest :]:
            raw = self._wire.encode(lie, "update", round_id, 0)
            try:
                lie[:] = self._wire.decode(raw, "update", round_id, 0)
            except Malformed:
                lie[:] = np.nan
        return torch.from_numpy(passed)

    def pass_result(self, aggregate: Tensor, round_id: int) -> Tensor:
        raw = self._wire.encode(aggregate.numpy(), "result", round_id, 0)
        return torch.from_numpy(self._wire.decode(raw.copy(), "result", round_id, 0))

    def settle(self, round_id: int, contributors: Collection[int]) -> None:
        """Settle the error feedback of each honest worker: a worker stores the part that the
        encoding lost if it is among the contributors."""
        for worker, encoder in enumerate(self._encoders):
            encoder.settle(round_id, (worker in contributors,))
