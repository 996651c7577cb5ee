"""The node's side of the communication with its trainer. It sends the core's effects to the trainer
in order, as slots of the arena become free, and passes the trainer's messages to the core."""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import TypeAlias, assert_never

import numpy as np

from gossip.core import EpochReport, Event, Payload, events
from gossip.ipc import (
    Arena,
    Channel,
    landing_slots,
    map_received,
    messages as control,
)
from gossip.run import Journal
from gossip.transport import ResultRoom
from gossip.vectors import (
    ByteArray,
    Shape,
    WireFormat,
    bytes_for,
    described,
    is_finite,
    payload_digest,
    sketch,
    unpack_shapes,
)

from .outbox import QueuedMessage, TrainerOutbox, apply_bytes
from .result_slots import ResultSlots
from .update_slots import UpdateSlots
from .worker import Worker

LOTS_BYTES = 16
UNANSWERED_MAX = 32
"""Maximum number of rounds that were sent to the trainer and that it has not applied yet. Further
rounds wait in the node."""
_numbers_of: Callable[[EpochReport], tuple[int, ...]] = attrgetter(
    *[each.name for each in fields(EpochReport) if each.name != "given_up_ranges"]
)
"""Function that returns the integer fields of a report. ``dataclasses.astuple`` copies each value,
which is too slow for every round."""
_NO_SAMPLES = events.DataSlice(0, ())
ForTrainer: TypeAlias = (
    events.Apply
    | events.StartRound
    | events.TakeSnapshot
    | events.Restore
    | events.RebuildState
    | events.StateConfirmed
    | events.LedgerReply
    | events.PipelineTask
)
"""Effects of the core that are sent to the trainer."""


@dataclass(slots=True)
class RosterPlace:
    """Place of this peer in the roster. It is sent to the trainer with each round.

    Attributes:
        peer: Id of this peer.
        peers, rank: Size of the roster, and index of this peer in the roster.
        alive: Number of peers that are alive.
        left: Peers that have left and have not returned.
    """

    peer: int
    peers: int
    alive: int
    rank: int
    left: set[int] = field(default_factory=set)


class TrainerLink:
    """Communication with the trainer over the channel and the arena.

    Args:
        emit: Passes an event to the core. ``Prepared`` is passed to ``prepared`` instead.
        prepared: Receives the event ``Prepared``.
        judged: Receives the replies to ``JudgeCommand``.
        in_flight: Returns whether the transport still reads an array (``Transport.in_flight``).
        share: Lets other peers on this host read the arena (``Transport.share``).
        wire_of: Returns the wire format of the shards. The arguments are the number of elements of
            the flat vector, the number of marks among them, and the shapes of the tensors.
        mixes: Whether peers exchange parameters instead of results, as in gossip rounds.
        sketch_seed: Seed of the sketches, equal on all peers.
    """

    # The node creates it in one place, with most arguments by name.
    def __init__(  # noqa: PLR0913
        self,
        channel: Channel,
        worker: Worker,
        journal: Journal,
        *,
        emit: Callable[[Event], None],
        prepared: Callable[[events.Prepared], None],
        judged: Callable[[control.JudgeReply], None],
        in_flight: Callable[[object], bool],
        share: Callable[[int, ByteArray, ResultRoom], None],
        wire_of: Callable[[int, int, tuple[Shape, ...]], WireFormat],
        mixes: bool,
        sketch_seed: int,
        roster_place: RosterPlace,
    ) -> None:
        self._channel, self._worker, self._journal = channel, worker, journal
        self._emit, self._prepared, self._judged, self._in_flight = (
            emit,
            prepared,
            judged,
            in_flight,
        )
        self._share, self.roster_place = share, roster_place
        self._wire_of, self._mixes, self._sketch_seed = wire_of, mixes, sketch_seed
        self.wire: WireFormat | None = None  # None until the trainer has its model
        self._arena: Arena | None = None
        self._bounds: list[tuple[int, int]] = []  # start and stop of each shard, in elements
        self._outbox = TrainerOutbox(channel, worker, self._placed)
        self._unanswered = 0
        self._results = ResultSlots((), 0, (), in_flight, lent=False)
        self._updates = UpdateSlots(0, in_flight)
        self._in_stage = False
        self.closed = False  # Whether the trainer has sent ``Close``.
        self.ended_with: dict[str, int | str | None] = {}  # Fields of the ``Close``.
        self.round_id = -1  # Round of the last ``StartRoundCommand`` that was sent; -1 before it.
        # Time of the trainer's last update, if nothing was sent to the trainer since then; else
        # 0.0.
        self.waits_since = 0.0

    def fileno(self) -> int:
        return self._channel.fileno()

    def room(self, round_id: int, shard: int, nbytes: int) -> ByteArray | None:
        """Return memory in a result slot for a result that the node receives or computes; None if
        no slot is free."""
        return self._results.room(round_id, shard, nbytes)

    # --- effects of the core ----------------------------------------------------------------------

    def queue(self, effect: ForTrainer) -> None:
        """Queue an effect of the core. Raises: LocalError: As ``TrainerOutbox.add_round``."""
        match effect:
            case events.Apply():
                self._outbox.add_round(effect)
            case events.Restore(round_id, payload, settings, collectives):
                command = control.RestoreCommand(round_id, payload.nbytes, settings, collectives)
                self._outbox.add_payload(command, payload)
            case events.RebuildState(round_id, beside, is_last):
                for stage, payload in beside:
                    self._outbox.add_payload(control.BesideCommand(stage, payload.nbytes), payload)
                self._outbox.add(control.RebuildCommand(round_id, is_last))
            case events.RunForward() | events.RunBackward():
                self._queue_pass(effect)
            case _:
                self._outbox.add(effect)

    def _queue_pass(self, effect: events.RunForward | events.RunBackward) -> None:
        command = control.PassCommand(
            effect.round_id,
            effect.micro_batch,
            effect.attempt,
            isinstance(effect, events.RunBackward),
            0 if effect.payload is None else effect.payload.nbytes,
            effect.audit,
        )
        if effect.payload is None:
            self._outbox.add(command)
        else:
            self._outbox.add_payload(command, effect.payload)

    def ask(self, question: control.JudgeCommand, fd: int | None) -> None:
        """Send a command to the judge at once. It must not wait behind rounds without a slot,
        because these rounds may depend on the reply."""
        self._channel.send(question, fds=() if fd is None else (fd,))

    def send_halt(self, halt: events.Halt) -> None:
        """Send the halt at once. Drop the messages that are not ready and the rounds that wait for
        a slot."""
        self.flush()
        self._outbox.clear()
        self._channel.send(halt)

    def flush(self) -> bool:
        """Send the messages that are ready. Return whether any message was sent. Raises:
        ChannelClosed."""
        any_sent = self._outbox.flush()
        if any_sent:
            self.waits_since = 0.0
        return any_sent

    def _placed(self, outgoing: QueuedMessage) -> control.FromNode | None:
        """Return the message to send for a queued effect, with its slot. Return None while no slot
        is free, or while a payload is being copied."""
        what = outgoing.what
        if isinstance(what, events.Apply):
            if outgoing.placed is None:
                self._place_apply(outgoing, what)
            return outgoing.placed if outgoing.ready else None
        if isinstance(what, events.StartRound | events.CollectUpdate):
            return self._place_go(what)
        return what if outgoing.ready else None

    def _place_apply(self, outgoing: QueuedMessage, effect: events.Apply) -> None:
        """Assign a slot to a round, if one is free, and copy its result there if necessary. The
        worker copies a large result: for 100 MB, the first use of the memory alone takes a third of
        a second."""
        changes = bool(effect.payloads) or effect.mix is not None
        if self._unanswered >= UNANSWERED_MAX:
            return
        place = self._results.place(effect) if changes else (-1, True)
        if place is None:
            return
        slot, is_there = place
        self._unanswered += 1
        self._outbox.end_backlog(effect)
        outgoing.placed = control.ApplyCommand(
            effect.round_id,
            slot,
            effect.mix_scale if effect.mix is not None else 0.0,
            effect.rates,
            tuple([(each.peer, each.data) for each in effect.collected]),
            is_step=effect.is_step,
            taken=tuple([self.roster_place.peer in peers for peers in effect.contributors]),
            collectives=effect.collectives,
            replica=effect.replica,
            kind=effect.kind,
        )
        if is_there:
            return
        assert self._arena is not None
        result, mix = self._arena.results[slot], self._arena.mixes[slot]
        outgoing.ready = False

        def copied(_: None) -> None:
            outgoing.ready = True

        self._worker.run(lambda: _place(effect, result, mix), copied, apply_bytes(effect))

    def _place_go(
        self, effect: events.StartRound | events.CollectUpdate
    ) -> control.StartRoundCommand | control.CollectCommand | None:
        # Other peers may still read an earlier update, so its slot cannot be used.
        slot = self._updates.assign(effect.round_id)
        if slot is None:
            return None
        if isinstance(effect, events.CollectUpdate):
            return control.CollectCommand(effect.round_id, slot, effect.micro_batches)
        self.round_id = effect.round_id
        samples, roster, own = effect.samples or _NO_SAMPLES, effect.roster, self.roster_place
        if own.peer in roster and not self._mixes:  # gossip rounds agree on no roster
            own.peers, own.rank = len(roster), roster.index(own.peer)
        last = samples.last
        return control.StartRoundCommand(
            effect.round_id,
            slot,
            effect.samples is not None,
            samples.epoch,
            samples.ranges,
            effect.want_parameters,
            own.peers,
            own.alive,
            own.rank,
            samples.coming,
            () if last is None else _numbers_of(last),
            effect.main,
            effect.collectives,
            effect.deadline_us,
            effect.began_at,
            effect.compares,
            () if last is None else last.given_up_ranges,
            roster,
            (*effect.left, *own.left),
        )

    # --- messages of the trainer ------------------------------------------------------------------

    def receive(self) -> None:
        """Process the next packet, if one has arrived. Raises: ChannelClosed: The trainer has
        closed its end, and all its packets were received."""
        messages, fds = self._channel.receive(0)
        waiting = deque(fds)
        for message in messages:
            self._handle_message(message, waiting)
        for fd in waiting:
            os.close(fd)

    def _handle_message(self, message: control.FromTrainer, fds: deque[int]) -> None:
        match message:
            case control.Contribute():
                self._contribute(message)
            case control.PassReply():
                self._pass_done(message, fds)
            case control.AppliedReply():
                self._applied(message)
            case control.JudgeReply():
                self._judged(message)
            case control.Log() | control.ScriptPlan() | control.DivergenceReport():
                self._note(message)
            case control.Prepare():
                self._prepare(message, fds.popleft())
            case control.Snapshot():
                self._snapshot(message, fds)
            case (
                events.DataConfigured()
                | events.Restored()
                | events.StateRebuilt()
                | events.ConfirmState()
                | events.LedgerRequest()
            ):
                self._emit(message)
            case control.Close():
                self.closed = True
                self.ended_with = {
                    "state_round": message.round_id,
                    "state_digest": message.digest.hex() or None,
                    "not_saved": message.not_saved or None,
                }
                self._emit(events.Stop(message.reason, completed=message.reason == "finished"))
            case _ as never:
                assert_never(never)

    def _applied(self, said: control.AppliedReply) -> None:
        self._unanswered -= 1
        if self._in_stage:
            # In a pipeline, a round may end without an update of this peer, because no peer needs
            # it or the round is over. So ``_contribute`` cannot release all slots.
            self._updates.release_until(said.round_id)
        if said.slot >= 0:
            self._results.applied(said.slot)
        self._emit(events.Applied(said.round_id))

    def _note(self, said: control.Log | control.ScriptPlan | control.DivergenceReport) -> None:
        """Record a message of the trainer in the journal."""
        match said:
            case control.Log():
                self._journal.metrics(said.metrics, self.round_id)
            case control.ScriptPlan():
                self._journal.event("plan", **asdict(said))
            case control.DivergenceReport():
                found = asdict(said)
                self._journal.event("divergence", round=found.pop("round_id"), **found)

    def _prepare(self, said: control.Prepare, fd: int) -> None:
        if self._arena is not None:
            self._arena.close()
        self.wire = wire = self._wire_of(said.elements, said.marks, unpack_shapes(said.shapes))
        sizes = wire.sizes
        self._arena = Arena.attach(fd, said.elements, wire.arena_bytes)
        self._bounds = list(pairwise(accumulate(sizes, initial=0)))
        self._results = ResultSlots(
            self._arena.results,
            control.RESULT_SLOTS,
            self._bounds,
            lambda data: self._in_flight(data),
            lent=self._arena.lends_results,
        )
        if wire.is_plain and not self._mixes:
            # These slots are in use at the same time if no peer is behind.
            first, count = control.RESULT_SLOTS, landing_slots(said.elements) - 2
            self._worker.submit(
                partial(self._arena.populate, range(first, first + count)), lambda _: None
            )
        self._share(self._arena.fd, self._arena.memory, self._results.room)
        self._updates = UpdateSlots(control.UPDATE_SLOTS, self._in_flight)
        self._in_stage = any(said.activation_bytes)
        self._prepared(
            events.Prepared(
                said.layout,
                said.state,
                wire.update_bytes,
                said.state_bytes,
                said.round_id,
                said.ledger,
                said.collectives,
                tuple(map(bytes_for, sizes)) if self._mixes else wire.result_bytes,
                activation_bytes=said.activation_bytes,
                lots=os.urandom(LOTS_BYTES),
            )
        )

    def _pass_done(self, said: control.PassReply, fds: deque[int]) -> None:
        """Report a finished pass of a micro-batch to the core, with the payload for another
        stage."""

        def done(payload: Payload | None) -> None:
            about = said.round_id, said.micro_batch, said.attempt, payload
            self._emit(
                events.BackwardDone(*about, said.samples, said.loss, said.audit, said.took_us)
                if said.backward
                else events.ForwardDone(*about, said.audit, said.took_us)
            )

        if not said.nbytes:
            done(None)
            return
        data = np.frombuffer(map_received(fds.popleft(), said.nbytes), np.uint8)
        self._worker.run(
            lambda: Payload(data, said.nbytes, digest=payload_digest(data)), done, said.nbytes
        )

    @property
    def shard_elements(self) -> tuple[int, ...]:
        """Number of elements of each shard; () until the trainer has its model."""
        return tuple([stop - start for start, stop in self._bounds])

    def _contribute(self, said: control.Contribute) -> None:
        assert self._arena is not None
        slot = said.slot
        self.waits_since = time.monotonic()
        self._updates.release(slot)
        if said.samples == 0 and not said.parameters:
            self._emit(self._contributed(said, copy=False))
            return
        # If other peers read slowly, copy the update so that the next round has a free slot.
        copy = self._updates.is_scarce(slot)

        def contributed() -> events.Contributed:
            return self._contributed(said, copy)

        inspected = copy or said.parameters or (said.samples and not said.finite)
        self._updates.inspect(slot)
        self._worker.run(
            contributed,
            lambda event: self._offer(event, slot, copy),
            bytes_for(self._bounds[-1][1]) if inspected else 0,
        )

    def _offer(self, event: events.Contributed, slot: int, copy: bool) -> None:
        payloads = (
            event.payloads if event.parameters is None else (*event.payloads, event.parameters)
        )
        self._updates.offer(
            slot,
            []
            if copy
            else [
                payload.data if payload.encoded is None else payload.encoded for payload in payloads
            ],
        )
        self._emit(event)

    def _contributed(self, said: control.Contribute, copy: bool) -> events.Contributed:
        """Return the event that passes an update to the core. If ``copy`` is true, the event has a
        copy of the update, so its slot is free."""
        assert self._arena is not None
        slot = said.slot
        payloads: tuple[Payload, ...] = ()
        parameters = None
        if said.samples:
            told = _buffer_of(self._arena.updates[slot], copy)
            payloads = tuple([_payload(part, said.finite) for part in self._cut_at_bounds(told)])
            if self.wire is not None and not self.wire.is_plain:
                payloads = _encoded(
                    payloads, self.wire, _buffer_of(self._arena.encoded[slot], copy)
                )
        digest = b""
        if said.parameters:
            told = _buffer_of(self._arena.parameters[slot], copy)
            parameters = _payload(told)
            digest = sketch(told, self._sketch_seed)
        # Messages cannot carry non-finite numbers, and a non-finite loss has no information.
        is_loss = said.loss is not None and math.isfinite(said.loss)
        return events.Contributed(
            said.round_id,
            said.samples,
            payloads,
            said.loss if is_loss else None,
            parameters,
            digest,
            rates=said.rates if all(map(math.isfinite, said.rates)) else (),
            compiled=self._arena.compiled,
            collective=said.collective,
            skipped=said.skipped,
            steps=said.steps,
            lasted_us=said.lasted_us,
            micro_batches=said.micro_batches,
            replica=said.replica,
            kind=said.kind,
        )

    def _cut_at_bounds(self, vector: np.ndarray) -> list[np.ndarray]:
        return [vector[start:stop] for start, stop in self._bounds]

    def _snapshot(self, said: control.Snapshot, fds: deque[int]) -> None:
        if said.error or not said.nbytes:
            self._journal.event(
                "error", message=f"no snapshot before round {said.round_id}: {said.error}"
            )
            self._emit(events.SnapshotTaken(said.round_id, Payload(np.empty(0, np.uint8), 0)))
            return
        state = np.frombuffer(map_received(fds.popleft(), said.nbytes), np.uint8)

        def describe() -> Payload:
            return Payload(
                state, said.nbytes, True, *described(state.data, said.parts, base=said.base)
            )

        def emit_snapshot(payload: Payload) -> None:
            self._emit(events.SnapshotTaken(said.round_id, payload, said.parts))

        self._worker.run(describe, emit_snapshot, said.nbytes)

    def progress(self) -> events.TrainerProgress | None:
        """Return the progress of the trainer, from shared memory, so a busy trainer need not reply.
        Return None until the trainer has a model."""
        if self._arena is None:
            return None
        return events.TrainerProgress(*self._arena.progress(), self._arena.compiles)

    def close(self) -> None:
        self._channel.close()
        self._outbox.clear()
        if self._arena is not None:
            self._arena.close()


def _place(effect: events.Apply, result: np.ndarray, mix: np.ndarray) -> None:
    """Copy the result of a round, and its mix if there is one, to the slots of the arena."""
    if effect.payloads:
        at = 0
        for payload in effect.payloads:
            result[at : at + len(payload.data)] = payload.data
            at += len(payload.data)
        assert at == len(result), (
            f"round {effect.round_id}: {at} elements for an arena of {len(result)}"
        )
    else:
        result[:] = 0.0  # the round only mixes parameters
    if effect.mix is not None:
        np.copyto(mix, effect.mix.data)


def _buffer_of(truth: np.ndarray, copy: bool) -> np.ndarray:
    return truth.copy() if copy else truth


def _payload(vector: np.ndarray, known_finite: bool = False) -> Payload:
    return Payload(vector, bytes_for(len(vector)), known_finite or is_finite(vector))


def _encoded(
    payloads: Sequence[Payload], wire: WireFormat, written: np.ndarray
) -> tuple[Payload, ...]:
    """Return the payloads together with their encoded bytes. The trainer has written these to
    ``written``, one shard after another."""
    bounds = pairwise(accumulate(wire.update_bytes, initial=0))
    return tuple(
        [
            replace(payload, nbytes=stop - start, encoded=written[start:stop])
            for payload, (start, stop) in zip(payloads, bounds, strict=True)
        ]
    )


def pid_behind(channel: Channel) -> int:
    """Return the id of the process that created the channel. This process is the trainer."""
    with socket.socket(fileno=os.dup(channel.fileno())) as same:
        credentials = same.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid
