"""States of replicas in the exact engine: immutable, and shared by all peers with equal states."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from gossip.core import Apply, Payload
from gossip.errors import ConfigError
from gossip.vectors import bytes_for

from .tasks import Task


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ModelState:
    """State of a replica. Equal states are one object.

    Attributes:
        parameters: ``(d,)`` float32.
        memory: ``(d,)`` float32, memory of the outer step; None before the first outer step.
        digest: Digest of parameters and memory.
    """

    parameters: Tensor
    memory: Tensor | None
    digest: bytes

    def pack(self) -> bytes:
        """Return parameters and memory as bytes."""
        return _packed(self.parameters, self.memory)


class StateTable:
    """All states that replicas have at present."""

    def __init__(self, task: Task) -> None:
        self._lr, self._outer = task.lr, task.outer
        self._states: WeakValueDictionary[bytes, ModelState] = WeakValueDictionary()
        self.initial = self._find(task.cohort.initial, None)
        # Last step, for reuse: in rolling rounds all peers make the same step one after the other.
        self._last: tuple[ModelState, Payload | None, ModelState] | None = None

    def apply(self, state: ModelState, round_: Apply) -> ModelState:
        """Return the state after applying a round."""
        payload = round_.payloads[0] if round_.payloads else None
        if round_.mix is None and self._last is not None:
            before, made_by, after = self._last
            if before is state and made_by is payload:
                return after
        here, memory = state.parameters, state.memory
        if round_.mix is not None:
            here = here + round_.mix_scale * torch.from_numpy(round_.mix.data)
        if payload is not None:
            aggregate = torch.from_numpy(payload.data)
            if self._outer is None:
                here = here - self._lr * aggregate
            else:
                move, memory = self._outer.move(aggregate, memory)
                here = here - move
        after = self._find(here, memory)
        if round_.mix is None:
            self._last = state, payload, after
        return after

    def unpack(self, packed: bytes) -> ModelState:
        """Return the state that ``ModelState.pack`` has packed.

        Raises: ConfigError: The bytes have a wrong length.
        """
        d = len(self.initial.parameters)
        if len(packed) not in (bytes_for(d), bytes_for(2 * d)):
            raise ConfigError(f"{len(packed)} bytes are not a state of {d} parameters")
        both = torch.frombuffer(bytearray(packed), dtype=torch.float32)
        return self._find(both[:d], both[d:] if len(both) > d else None)

    def _find(self, parameters: Tensor, memory: Tensor | None) -> ModelState:
        digest = blake2b(_packed(parameters, memory), digest_size=16).digest()
        return self._states.setdefault(digest, ModelState(parameters, memory, digest))


def _packed(parameters: Tensor, memory: Tensor | None) -> bytes:
    packed = parameters.contiguous().numpy().tobytes()
    return packed if memory is None else packed + memory.contiguous().numpy().tobytes()
