"""State of a world after a round, in the form that both engines yield."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """State of a world after a round.

    Attributes:
        rounds: Number of rounds so far.
        virtual_s: Virtual time at which half of the present peers had applied the round, in
            seconds since the start.
        bytes_sent: Total bytes of the payloads of all peers so far.
        samples: Total number of samples in all updates that were used so far.
        parameters: ``(n, d)`` float32, the parameters of each peer after the round. In rolling
            rounds all present replicas are equal, so the tensor may be one expanded row. An absent
            peer has its last parameters.
        present: ``(n,)`` bool: peers that take part at the end of the round.
        quarantined: ``(n,)`` int: for each peer, the number of present honest peers that have put
            this peer into quarantine.
        lost: Whether the round made no step. In gossip rounds: whether any present peer made no
            step.
        lowered: In gossip rounds, whether any peer had too few vectors for the f of the world, and
            aggregated with a lower f.
    """

    rounds: int
    virtual_s: float
    bytes_sent: int
    samples: int
    parameters: Tensor
    present: NDArray[np.bool_]
    quarantined: NDArray[np.int64]
    lost: bool = False
    lowered: bool = False

    @property
    def is_replicated(self) -> bool:
        """Whether ``parameters`` is one expanded row."""
        return self.parameters.stride(0) == 0

    def digest(self) -> bytes:
        """Return the BLAKE2b digest (16 bytes) of the parameters of the present peers, in the order
        of their ids."""
        digest = blake2b(digest_size=16)
        for peer in np.flatnonzero(self.present).tolist():
            digest.update(self.parameters[peer].contiguous().numpy().tobytes())
        return digest.digest()
