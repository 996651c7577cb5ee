"""Model of a toy trainer: a short vector that descends towards a target."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossip.aggregators import outer
from gossip.core import PeerId, events
from gossip.vectors import fragment_of, payload_digest

from .toy_payloads import Values, Vector, noise_of

STEP_SIZE = 0.1
NOISE = 0.05
OWN_BYTES = 8  # size of the local part at the end of a packed state
OUTER = outer.OuterStep(outer.NESTEROV, outer.LR, outer.MOMENTUM)
"""Outer step for models with local steps."""

WHOLE = slice(None)


@cache
def target_of(seed: int, elements: int) -> Vector:
    """Return the target vector, which is the same for all peers of a run."""
    target: Vector = np.random.default_rng([seed, 1]).standard_normal(elements).astype(np.float32)
    target.setflags(write=False)
    return target


@dataclass(eq=False, repr=False)
class ToyModel:
    """A float32 vector as a model. Its update is a step towards a target that all peers share, plus
    noise that depends only on seed, peer and round. Applying an aggregate adds it to the vector.

    Args:
        sizes: Number of elements of each shard.
        initial: Seed of the initial parameters; None means zeros.
        local_steps: Number of local steps of an update. With more than one step, ``OUTER`` applies
            the aggregate, and the memory of ``OUTER`` is part of the state.
        fragments: Number of fragments of the model, each as large as an update.
    """

    peer: PeerId
    seed: int
    _: KW_ONLY
    sizes: tuple[int, ...] = (8,)
    step_size: float = STEP_SIZE
    noise: float = NOISE
    initial: int | None = None
    local_steps: int = 1
    fragments: int = 1

    def __post_init__(self) -> None:
        elements = self.fragments * sum(self.sizes)
        self.target = target_of(self.seed, elements)
        self._target: list[float] = self.target.tolist()
        self._here = array("f", bytes(4 * elements))  # parameters
        # Memory of the outer step; empty without local steps.
        self._momentum = array("f", bytes(4 * elements if self.local_steps > 1 else 0))
        # With a seed of its own, a peer has to restore the state of another peer.
        if self.initial is not None:
            draw = np.random.default_rng([self.seed, 2, self.initial])
            self.parameters = draw.standard_normal(elements)
        self.moved: tuple[int, int] = (-1, -1)  # (last applied round, changed fragment)

    @property
    def parameters(self) -> Vector:
        """Copy of the parameters; assigning sets them."""
        return np.frombuffer(self._here.tobytes(), np.float32)

    @parameters.setter
    def parameters(self, values: NDArray[Any]) -> None:
        self._here = array("f", values.tolist())

    @property
    def digest(self) -> bytes:
        """Digest of the parameters and of the memory of the outer step. Equal digests mean bitwise
        equal replicas."""
        return payload_digest(self._shared)

    @property
    def _shared(self) -> bytes:
        """State that is the same on all peers after the same commits."""
        return self._here.tobytes() + self._momentum.tobytes()

    @property
    def distance(self) -> float:
        """Root mean square distance to the target."""
        apart = [here - there for here, there in zip(self._here, self._target, strict=True)]
        return sqrt(sum([each * each for each in apart]) / len(apart))

    def update(self, round_id: int, beside: Sequence[float] = ()) -> list[float]:
        """Return the honest update for a round, computed from the present parameters plus
        ``beside``. ``beside`` is empty, or the expected step of the round in progress."""
        noise = noise_of(f"{self.seed}/{self.peer}/{round_id}", len(self._target))
        size, blur = self.step_size, self.noise
        if self.local_steps > 1:  # one step as large as all local steps together
            size = 1.0 - (1.0 - size) ** self.local_steps
        start: Sequence[float] = self._here
        if beside:
            start = [here + each for here, each in zip(start, beside, strict=True)]
        return [
            size * (to - here + blur * z)
            for to, here, z in zip(self._target, start, noise, strict=True)
        ]

    def _fragment(self, round_id: int, collectives: int) -> slice:
        """Return the slice of the parameters that a round updates."""
        size = sum(self.sizes)
        start = size * fragment_of(round_id, collectives, self.fragments)
        return slice(start, start + size)

    def _cut(self, vector: Values) -> list[Values]:
        if len(self.sizes) == 1:
            return [vector]
        edges = itertools.accumulate(self.sizes, initial=0)
        return [vector[a:b] for a, b in itertools.pairwise(edges)]

    def move(self, apply: events.Apply) -> bytes:
        """Apply the result of a round. Return the digest of the aggregate, or b"" if there is no
        aggregate."""
        changed: Sequence[float] = self._here
        if apply.mix is not None:
            scale = apply.mix_scale
            changed = [
                here + scale * apart
                for here, apart in zip(changed, apply.mix.data.tolist(), strict=True)
            ]
        content = b"".join([payload.data.tobytes() for payload in apply.payloads])
        if content:
            rate = apply.rates[0] if apply.rates else 1.0
            part = self._fragment(apply.round_id, apply.collectives)
            moved = zip(changed[part], self._moved(content, part), strict=True)
            changed = [
                *changed[: part.start],
                *[here + rate * step for here, step in moved],
                *changed[part.stop :],
            ]
            self.moved = apply.round_id, part.start // sum(self.sizes)
        self._here = array("f", changed)
        return payload_digest(content) if content else b""

    def _moved(self, content: bytes, part: slice) -> Values:
        """Return the step for an aggregate: the aggregate itself or, with local steps, the outer
        step. The memory of the outer step is updated."""
        aggregate = memoryview(content).cast("f")
        if self.local_steps == 1:
            return aggregate
        moved, memory = self._outer_step(aggregate, part)
        self._momentum[part] = array("f", memory)
        return moved

    def _outer_step(
        self, aggregate: Values, part: slice = WHOLE
    ) -> tuple[list[float], list[float]]:
        """Return the outer step for ``part`` of the model, and the new memory."""
        memory = array(
            "f",
            [
                OUTER.momentum * held + each
                for held, each in zip(self._momentum[part], aggregate, strict=True)
            ],
        )
        moved = [
            OUTER.lr * (each + OUTER.momentum * held)
            for held, each in zip(memory, aggregate, strict=True)
        ]
        return moved, memory.tolist()

    def load(self, packed: bytes) -> str:
        """Load parameters and memory from a packed state. Return the reason why this is not
        possible, or ""."""
        most, parameters = len(self._shared), 4 * len(self._here)
        if len(packed) != most + OWN_BYTES:
            return f"{len(packed)} bytes do not fit {most + OWN_BYTES}"
        self._here = array("f", packed[:parameters])
        self._momentum = array("f", packed[parameters:most])
        return ""
