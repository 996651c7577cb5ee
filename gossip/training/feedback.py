"""Encodes updates with error feedback: the encoding error of an update is added to the next update.

For the gradient g and the residual e, receivers decode d = D(E(g + e)). If the update is used, e
becomes g + e - d (Seide et al. 2014; Karimireddy et al. 2019, arXiv:1901.09847). A shard of an
update is used if the commit lists its peer among the contributors. An update may not be used
because it is late or not finite, or because its round was lost. Then g is dropped, as without an
encoding, and its samples are read again. The residual does not change, because d was not applied.
So no gradient is applied twice or lost twice. If the round becomes a collective operation, the
update is encoded again for the next round, because an encoding uses different random numbers in
each round.

A residual is per-peer state, not part of the swarm's state. A peer that joins, or restores a state
of other peers, starts without a residual, because an old residual belongs to other parameters. A
checkpoint stores the residual together with the sender's memory, so a resumed run continues with
it. The residual survives a restart of the node, because the trainer holds it.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from gossip.vectors import ByteArray, Vector, WireFormat, is_finite

from .state import StateMismatch


class UpdateEncoder:
    """Encoder of updates. It stores the encoding error for the next update.

    Attributes:
        keeps_lost: Whether the encoding error is computed.
        residual: ``(fragments * trained,)`` float32, the encoding error of the last used update of
            each fragment, in order of the fragments. None before the first used update.
    """

    def __init__(self, wire: WireFormat, fragments: int = 1) -> None:
        """``fragments``: number of fragments of the model. An update covers one fragment."""
        self._wire, self._size = wire, fragments * wire.trained
        encoding = wire.encoding
        # Low-rank encodings use new random factors in each round, so encoding an update again needs
        # the error of its first encoding.
        self.keeps_lost = encoding.feedback or encoding.low_rank
        self._bounds = list(pairwise(accumulate(wire.sizes, initial=0)))
        self.residual: Vector | None = None
        # round and fragment of the current update, and its error
        self._pending: tuple[int, int, Vector] | None = None

    def encode(
        self,
        update: Vector,
        encoded: ByteArray,
        round_id: int,
        fragment: int = 0,
    ) -> None:
        """Encode the update, and replace it by the vector that the receivers will decode.

        Args:
            update: ``(elements,)``. A non-finite update is not changed, and its encoding error is
                not stored.
            encoded: Memory for the encoded bytes of all shards.
            fragment: Fragment of the update.
        """
        keeps = self._wire.encoding.feedback and self.residual is not None
        owed = self._owed(fragment) if keeps else None
        self._encode(update, encoded, (round_id, fragment), owed)

    def encode_again(self, update: Vector, encoded: ByteArray, round_id: int) -> None:
        """Encode an update for a later round, because its round became a collective operation.
        ``update``: vector that ``encode`` has left."""
        _, fragment, left = self._pending or (0, 0, None)
        self._encode(update, encoded, (round_id, fragment), left)

    def _encode(
        self,
        update: Vector,
        encoded: ByteArray,
        of: tuple[int, int],
        added: Vector | None,
    ) -> None:
        """Encode an update. ``of``: round and fragment of the update. ``added``: vector that is
        added to a finite update before encoding."""
        self._pending, round_id = None, of[0]
        if not is_finite(update):
            self._write(update, encoded, round_id)
            return
        numbers = update[: self._wire.trained]
        if added is not None:
            numbers += added
        wanted = numbers.copy() if self.keeps_lost else None
        for shard, raw in enumerate(self._write(update, encoded, round_id)):
            start, stop = self._bounds[shard]
            self._wire.decode(raw, "update", round_id, shard, update[start:stop])
        if wanted is not None:
            wanted -= numbers
            self._pending = *of, wanted

    def _owed(self, fragment: int) -> Vector:
        """Return the residual of one fragment, as a view."""
        assert self.residual is not None
        start = fragment * self._wire.trained
        return self.residual[start : start + self._wire.trained]

    def settle(self, round_id: int, taken: tuple[bool, ...]) -> None:
        """Record that a round was applied. ``taken``: for each shard, whether this peer's update
        was used."""
        if self._pending is None or round_id < self._pending[0]:
            return
        (pending_round, fragment, left), self._pending = self._pending, None
        if pending_round != round_id or not any(taken) or not self._wire.encoding.feedback:
            return
        if self.residual is None:
            self.residual = np.zeros(self._size, np.float32)
        owed = self._owed(fragment)
        for (start, stop), is_taken in zip(self._bounds, taken, strict=True):
            if is_taken:
                owed[start:stop] = left[start:stop]

    def forget(self) -> None:
        """Drop the residual, because parameters of other peers have replaced the local ones."""
        self.residual = self._pending = None

    def load(self, residual: Tensor | None) -> None:
        """Load a residual that ``saved`` has returned. Raises: StateMismatch: The residual belongs
        to another model."""
        if residual is not None and (
            residual.shape != (self._size,) or residual.dtype != torch.float32
        ):
            raise StateMismatch(f"its residual is not of {self._size} numbers")
        self.residual = None if residual is None else residual.numpy().copy()

    def saved(self) -> Tensor | None:
        """Return a copy of the residual for a checkpoint."""
        return None if self.residual is None else torch.tensor(self.residual)

    def _write(self, update: Vector, encoded: ByteArray, round_id: int) -> list[ByteArray]:
        """Encode each shard into ``encoded``, and return the bytes."""
        sizes = pairwise(accumulate(self._wire.update_bytes, initial=0))
        written = []
        for shard, ((start, stop), (first, last)) in enumerate(
            zip(self._bounds, sizes, strict=True)
        ):
            place = encoded[first:last]
            written.append(self._wire.encode(update[start:stop], "update", round_id, shard, place))
        return written
