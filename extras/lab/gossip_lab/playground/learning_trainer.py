"""Trainer of a simulated peer that trains a real model."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossip.core import Effect, Payload, PeerId, events
from gossip.errors import ConfigError
from gossip.vectors import bytes_for, described, sketch
from gossip_lab.simulation import RuleRunner, Said, bytes_of_state

from .promises import UpdateBook, payload_of
from .states import ModelState, StateTable
from .tasks import Task

RULE_S, APPLY_S, SNAPSHOT_S = 0.0001, 0.0002, 0.0005
"""Virtual time to aggregate, to apply a round, and to copy or restore a state, in seconds. The
simulator's toy trainer takes the same time."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedParts:
    """Parts that the trainers of all peers share.

    Attributes:
        seed: Seed of the sketches.
        seconds: Function ``(peer, round) -> seconds``: virtual time to compute an update.
        record_state: Function that is called when a peer has a new state, with the effect that
            caused the new state.
    """

    states: StateTable
    updates: UpdateBook
    rule: RuleRunner
    task: Task
    seed: int
    seconds: Callable[[PeerId, int], float]
    record_state: Callable[[PeerId, ModelState, events.Apply | events.Restore], None]


class LearningTrainer:
    """Trainer of one incarnation of a peer. While it computes an update, other effects wait."""

    def __init__(self, peer: PeerId, shared: SharedParts) -> None:
        self.peer, self.shared = peer, shared
        self.state = shared.states.initial
        self.next_round = 0
        self._computing: events.Contributed | None = None
        self._waiting: list[Effect] = []
        self._changed_at = 0.0

    def on_start(self, now: float) -> list[tuple[float, Said]]:
        """Return the event with which the trainer reports that its model is ready."""
        self._changed_at = now
        d = len(self.state.parameters)
        layout = struct.pack("<Q", d)
        return [(0.0, events.Prepared(layout, self.state.digest, (bytes_for(d),)))]

    def progress(self, now: float) -> events.TrainerProgress:
        """Return the next round, and the time since the last round was applied or a state was
        restored, in seconds."""
        return events.TrainerProgress(self.next_round, max(0.0, now - self._changed_at))

    def is_still_valid(self, event: Said) -> bool:
        """Whether the event is still valid: an update is no longer valid if a newer update has
        replaced it."""
        return not isinstance(event, events.Contributed) or event is self._computing

    def put_off(self, said: Said) -> Sequence[Effect]:
        """Return the effects that have waited for the end of this computation."""
        if said is not self._computing:
            return ()
        self._computing = None
        waiting, self._waiting = self._waiting, []
        return waiting

    def on_effect(self, effect: Effect, now: float) -> list[tuple[float, Said]]:
        """Carry out an effect of the core. Return the replies with their delays in seconds."""
        # Done by the node, also while the trainer computes.
        if isinstance(effect, events.Aggregate):
            return [(RULE_S, self.shared.rule.run(effect, self._judge_inputs(effect)))]
        if self._computing is not None and not isinstance(effect, events.StartRound):
            self._waiting.append(effect)
            return []
        match effect:
            case events.StartRound():
                return [self._start(effect)]
            case events.Apply():
                self._adopt(self.shared.states.apply(self.state, effect), effect, now)
                return [(APPLY_S, events.Applied(effect.round_id))]
            case events.TakeSnapshot():
                return [(SNAPSHOT_S, self._snapshot())]
            case events.Restore():
                return [(SNAPSHOT_S, self._restore(effect, now))]
            case _:
                raise AssertionError(f"{type(effect).__name__} is not for this trainer")

    def _judge_inputs(self, work: events.Aggregate) -> dict[str, Any]:
        """Return the inputs of a rule that needs the peer's reference loss; none for others."""
        runner, task = self.shared.rule, self.shared.task
        if not runner.rule.needs_trainer:
            return {}
        peer = self.peer if runner.centered else None
        judge = task.reference_loss(self.state.parameters, work.round_id, peer)
        return judge.inputs(runner.rule.needs, mix=work.mix)

    def _start(self, go: events.StartRound) -> tuple[float, events.Contributed]:
        updates = self.shared.updates
        promise = updates.promise(self.peer, go.round_id, self.state)
        parameters = own_parameters = None
        if go.want_parameters:
            parameters = payload_of(self.state.parameters)
            false = updates.falsify_parameters(self.peer, go.round_id, self.state.parameters)
            if false is not None:
                own_parameters, parameters = parameters, payload_of(false)
        self._computing = events.Contributed(
            go.round_id,
            self.shared.task.samples,
            (updates.payload(promise),),
            parameters=parameters,
            sketch=b"" if parameters is None else sketch(parameters.data, self.shared.seed),
            own=updates.own_payload(promise),
            own_parameters=own_parameters,
        )
        return self.shared.seconds(self.peer, go.round_id), self._computing

    def _snapshot(self) -> events.SnapshotTaken:
        # replicated state, settings of the script, local state
        parts = (self.state.pack(), struct.pack("<i", 0), struct.pack("<i", self.peer))
        content, sizes = np.frombuffer(b"".join(parts), np.uint8), tuple(map(len, parts))
        payload = Payload(content, content.nbytes, True, *described(content, sizes))
        return events.SnapshotTaken(self.next_round, payload, sizes)

    def _restore(self, restore: events.Restore, now: float) -> events.Restored:
        try:
            state = self.shared.states.unpack(bytes_of_state(restore.payload)[:-8])
        except ConfigError as error:
            return events.Restored(restore.round_id, str(error))
        self._adopt(state, restore, now)
        return events.Restored(restore.round_id)

    def _adopt(self, state: ModelState, effect: events.Apply | events.Restore, now: float) -> None:
        self.state, self._changed_at = state, now
        self.next_round = effect.round_id + isinstance(effect, events.Apply)
        self.shared.record_state(self.peer, state, effect)
