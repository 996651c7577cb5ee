"""What stands in for the user's training in a simulated peer: a short vector that descends towards a target."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, NamedTuple, Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from gossip.core import events
from gossip.core.events import Effect, Event, Payload
from gossip.core.messages import DIGEST_BYTES, PeerId

Vector = NDArray[np.float32]


class Judged(NamedTuple):
    """An aggregate ``(d,)``, and what its rule says of each row: how much it counts, how far out it lies (1: typical)."""

    aggregate: NDArray[np.float64]
    weights: tuple[float, ...]
    outlyingness: tuple[float, ...]


Reducer = Callable[[Sequence[NDArray[np.float64]], Sequence[int], int], NDArray[np.float64] | Judged]
"""``(rows of (d,), samples of each, f) -> (d,)``; a bare vector blames nobody. f is what the core says each time: it falls as
liars are found out."""

TRAINER_EFFECTS = (events.Aggregate, events.Apply, events.Go, events.TakeSnapshot, events.Restore)


class Trainer(Protocol):
    """Answers the effects that a driver does not carry out itself."""

    def on_start(self, now: float) -> list[tuple[float, Event]]:
        """Events for the core and the seconds after which each happens."""
        ...

    def on_effect(self, effect: Effect, now: float) -> list[tuple[float, Event]]:
        """Likewise, for an effect of ``TRAINER_EFFECTS``."""
        ...

    def progress(self, now: float) -> events.TrainerProgress:
        """What the node would read from shared memory."""
        ...

    def still_says(self, event: Event) -> bool:
        """Whether an answer that it gave earlier is still what it has to say, now that the time has come."""
        ...


def digest_of(*arrays: NDArray[Any]) -> bytes:
    """blake2b-16 of the arrays' bytes, one after the other."""
    return hashlib.blake2b(b"".join([array.tobytes() for array in arrays]), digest_size=DIGEST_BYTES).digest()


def payload_of(array: NDArray[Any], digest: bool = False) -> Payload:
    """A payload with its facts. The array is made read-only, since peers of one simulation share it."""
    array.setflags(write=False)
    finite = bool(np.logical_and.reduce(np.isfinite(array))) if array.dtype.kind == "f" else True
    return Payload(array, array.nbytes, finite, digest_of(array) if digest else b"")


def noise_of(name: str, elements: int) -> NDArray[np.float64]:
    """Numbers with mean 0 and variance 1 that depend on ``name`` alone. Making a numpy generator takes 20 times as long."""
    drawn = np.frombuffer(hashlib.shake_128(name.encode()).digest(8 * elements), np.uint16).reshape(4, elements)
    uniform = drawn.astype(np.float64) - 32767.5
    drawn_four: NDArray[np.float64] = np.add.reduce(uniform)  # together they are bell-shaped enough
    return drawn_four / (2.0 * 18918.6)


def weighted_mean(rows: Sequence[NDArray[np.float64]], samples: Sequence[int], f: int = 0) -> NDArray[np.float64]:
    """The sample-weighted mean, summed in the order of ``rows``, so that every peer gets the same bits. It tolerates no liars."""
    total = np.zeros_like(rows[0])
    for row, weight in zip(rows, samples, strict=True):
        total += row * float(weight)
    return total / float(sum(samples))


class ToyTrainer:
    """A float32 vector with the interface of a trainer.

    Its update of a round is a step towards a target that all peers share, plus noise that depends on (seed, peer, round)
    alone; applying an aggregate adds it. ``applied`` lists (round, digest of the aggregate, b"" when there was none).

    Args:
        sizes: elements of each shard.
        compute_s: bounds of the time from ``Go`` to ``Contributed``.
        rule_s: from ``Aggregate`` to ``Aggregated``.
        slowness: factor on the compute time.
        lie: changes the update before it is offered, ``(update, round) -> update``.
        samples_total: of an epoch; when given, the trainer reads its data through the core.
    """

    def __init__(
        self,
        peer: PeerId,
        seed: int,
        *,
        incarnation: int = 0,
        sizes: tuple[int, ...] = (8,),
        batch: int = 4,
        compute_s: tuple[float, float] = (0.005, 0.015),
        rule_s: float = 0.0001,
        slowness: float = 1.0,
        step_size: float = 0.1,
        noise: float = 0.05,
        lie: Callable[[Vector, int], Vector] | None = None,
        reducer: Reducer = weighted_mean,
        samples_total: int | None = None,
        initial: int | None = None,
    ) -> None:
        self.peer, self.seed, self.sizes, self.batch = peer, seed, sizes, batch
        self.compute_s, self.rule_s = compute_s, rule_s
        self.slowness, self.step_size, self.noise = slowness, step_size, noise
        self.lie, self.reducer, self.samples_total = lie, reducer, samples_total
        self.rng = random.Random(f"toy/{seed}/{peer}/{incarnation}")
        elements = sum(sizes)
        self.target = np.random.default_rng([seed, 1]).standard_normal(elements).astype(np.float32)
        # With ``initial`` a peer begins with weights of its own and has to take over the swarm's.
        self.parameters: Vector = (
            np.zeros(elements, np.float32)
            if initial is None
            else np.random.default_rng([seed, 2, initial]).standard_normal(elements).astype(np.float32)
        )
        self.next_round = 0
        self.computing: events.Contributed | None = None  # from the parameters as they are; a real one does one thing at a time
        self.changed_at = 0.0
        self.applied: list[tuple[int, bytes]] = []
        self.restored: list[tuple[int, bytes]] = []
        self.computed: list[tuple[int, int]] = []  # (round, samples)
        self.served: list[int] = []  # rounds for which this peer aggregated

    @property
    def digest(self) -> bytes:
        """Of the parameters: equal digests mean bit-identical replicas."""
        return digest_of(self.parameters)

    @property
    def distance(self) -> float:
        """Root mean square distance to the target."""
        apart = self.parameters.astype(np.float64) - self.target
        return sqrt(float(np.add.reduce(apart * apart)) / len(apart))

    def on_start(self, now: float) -> list[tuple[float, Event]]:
        self.changed_at = now
        layout = hashlib.blake2b(repr(self.sizes).encode(), digest_size=DIGEST_BYTES).digest()
        answers: list[tuple[float, Event]] = [(0.001, events.Prepared(layout, self.digest, self.sizes))]
        if self.samples_total is not None:
            answers.append((0.001, events.Sharded(self.samples_total, self.batch)))
        return answers

    def progress(self, now: float) -> events.TrainerProgress:
        return events.TrainerProgress(self.next_round, max(0.0, now - self.changed_at))

    def still_says(self, event: Event) -> bool:
        return not isinstance(event, events.Contributed) or event is self.computing

    def on_effect(self, effect: Effect, now: float) -> list[tuple[float, Event]]:
        match effect:
            case events.Go():
                return self._compute(effect)
            case events.Aggregate():
                return [(self.rule_s, self._aggregate(effect))]
            case events.Apply():
                self._apply(effect, now)
                return [(0.0002, events.Applied(effect.round_id))]
            case events.TakeSnapshot():
                packed = self.parameters.copy().view(np.uint8)
                return [(0.0005, events.SnapshotTaken(self.next_round, payload_of(packed, digest=True)))]
            case events.Restore():
                return [(0.0005, self._restore(effect, now))]
            case (
                events.Send()
                | events.SetTimer()
                | events.CancelTimer()
                | events.Connect()
                | events.Disconnect()
                | events.Report()
                | events.Committed()
                | events.Halt()
            ):
                raise AssertionError(f"{type(effect).__name__} is not for the trainer")
            case _:
                assert_never(effect)

    def update(self, round_id: int) -> Vector:
        """The honest update for a round, from the parameters as they are."""
        noise = noise_of(f"{self.seed}/{self.peer}/{round_id}", len(self.target))
        step = self.step_size * (self.target - self.parameters) + self.noise * self.step_size * noise
        return step.astype(np.float32)

    def _compute(self, go: events.Go) -> list[tuple[float, Event]]:
        pause_s = self.rng.uniform(*self.compute_s) * self.slowness
        samples = self.batch if go.samples is None else sum(stop - start for start, stop in go.samples.ranges)
        self.computed.append((go.round_id, samples))
        honest = self.update(go.round_id)
        offered = honest if self.lie is None else self.lie(honest, go.round_id).astype(np.float32)
        payloads = tuple(payload_of(part.copy()) for part in self._cut(offered)) if samples else ()
        parameters = payload_of(self.parameters.copy()) if go.want_parameters else None
        sketch = self.parameters[:8].tobytes() if go.want_parameters else b""
        contributed = events.Contributed(
            go.round_id,
            samples,
            payloads,
            loss=self.distance,
            parameters=parameters,
            sketch=sketch,
            own=payload_of(honest.copy()) if self.lie is not None and samples else None,
        )
        self.computing = contributed
        return [(pause_s, contributed)]

    def _cut(self, vector: Vector) -> list[Vector]:
        if len(self.sizes) == 1:
            return [vector]
        edges = itertools.accumulate(self.sizes, initial=0)
        return [vector[a:b] for a, b in itertools.pairwise(edges)]

    def _aggregate(self, ask: events.Aggregate) -> events.Aggregated:
        self.served.append(ask.round_id)
        rows = [row.payload.data.astype(np.float64) for row in ask.rows]
        samples = [row.samples for row in ask.rows]
        if not rows or sum(samples) == 0:
            return events.Aggregated(ask.ticket, None, reason="nothing to aggregate")
        if ask.mix:
            assert ask.own is not None, "mixing is centred on the own row"
            rows = [row - rows[ask.own] for row in rows]
            samples = [1] * len(rows)
        found = self.reducer(rows, samples, ask.f)
        if not isinstance(found, Judged):
            found = Judged(found, tuple(weight / sum(samples) for weight in samples), (1.0,) * len(rows))
        result = found.aggregate.astype(np.float32)
        if not np.logical_and.reduce(np.isfinite(result)):
            return events.Aggregated(ask.ticket, None, reason="the aggregate is not finite")
        return events.Aggregated(ask.ticket, payload_of(result, digest=True), found.weights, found.outlyingness)

    def _apply(self, apply: events.Apply, now: float) -> None:
        parts = [payload.data for payload in apply.payloads]
        changed = self.parameters.copy()
        if apply.mix is not None:
            changed += np.float32(apply.mix_scale) * apply.mix.data
        if parts:
            changed += np.concatenate(parts)
        self.parameters = changed
        self.applied.append((apply.round_id, digest_of(*parts) if parts else b""))
        self.next_round, self.changed_at = apply.round_id + 1, now

    def _restore(self, restore: events.Restore, now: float) -> events.Restored:
        packed = np.asarray(restore.payload.data)
        if packed.nbytes != self.parameters.nbytes:
            return events.Restored(restore.round_id, f"{packed.nbytes} bytes do not fit {self.parameters.nbytes}")
        self.parameters, self.computing = packed.view(np.float32).copy(), None
        self.next_round, self.changed_at = restore.round_id, now
        self.restored.append((restore.round_id, self.digest))
        return events.Restored(restore.round_id)
