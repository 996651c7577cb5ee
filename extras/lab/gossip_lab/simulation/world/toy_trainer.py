"""Substitute for the user's training in a simulated peer: a short vector that descends towards a
target."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import NamedTuple, Protocol, TypeAlias, get_args

import numpy as np

from gossip.core import PIECE_BYTES, Effect, Event, digest_of, events
from gossip.vectors import bytes_for

from .toy_model import ToyModel
from .toy_payloads import Vector, bytes_of_state, packed_of, payload_of_values
from .toy_rule import ToyRule

PREPARE_S = 0.001
SNAPSHOT_S = 0.0005  # time to copy or restore the state

CALLS = 0.2
"""Share of the rounds in which all scripts call a collective operation, if the model has
fragments."""
CALL = b"called"

FIRST, FURTHER = 2, 5
"""Kinds of steps of a script with two optimizers. Both optimizers step on the same samples."""

DRAINS = 8
"""Number of rounds after which the trainer once does not compute ahead, as before a checkpoint."""

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
    """End of a computation ahead, during a round. The core does not receive this event."""


Said: TypeAlias = Event | ComputedAhead


class Trainer(Protocol):
    """Interface of trainers: they handle the effects that the driver does not carry out itself."""

    def on_start(self, now: float) -> list[tuple[float, Said]]:
        """Return (delay in seconds, event for the core) for each event after the start."""
        ...

    def on_effect(self, effect: Effect, now: float) -> list[tuple[float, Said]]:
        """Handle an effect of ``TRAINER_EFFECTS``. Return (delay in seconds, event) for each
        reply."""
        ...

    def progress(self, now: float) -> events.TrainerProgress:
        """Return the progress, which a real node reads from shared memory."""
        ...

    def is_still_valid(self, event: Said) -> bool:
        """Whether a delayed event is still valid when it is due."""
        ...

    def put_off(self, said: Said) -> Sequence[Effect]:
        """Return, in order, the effects that were deferred until the event ``said``."""
        ...


class MadeOf(NamedTuple):
    """Inputs from which an update was computed."""

    round_id: int  # round in which the update was offered
    lacks: int  # number of rounds applied since the computation
    restores: int  # number of restored states since then
    samples: events.DataSlice | None  # used samples


@dataclass(slots=True)
class ToyHistory:
    """History of a trainer, for checkers.

    Attributes:
        applied: (round, digest of the aggregate or b"") of each applied round.
        restored: (round, digest of the state) of each restore.
        computed: (round, number of samples) of each update.
        served: Rounds in which the node aggregated.
        made_of: Inputs of the last offered update.
        dropped: Number of updates that were computed ahead but not offered.
    """

    applied: list[tuple[int, bytes]] = field(default_factory=list)
    restored: list[tuple[int, bytes]] = field(default_factory=list)
    computed: list[tuple[int, int]] = field(default_factory=list)
    served: list[int] = field(default_factory=list)
    made_of: MadeOf | None = None
    dropped: int = 0


@dataclass(slots=True)
class ToyPace:
    """Durations of the actions of a trainer, in seconds.

    Attributes:
        compute_s: Bounds of the time from ``StartRound`` to ``Contributed``.
        rule_s: Time from ``Aggregate`` to ``Aggregated``.
        slowness: Factor by which computations are slower.
        by_samples: Whether the compute time is proportional to the number of samples; it is
            ``compute_s`` for a whole batch.
        prepare_s: Time from the start until the model is built.
        snapshot_s: Time to copy or restore the state.
    """

    compute_s: tuple[float, float] = (0.005, 0.015)
    rule_s: float = 0.0001
    slowness: float = 1.0
    by_samples: bool = False
    prepare_s: float = PREPARE_S
    snapshot_s: float = SNAPSHOT_S

    def draw_s(self, rng: random.Random, batches: float = 1.0) -> float:
        """Return a random compute time for a round with this number of batches, in seconds."""
        drawn_s = rng.uniform(*self.compute_s) * self.slowness
        return drawn_s * batches if self.by_samples else drawn_s


@dataclass(frozen=True, slots=True)
class _Draft:
    """A computed update, for the round that ``go`` starts. If it was computed ahead, ``go`` is a
    guess."""

    go: events.StartRound
    honest: list[float]
    offered: list[float]
    samples: int
    applied: int  # number of applied rounds at the computation
    restores: int  # number of restores at the computation

    def fits(self, go: events.StartRound) -> bool:
        """Whether the update fits to this round: round, fragment and samples are the same."""
        mine, theirs = self.go.samples, go.samples
        if (self.go.round_id, self.go.collectives) != (go.round_id, go.collectives):
            return False
        if mine is None or theirs is None:
            return mine is theirs
        return (mine.epoch, mine.ranges) == (theirs.epoch, theirs.ranges)


@dataclass(slots=True)
class OptimizerTurns:
    """Order of the steps of two optimizers in a script.

    Attributes:
        every: Number of steps of the first optimizer before each step of the second optimizer; 0 if
            there is only one optimizer.
        steps: Number of steps since the last step of the second optimizer.
        awaits: Whether the script has begun a step that is not applied yet.
    """

    every: int = 0
    steps: int = 0
    awaits: bool = False

    @property
    def kind(self) -> int:
        """Kind of the script's present step."""
        if not self.every:
            return 0
        return FIRST if self.steps < self.every else FURTHER

    def record(self, applied: int) -> None:
        """Record that a step of this kind has been applied."""
        if self.awaits and applied in (0, self.kind):
            self.awaits = False
            self.steps = 0 if self.kind == FURTHER else self.steps + 1


@dataclass(eq=False, repr=False, kw_only=True)
class ToyTrainer(ToyModel):
    """A ``ToyModel`` with the interface of a trainer. While it computes, other effects wait.

    Args:
        lie: Function ``(update, round) -> update`` that forges the update before it is offered.
        samples_total: Number of samples per epoch. If given, the core assigns the samples.
        rates: Learning rates of the script, as multiples of ``step_size``.
        rounds: Number of rounds that the script trains; None means unlimited.
        piece_bytes: Size of a piece of the state, in bytes.
        overlap: If 1, the trainer computes the next update during the round of the previous update.
        local_steps: Number of local steps of an update. With more than one step, ``OUTER`` applies
            the aggregate, and the memory of ``OUTER`` is part of the state. About half of the
            updates then use only a part of the samples.
        fragments: Number of fragments of the model, each as large as an update. With more than one
            fragment, the script also calls collective operations, in rounds that are not steps.
        turns: Order of the steps of the script's two optimizers.
    """

    incarnation: int = 0
    batch: int = 4
    pace: ToyPace = field(default_factory=ToyPace)
    lie: Callable[[Vector, int], Vector] | None = None
    rule: ToyRule = field(default_factory=ToyRule)
    samples_total: int | None = None
    rates: tuple[float, ...] = ()
    rounds: int | None = None
    piece_bytes: int = PIECE_BYTES
    overlap: int = 0
    turns: OptimizerTurns = field(default_factory=OptimizerTurns)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"toy/{self.seed}/{self.peer}/{self.incarnation}")
        super().__post_init__()
        self.next_round = 0
        self.confirmed: events.StateConfirmed | None = None
        self.ledger: events.LedgerReply | None = None
        self._asked = -1  # last round for which it requested a confirmation
        # Update that is being computed, possibly ahead.
        self.computing: events.Contributed | ComputedAhead | None = None
        self._go: events.StartRound | None = None  # start of the last round to which it has replied
        # For the computation ahead: the expected start of the next round, the update for it,
        # finished or not, and the own update of the present round.
        self._guess: events.StartRound | None = None
        self._draft: _Draft | None = None
        self._in_flight: Sequence[float] = ()
        self._put_off: list[Effect] = []  # effects that wait for the computation
        self.changed_at = 0.0
        self.history = ToyHistory()

    def on_start(self, now: float) -> list[tuple[float, Said]]:
        self.changed_at = now
        layout = digest_of(repr((self.sizes, self.fragments)).encode())
        answers: list[tuple[float, Said]] = [
            (
                self.pace.prepare_s,
                events.Prepared(layout, self.digest, tuple(map(bytes_for, self.sizes))),
            )
        ]
        if self.samples_total is not None:
            told = events.DataConfigured(self.samples_total, self.batch, ahead=self.overlap)
            answers.append((self.pace.prepare_s, told))
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
        """Return the expected start of the next round. Return None if the trainer does not compute
        ahead for it."""
        go = self._go
        assert go is not None
        following = replace(go, round_id=go.round_id + 1)
        if (
            not self._trains(following.round_id)
            or following.round_id % DRAINS == 0
            or self._calls(following.round_id)
        ):
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
        if self._trains(effect.round_id):
            return self._compute(effect)
        # The last round may be started again after a restore; its confirmation is requested only
        # once.
        again, self._asked = self._asked == effect.round_id, effect.round_id
        return [] if again else [(0.0002, events.ConfirmState(effect.round_id))]

    def _trains(self, round_id: int) -> bool:
        """Whether the script trains in this round."""
        return self.rounds is None or round_id < self.rounds

    def _has_to_wait(self, effect: Effect) -> bool:
        """Whether the effect has to wait until the computation ends. A round that is started again
        does not wait, unless the trainer computes ahead."""
        again = isinstance(effect, events.StartRound)
        return isinstance(self.computing, ComputedAhead) or (
            self.computing is not None and not again
        )

    def on_effect(self, effect: Effect, now: float) -> list[tuple[float, Said]]:
        if isinstance(effect, events.Aggregate):  # the node aggregates, not the trainer
            self.history.served.append(effect.round_id)
            return [(self.pace.rule_s, self.rule.run(effect, now, self.peer))]
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
                # Replicated state, settings of the script, and local state.
                packed = [
                    self._shared,
                    struct.pack("<f", self.step_size),
                    struct.pack("<i", self.peer),
                ]
                sizes = tuple([len(part) for part in packed])
                return [
                    (
                        self.pace.snapshot_s,
                        events.SnapshotTaken(
                            self.next_round, packed_of(packed, self.piece_bytes), sizes
                        ),
                    )
                ]
            case events.Restore():
                return [(self.pace.snapshot_s, self._restore(effect, now))]
            case events.StateConfirmed():
                self.confirmed = effect
                return [(0.0002, events.Stop("finished", completed=True))]
            case events.LedgerReply():
                self.ledger = effect
                return []
            case _:  # effects for the driver, or for the trainer of a stage
                raise AssertionError(f"{type(effect).__name__} is not an effect for the trainer")

    def _pause_s(self, samples: int) -> float:
        return self.pace.draw_s(self.rng, max(1, samples) / self.batch)

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
        made = self.history
        return _Draft(go, honest, offered, samples, len(made.applied), len(made.restored))

    def _calls(self, round_id: int) -> bool:
        """Whether the scripts of all peers call a collective operation in this round."""
        lot = random.Random(f"calls/{self.seed}/{round_id}")
        return self.fragments > 1 and lot.random() < CALLS

    def _compute(self, go: events.StartRound) -> list[tuple[float, Said]]:
        self._go = go
        calls = self._calls(go.round_id)
        if calls or self.turns.awaits:  # the last step was not applied: others had another kind
            empty = events.Contributed(go.round_id, 0, (), None)
            self.computing = (
                replace(empty, collective=CALL) if calls else replace(empty, kind=self.turns.kind)
            )
            return [(self._pause_s(0), self.computing)]
        self.turns.awaits = self.turns.every > 0
        history = self.history
        draft, self._draft = self._draft, None
        if draft is not None and self._is_of_use(draft, go):
            pause_s = 0.0002
        else:
            history.dropped += draft is not None
            draft = self._drafted(go)
            pause_s = self._pause_s(draft.samples)
        history.computed.append((go.round_id, draft.samples))
        lacks = len(history.applied) - draft.applied
        restores = len(history.restored) - draft.restores
        history.made_of = MadeOf(go.round_id, lacks, restores, draft.go.samples)
        self._in_flight = draft.honest
        contributed = self._contribution(draft, go)
        self.computing = contributed
        return [(pause_s, contributed)]

    def _is_of_use(self, draft: _Draft, go: events.StartRound) -> bool:
        """Whether an update that was computed ahead can be offered in this round."""
        return go.round_id == self.next_round and draft.fits(go)

    def _compute_ahead(self) -> list[tuple[float, Said]]:
        go, self._guess = self._guess, None
        assert go is not None
        if self.computing is not None or self.next_round != go.round_id - 1:
            return []
        # With fragments, the round in progress changes another fragment, so its step is not needed.
        whole = self.local_steps > 1 and self.fragments == 1
        beside = self._outer_step(self._in_flight)[0] if whole else ()
        self._draft = draft = self._drafted(go, beside)
        self.computing = ComputedAhead()
        return [(self._pause_s(draft.samples), self.computing)]

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
            loss=distance if isfinite(distance := self.distance) else None,  # as in a real node
            parameters=parameters,
            sketch=sketch,
            own=payload_of_values(draft.honest) if self.lie is not None and samples else None,
            rates=self.rates if samples else (),
            replica=self.digest if self._compares(go) else b"",
            kind=self.turns.kind,
        )

    def _compares(self, go: events.StartRound) -> bool:
        plain = self.overlap == 0 and self.local_steps == 1 and self.turns.kind != FURTHER
        return plain and go.compares

    def _used(self, round_id: int, samples: int) -> int:
        """Return how many samples of its slice the trainer uses. With local steps and without
        overlap, a random part may be left unused. Otherwise all samples are used."""
        if self.local_steps == 1 or self.overlap or samples < 2:
            return samples
        lot = random.Random(f"steps/{self.seed}/{self.peer}/{round_id}")
        return lot.choice([samples, lot.randint(1, samples)])

    def _apply(self, apply: events.Apply, now: float) -> None:
        self.history.applied.append((apply.round_id, self.move(apply)))
        if self._go is not None and apply.round_id >= self._go.round_id:
            self.turns.record(apply.kind)
        self.next_round, self.changed_at = apply.round_id + 1, now

    def _restore(self, restore: events.Restore, now: float) -> events.Restored:
        if error := self.load(bytes_of_state(restore.payload)):
            return events.Restored(restore.round_id, error)
        self.next_round, self.changed_at = restore.round_id, now
        self._draft = None  # computed from other parameters
        self.history.restored.append((restore.round_id, self.digest))
        return events.Restored(restore.round_id)
