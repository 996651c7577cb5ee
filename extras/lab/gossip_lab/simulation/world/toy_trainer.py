"""Stand-in for the user's training in a simulated peer: a short vector that descends towards a
target."""

from __future__ import annotations

import hashlib
import itertools
import random
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from math import isfinite, sqrt
from typing import Any, NamedTuple, Protocol, TypeAlias, assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from gossip.aggregators import outer
from gossip.core import DIGEST_BYTES, PIECE_BYTES, Effect, Event, Payload, PeerId, Row, events
from gossip.vectors import bytes_for, described, fragment_of, from_bytes, to_bytes

Vector = NDArray[np.float32]
STEP_SIZE = 0.1
NOISE = 0.05
PREPARE_S = 0.001
SNAPSHOT_S = 0.0005  # to copy or restore the state
OWN_BYTES = 8  # of a packed state, behind the parameters and the memory of the outer step
OUTER = outer.OuterStep(outer.NESTEROV, outer.LR, outer.MOMENTUM)
"""Outer step that follows a round of local steps."""

WHOLE = slice(None)

CALLS = 0.2
"""Share of the rounds in which all scripts call a collective operation, for a model in
fragments."""
CALL = b"called"

FIRST, FURTHER = 2, 5
"""Kinds of steps of a script with two optimizers: the second one steps on the same samples."""

DRAINS = 8
"""Interval of rounds after which no round is computed beside another, as before a checkpoint."""

Values = Sequence[float]
"""A vector for arithmetic. For eight numbers Python is several times as fast as numpy."""


class RuleResult(NamedTuple):
    """An aggregate ``(d,)``, and its rule's verdict on each row: its weight, and its outlyingness
    (1: typical)."""

    aggregate: Values
    weights: tuple[float, ...]
    outlyingness: tuple[float, ...]
    length: float = 0.0  # of an update, if the rule returns it


class RuleRefusal(NamedTuple):
    """The rule made nothing of the updates; ``reason`` is its own text."""

    reason: str


Reducer = Callable[..., Values | RuleResult | RuleRefusal]
"""``(rows of (d,), samples of each, f, previous, round_id) -> (d,)``; a bare vector has no
verdicts. f is that of the present request: it falls as Byzantine peers are detected. previous is
the last aggregate, if there is one. A rule that returns lengths gets ``usual=`` of recent
rounds."""

Step = Callable[[events.Aggregate], events.Aggregated]
"""Runs the steps ``measure``, ``decide`` and ``combine`` of a rule with shards that decide
together."""

TRAINER_EFFECTS = (
    events.Aggregate,
    events.Apply,
    events.StartRound,
    events.TakeSnapshot,
    events.Restore,
    events.RebuildState,
    events.StateConfirmed,
    events.LedgerReply,
    *get_args(events.PipelineTask),
)


class ComputedAhead:
    """End of a computation beside a round. The core does not receive this event."""


Said: TypeAlias = Event | ComputedAhead


class Trainer(Protocol):
    """Handles the effects that a driver does not carry out itself."""

    def on_start(self, now: float) -> list[tuple[float, Said]]:
        """Return events for the core, each with the seconds after which it happens."""
        ...

    def on_effect(self, effect: Effect, now: float) -> list[tuple[float, Said]]:
        """Return such events for an effect of ``TRAINER_EFFECTS``."""
        ...

    def progress(self, now: float) -> events.TrainerProgress:
        """Return the progress that the node would read from shared memory."""
        ...

    def is_still_valid(self, event: Said) -> bool:
        """Whether an answer that it gave earlier still holds now that it is due."""
        ...

    def put_off(self, said: Said) -> Sequence[Effect]:
        """Return, in order, the effects that were put off until the trainer had sent ``said``."""
        ...


def digest_of(*arrays: NDArray[Any]) -> bytes:
    """Return blake2b-16 of the arrays' bytes, one after the other."""
    return hashlib.blake2b(
        b"".join([array.tobytes() for array in arrays]), digest_size=DIGEST_BYTES
    ).digest()


def payload_of(array: NDArray[Any], digest: bool = False) -> Payload:
    """Return a payload with its facts. The array is made read-only, as the peers of a simulation
    share it."""
    array.setflags(write=False)
    finite = bool(np.logical_and.reduce(np.isfinite(array))) if array.dtype.kind == "f" else True
    content = to_bytes(array)
    return Payload(array, len(content), finite, digest_of(content) if digest else b"")


def payload_of_values(values: Iterable[float], digest: bool = False) -> Payload:
    """Return the payload of float32 ``values``: numbers that are too large become infinite."""
    packed = array("f", values)
    content = to_bytes(np.frombuffer(packed.tobytes(), np.float32))
    # A sum of float32 in float64 stays finite if all are.
    name = hashlib.blake2b(content.data, digest_size=DIGEST_BYTES).digest() if digest else b""
    return Payload(from_bytes(content), len(content), isfinite(sum(packed)), name)


def noise_of(name: str, elements: int) -> list[float]:
    """Return numbers with mean 0 and variance 1 that depend on ``name`` alone. Making a generator
    would take 20 times as long."""
    drawn = struct.unpack(
        f"<{4 * elements}H", hashlib.shake_128(name.encode()).digest(8 * elements)
    )
    fours = zip(*[iter(drawn)] * 4, strict=True)
    # the sum of four is bell-shaped enough
    return [(a + b + c + d - 131070.0) / 37837.2 for a, b, c, d in fours]


def packed_of(parts: Sequence[bytes], piece_bytes: int = PIECE_BYTES) -> Payload:
    """Return a packed state in parts, with its facts. ``piece_bytes``: size of a piece, if the
    first part is larger."""
    content = np.frombuffer(b"".join(parts), np.uint8)
    return Payload(
        content,
        content.nbytes,
        True,
        *described(content, [len(part) for part in parts], piece_bytes),
    )


def bytes_of_state(payload: Payload) -> bytes:
    """Return the bytes of a packed state for a restore."""
    data = payload.data if isinstance(payload.data, tuple) else (payload.data,)
    return b"".join([part.tobytes() for part in data])


@cache
def target_of(seed: int, elements: int) -> Vector:
    """Return the target that all peers of a run descend to."""
    target: Vector = np.random.default_rng([seed, 1]).standard_normal(elements).astype(np.float32)
    target.setflags(write=False)
    return target


def weighted_mean(
    rows: Sequence[Values],
    samples: Sequence[int],
    f: int = 0,
    previous: Values | None = None,
    round_id: int = 0,
) -> list[float]:
    """Return the sample-weighted mean, summed in the order of ``rows``, so that every peer gets the
    same bits. It tolerates no Byzantine peers, has no memory, and does not depend on the round."""
    total = [0.0] * len(rows[0])
    for row, weight in zip(rows, samples, strict=True):
        total = [sum_so_far + value * weight for sum_so_far, value in zip(total, row, strict=True)]
    everything = sum(samples)
    return [value / everything for value in total]


class MadeOf(NamedTuple):
    """Inputs that an update was computed from."""

    round_id: int  # in which it was offered
    lacks: int  # rounds that were applied since then
    restores: int  # restores of others' states since then
    samples: events.DataSlice | None  # that it has read


@dataclass(frozen=True, slots=True)
class _Draft:
    """An update that may be offered in the round of ``go``, which may be a guess."""

    go: events.StartRound
    honest: list[float]
    offered: list[float]
    samples: int
    applied: int  # rounds that its trainer had applied by then
    restores: int  # restores of others' states by then


@dataclass(eq=False, repr=False)
class ToyTrainer:
    """A float32 vector with the interface of a trainer.

    Its update of a round is a step towards a target that all peers share, plus noise that depends
    on (seed, peer, round) alone; applying an aggregate adds it. While it computes it does nothing
    else. ``applied`` lists (round, digest of the aggregate, b"" if there was none).

    Args:
        sizes: Elements of each shard.
        compute_s: Bounds of the time from ``StartRound`` to ``Contributed``.
        rule_s: Time from ``Aggregate`` to ``Aggregated``.
        slowness: Factor on the compute time.
        lie: Changes the update before it is offered, ``(update, round) -> update``.
        samples_total: Samples of an epoch; if given, the trainer reads its data through the core.
        step: Runs the rule if the shards decide together.
        by_samples: Whether a round takes ``compute_s`` for a whole batch, and less in proportion
            for a smaller one.
        rates: Learning rates of its script, as a multiple of its own step size.
        rounds: Rounds that its script trains for.
        second_reading: An update as it is in its owner's memory when the rule reads it, ``(row,
            round, now) -> update``.
        prepare_s: Time from its start until it has built its model.
        piece_bytes: Size of a piece of its state.
        overlap: 1: it computes the next update beside the round of the last one.
        local_steps: Steps of an update. With more than one ``OUTER`` applies the aggregate, and its
            memory belongs to the state. Every other update is of fewer steps, on a part of the
            samples.
        fragments: Number of fragments of the model, each as large as an update. With more than one
            its script also calls collective operations, in rounds that are no steps.
        further_every: Steps before each step of the second optimizer of its script; 0: there is
            none.
        compares_every: Rounds between two comparisons of its replica; 0: only if the core requests
            one.
        corrupted_in: Rounds after which bits of its parameters flip.
    """

    peer: PeerId
    seed: int
    _: KW_ONLY
    incarnation: int = 0
    sizes: tuple[int, ...] = (8,)
    batch: int = 4
    compute_s: tuple[float, float] = (0.005, 0.015)
    rule_s: float = 0.0001
    slowness: float = 1.0
    step_size: float = STEP_SIZE
    noise: float = NOISE
    lie: Callable[[Vector, int], Vector] | None = None
    reducer: Reducer = weighted_mean
    step: Step | None = None
    second_reading: Callable[[Row, int, float], Vector] | None = None
    samples_total: int | None = None
    initial: int | None = None
    rates: tuple[float, ...] = ()
    rounds: int | None = None
    prepare_s: float = PREPARE_S
    snapshot_s: float = SNAPSHOT_S
    by_samples: bool = False
    piece_bytes: int = PIECE_BYTES
    local_steps: int = 1
    overlap: int = 0
    fragments: int = 1
    further_every: int = 0
    compares_every: int = 0
    corrupted_in: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.rng = random.Random(f"toy/{self.seed}/{self.peer}/{self.incarnation}")
        elements = self.fragments * sum(self.sizes)
        self.target = target_of(self.seed, elements)
        self._target: list[float] = self.target.tolist()
        self._here = array("f", bytes(4 * elements))  # the parameters
        # memory of the outer step; empty if updates are of one step
        self._momentum = array("f", bytes(4 * elements if self.local_steps > 1 else 0))
        # a peer begins with weights of its own and has to restore the swarm's
        if self.initial is not None:
            draw = np.random.default_rng([self.seed, 2, self.initial])
            self.parameters = draw.standard_normal(elements)
        self.next_round = 0
        self.confirmed: events.StateConfirmed | None = None
        self.ledger: events.LedgerReply | None = None
        self._steps = 0  # since the last one of the second optimizer
        self._awaits = False  # whether a step of the kind that it has begun is pending
        self._asked = -1  # the last round before which it requested a confirmation
        # the update in computation; with overlap also one that is not requested yet
        self.computing: events.Contributed | ComputedAhead | None = None
        self.made_of: MadeOf | None = None  # the update offered last
        self.ahead = self.dropped = 0  # updates computed beside a round that were offered, or not
        self._go: events.StartRound | None = None  # the round that it has answered last
        self._guess: events.StartRound | None = None  # the round that will probably follow
        self._draft: _Draft | None = None  # finished or unfinished update computed beside a round
        self._in_flight: list[float] = []  # its own update in that round
        self._put_off: list[Effect] = []  # effects that wait while it computes
        self.changed_at = 0.0
        self.applied: list[tuple[int, bytes]] = []
        self.moved: tuple[int, int] = (-1, -1)  # the round applied last, and the fragment it moved
        self.restored: list[tuple[int, bytes]] = []
        self.computed: list[tuple[int, int]] = []  # (round, samples)
        self.served: list[int] = []  # rounds for which this peer aggregated

    @property
    def parameters(self) -> Vector:
        """Copy of the parameters."""
        return np.frombuffer(self._here.tobytes(), np.float32)

    @parameters.setter
    def parameters(self, values: NDArray[Any]) -> None:
        self._here = array("f", values.tolist())

    @property
    def digest(self) -> bytes:
        """Digest of the parameters and the memory of the outer step: equal digests mean
        bit-identical replicas."""
        return hashlib.blake2b(self._shared, digest_size=DIGEST_BYTES).digest()

    @property
    def _shared(self) -> bytes:
        """State that is the same on all peers after the same commits."""
        return self._here.tobytes() + self._momentum.tobytes()

    @property
    def distance(self) -> float:
        """Root mean square distance to the target."""
        apart = [here - there for here, there in zip(self._here, self._target, strict=True)]
        return sqrt(sum([each * each for each in apart]) / len(apart))

    def on_start(self, now: float) -> list[tuple[float, Said]]:
        self.changed_at = now
        said = repr((self.sizes, self.fragments)).encode()
        layout = hashlib.blake2b(said, digest_size=DIGEST_BYTES).digest()
        answers: list[tuple[float, Said]] = [
            (
                self.prepare_s,
                events.Prepared(layout, self.digest, tuple(map(bytes_for, self.sizes))),
            )
        ]
        if self.samples_total is not None:
            told = events.DataConfigured(self.samples_total, self.batch, ahead=self.overlap)
            answers.append((self.prepare_s, told))
        return answers

    def progress(self, now: float) -> events.TrainerProgress:
        return events.TrainerProgress(self.next_round, max(0.0, now - self.changed_at))

    def is_still_valid(self, event: Said) -> bool:
        is_update = isinstance(event, events.Contributed | ComputedAhead)
        return not is_update or event is self.computing

    def put_off(self, said: Said) -> Sequence[Effect]:
        if said is not self.computing:
            return ()
        self.computing = None
        waiting, self._put_off = self._put_off, []
        if isinstance(said, events.Contributed) and self.overlap and said.samples:
            self._guess = self._following()
            return waiting if self._guess is None else [*waiting, self._guess]
        return waiting

    def _following(self) -> events.StartRound | None:
        """Return the round that will probably follow the last one, if it is computed beside it."""
        go = self._go
        assert go is not None
        following = replace(go, round_id=go.round_id + 1)
        at_end = self.rounds is not None and following.round_id >= self.rounds
        if at_end or following.round_id % DRAINS == 0 or self._calls(following.round_id):
            return None
        if (had := go.samples) is None:
            return following
        (epoch, ranges), *_ = had.coming or [(-1, ())]
        if epoch != had.epoch:
            return None
        return replace(following, samples=replace(had, ranges=ranges))

    def _start(self, effect: events.StartRound) -> list[tuple[float, Said]]:
        if effect is self._guess:
            return self._compute_ahead()
        if self.rounds is None or effect.round_id < self.rounds:
            return self._compute(effect)
        # a second time, from another state of the round
        again, self._asked = self._asked == effect.round_id, effect.round_id
        return [] if again else [(0.0002, events.ConfirmState(effect.round_id))]

    def _has_to_wait(self, effect: Effect) -> bool:
        """Whether the effect has to wait until the computation ends: all but a round that is
        started again, with its samples."""
        again = isinstance(effect, events.StartRound)
        return isinstance(self.computing, ComputedAhead) or (
            self.computing is not None and not again
        )

    def on_effect(self, effect: Effect, now: float) -> list[tuple[float, Said]]:
        if isinstance(effect, events.Aggregate):  # the node itself does that
            return [(self.rule_s, self._aggregate_in_place(effect, now))]
        if self._has_to_wait(effect):
            self._put_off.append(effect)
            return []
        match effect:
            case events.StartRound():
                return self._start(effect)
            case events.Apply():
                self._apply(effect, now)
                return [(0.0002, events.Applied(effect.round_id))]
            case events.TakeSnapshot():
                # The state that all peers share, the settings of their scripts, and each peer's
                # own.
                packed = [
                    self._shared,
                    struct.pack("<f", self.step_size),
                    struct.pack("<i", self.peer),
                ]
                sizes = tuple([len(part) for part in packed])
                return [
                    (
                        self.snapshot_s,
                        events.SnapshotTaken(
                            self.next_round, packed_of(packed, self.piece_bytes), sizes
                        ),
                    )
                ]
            case events.Restore():
                return [(self.snapshot_s, self._restore(effect, now))]
            case events.StateConfirmed():
                self.confirmed = effect
                return [(0.0002, events.Stop("finished", completed=True))]
            case events.LedgerReply():
                self.ledger = effect
                return []
            case (
                events.Send()
                | events.AfterSends()
                | events.SetTimer()
                | events.CancelTimer()
                | events.Connect()
                | events.Disconnect()
                | events.Report()
                | events.Committed()
                | events.Halt()
                | events.RebuildState()
                | events.RunForward()
                | events.RunBackward()
                | events.DropForward()
                | events.ResetSum()
                | events.CollectUpdate()
            ):
                raise AssertionError(f"{type(effect).__name__} is not for the trainer")
            case _:
                assert_never(effect)

    def update(self, round_id: int, beside: Sequence[float] = ()) -> list[float]:
        """Return the honest update for a round, from the present parameters, or with ``beside``,
        the update of the last round, on top of them."""
        noise = noise_of(f"{self.seed}/{self.peer}/{round_id}", len(self._target))
        size, blur = self.step_size, self.noise
        if self.local_steps > 1:  # together these steps come as far as one of this size
            size = 1.0 - (1.0 - size) ** self.local_steps
        start: Sequence[float] = self._here
        if beside:
            start = [here + each for here, each in zip(start, beside, strict=True)]
        return [
            size * (to - here + blur * z)
            for to, here, z in zip(self._target, start, noise, strict=True)
        ]

    def _pause_s(self, samples: int) -> float:
        pause_s = self.rng.uniform(*self.compute_s) * self.slowness
        return pause_s * max(1, samples) / self.batch if self.by_samples else pause_s

    def _drafted(self, go: events.StartRound, beside: Sequence[float] = ()) -> _Draft:
        samples = (
            self.batch
            if go.samples is None
            else self._used(go.round_id, sum(stop - start for start, stop in go.samples.ranges))
        )
        honest = self.update(go.round_id, beside)[self._fragment(go.round_id, go.collectives)]
        offered = (
            honest
            if self.lie is None
            else self.lie(np.array(honest, np.float32), go.round_id).astype(np.float32).tolist()
        )
        return _Draft(go, honest, offered, samples, len(self.applied), len(self.restored))

    def _fragment(self, round_id: int, collectives: int) -> slice:
        """Return the elements that a round is on."""
        size = sum(self.sizes)
        start = size * fragment_of(round_id, collectives, self.fragments)
        return slice(start, start + size)

    def _calls(self, round_id: int) -> bool:
        """Whether all scripts call a collective operation in this round."""
        lot = random.Random(f"calls/{self.seed}/{round_id}")
        return self.fragments > 1 and lot.random() < CALLS

    def _compute(self, go: events.StartRound) -> list[tuple[float, Said]]:
        if self._calls(go.round_id):
            self._go = go
            self.computing = events.Contributed(go.round_id, 0, (), None, collective=CALL)
            return [(self._pause_s(0), self.computing)]
        if self._awaits:  # others were at a step of another kind
            self._go = go
            self.computing = events.Contributed(go.round_id, 0, (), None, kind=self._kind)
            return [(self._pause_s(0), self.computing)]
        self._awaits = self.further_every > 0
        draft, self._draft, self._go = self._draft, None, go
        if draft is not None and self._is_of_use(draft, go):
            self.ahead += 1
            pause_s = 0.0002
        else:
            self.dropped += draft is not None
            draft = self._drafted(go)
            pause_s = self._pause_s(draft.samples)
        self.computed.append((go.round_id, draft.samples))
        lacks, restores = len(self.applied) - draft.applied, len(self.restored) - draft.restores
        self.made_of = MadeOf(go.round_id, lacks, restores, draft.go.samples)
        self._in_flight = draft.honest
        contributed = self._contribution(draft, go)
        self.computing = contributed
        return [(pause_s, contributed)]

    def _is_of_use(self, draft: _Draft, go: events.StartRound) -> bool:
        """Whether an update computed beside the last round can be offered in this one."""
        mine, theirs = draft.go.samples, go.samples
        in_turn = draft.go.round_id == go.round_id == self.next_round
        in_turn = in_turn and draft.go.collectives == go.collectives  # of the same fragment
        same = (
            mine is None
            or theirs is None
            or (mine.epoch, mine.ranges)
            == (
                theirs.epoch,
                theirs.ranges,
            )
        )
        return in_turn and same and (mine is None) == (theirs is None)

    def _compute_ahead(self) -> list[tuple[float, Said]]:
        go, self._guess = self._guess, None
        assert go is not None
        if self.computing is not None or self.next_round != go.round_id - 1:
            return []
        # With fragments the update computed beside the last round is on another part of the model.
        whole = self.local_steps > 1 and self.fragments == 1
        beside = self._outer_step(self._in_flight)[0] if whole else ()
        self._draft = self._drafted(go, beside)
        self.computing = ComputedAhead()
        return [(self._pause_s(self._draft.samples), self.computing)]

    def _contribution(self, draft: _Draft, go: events.StartRound) -> events.Contributed:
        samples = draft.samples
        payloads = (
            tuple([payload_of_values(part) for part in self._cut(draft.offered)]) if samples else ()
        )
        parameters = payload_of_values(self._here) if go.want_parameters else None
        sketch = self._here[:8].tobytes() if go.want_parameters else b""
        return events.Contributed(
            go.round_id,
            samples,
            payloads,
            loss=distance if isfinite(distance := self.distance) else None,  # as a node does
            parameters=parameters,
            sketch=sketch,
            own=payload_of_values(draft.honest) if self.lie is not None and samples else None,
            rates=self.rates if samples else (),
            replica=self.digest if self._compares(go) else b"",
            kind=self._kind,
        )

    @property
    def _kind(self) -> int:
        """Kind of the step that its script is at."""
        if not self.further_every:
            return 0
        return FIRST if self._steps < self.further_every else FURTHER

    def _note_step(self, apply: events.Apply) -> None:
        """Record that the step that its script awaits has been applied."""
        if not self._awaits or self._go is None or apply.round_id < self._go.round_id:
            return
        if apply.kind in (0, self._kind):
            self._awaits = False
            self._steps = 0 if self._kind == FURTHER else self._steps + 1

    def _compares(self, go: events.StartRound) -> bool:
        regular = self.compares_every and go.round_id % self.compares_every == 0
        plain = self.overlap == 0 and self.local_steps == 1 and self._kind != FURTHER
        return plain and bool(regular or go.compares)

    def _used(self, round_id: int, samples: int) -> int:
        """Return how many samples of its slice the trainer uses. With local steps a peer may use
        fewer than others, and leaves the rest. With overlap it uses all."""
        if self.local_steps == 1 or self.overlap or samples < 2:
            return samples
        lot = random.Random(f"steps/{self.seed}/{self.peer}/{round_id}")
        return lot.choice([samples, lot.randint(1, samples)])

    def _cut(self, vector: Values) -> list[Values]:
        if len(self.sizes) == 1:
            return [vector]
        edges = itertools.accumulate(self.sizes, initial=0)
        return [vector[a:b] for a, b in itertools.pairwise(edges)]

    def _aggregate_in_place(self, ask: events.Aggregate, now: float) -> events.Aggregated:
        """Aggregate the updates as they are in memory by now. As in a node, updates that are no
        longer finite are left out and have no weight."""
        if self.second_reading is None or ask.step != "whole" or ask.mix:
            return self._aggregate(ask)
        rows = [
            row
            if row.peer == self.peer
            else replace(row, payload=payload_of(self.second_reading(row, ask.round_id, now)))
            for row in ask.rows
        ]
        counted = [row.payload.finite for row in rows]
        if rows and not any(counted):
            return events.Aggregated(ask.ticket, None, reason=events.NO_ROWS)
        left = tuple([row for row in rows if row.payload.finite])
        own = None if ask.own is None else sum(counted[: ask.own])
        answer = self._aggregate(replace(ask, rows=left, own=own))
        if answer.payload is None:
            return answer
        weights, far = iter(answer.weights), iter(answer.outlyingness)
        return replace(
            answer,
            weights=tuple([next(weights) if counts else 0.0 for counts in counted]),
            outlyingness=tuple([next(far) if counts else 1.0 for counts in counted]),
        )

    def _aggregate(self, ask: events.Aggregate) -> events.Aggregated:
        self.served.append(ask.round_id)
        rows: list[list[float]] = [row.payload.data.tolist() for row in ask.rows]
        samples = [row.samples for row in ask.rows]
        if not rows or sum(samples) == 0:
            return events.Aggregated(ask.ticket, None, reason="nothing to aggregate")
        if ask.step != "whole":
            assert self.step is not None, "nobody has said how its shards decide together"
            return self.step(ask)
        if ask.mix:
            assert ask.own is not None, "mixing is centred on the own row"
            center = rows[ask.own]
            rows = [[value - own for value, own in zip(row, center, strict=True)] for row in rows]
            samples = [1] * len(rows)
        previous = ask.previous.data.tolist() if ask.previous is not None else None
        usual = {"usual": ask.usual} if ask.usual else {}
        found = self.reducer(rows, samples, ask.f, previous, ask.round_id, **usual)
        if isinstance(found, RuleRefusal):
            return events.Aggregated(ask.ticket, None, reason=found.reason)
        if not isinstance(found, RuleResult):
            everything = sum(samples)
            found = RuleResult(
                found, tuple([weight / everything for weight in samples]), (1.0,) * len(rows)
            )
        values = found.aggregate
        if ask.own_share:
            assert ask.own is not None, "a share of the own row, and there is none"
            pairs = zip(values, rows[ask.own], strict=True)
            values = [value + ask.own_share * (own - value) for value, own in pairs]
        result = payload_of_values(values, digest=True)
        if not result.finite:
            return events.Aggregated(ask.ticket, None, reason="the aggregate is not finite")
        outside = self._measure_outside(ask, previous)
        return events.Aggregated(
            ask.ticket,
            result,
            found.weights,
            found.outlyingness,
            outside=outside,
            length=found.length,
        )

    def _measure_outside(
        self, ask: events.Aggregate, previous: list[float] | None
    ) -> tuple[float, ...]:
        """Return the outlyingness of the rows outside, as if the rule had got all rows."""
        if not ask.outside:
            return ()
        everybody = sorted((*ask.rows, *ask.outside), key=lambda row: row.peer)
        values = [row.payload.data.tolist() for row in everybody]
        samples = [row.samples for row in everybody]
        found = self.reducer(values, samples, ask.f, previous, ask.round_id)
        if isinstance(found, RuleRefusal):
            return ()
        if not isinstance(found, RuleResult):
            return (1.0,) * len(ask.outside)
        far = zip(everybody, found.outlyingness, strict=True)
        return tuple([value for row, value in far if row in ask.outside])

    def _apply(self, apply: events.Apply, now: float) -> None:
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
        if apply.round_id in self.corrupted_in:
            flipped = bytearray(self._here.tobytes())
            flipped[2] ^= 1 + self.peer  # of a number that no step rounds away; differs by peer
            self._here = array("f", bytes(flipped))
        said = hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest() if content else b""
        self.applied.append((apply.round_id, said))
        self._note_step(apply)
        self.next_round, self.changed_at = apply.round_id + 1, now

    def _moved(self, content: bytes, part: slice) -> Values:
        """Return the step for an aggregate. With local steps this is the outer step, and its memory
        is updated."""
        aggregate = memoryview(content).cast("f")
        if self.local_steps == 1:
            return aggregate
        moved, memory = self._outer_step(aggregate, part)
        self._momentum[part] = array("f", memory)
        return moved

    def _outer_step(
        self, aggregate: Values, part: slice = WHOLE
    ) -> tuple[list[float], list[float]]:
        """Return the outer step of ``part`` of the model, and its new memory."""
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

    def _restore(self, restore: events.Restore, now: float) -> events.Restored:
        packed, most = bytes_of_state(restore.payload), len(self._shared)
        if len(packed) != most + OWN_BYTES:
            return events.Restored(
                restore.round_id, f"{len(packed)} bytes do not fit {most + OWN_BYTES}"
            )
        parameters = 4 * len(self._here)
        self._here = array("f", packed[:parameters])
        self._momentum = array("f", packed[parameters:most])
        self.next_round, self.changed_at = restore.round_id, now
        self._draft = None  # it was computed from other parameters
        self.restored.append((restore.round_id, self.digest))
        return events.Restored(restore.round_id)
