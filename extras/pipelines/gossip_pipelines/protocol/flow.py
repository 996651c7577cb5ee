"""The micro-batches of a round on one member of a stage.

``Router`` assigns the micro-batches to reachable members of the first stage. A member sends its
output to a member of the next stage, and receives the gradient from it. If the receiver is skipped,
refuses or times out, the next attempt is sent to another member. If a member is lost, its sum is
also lost. The other members of its stage detect the missing micro-batches by ``Counted``, and
recompute them from tensors that the neighbours have stored. A member sends its sum as soon as all
micro-batches are in sums of members of its stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from gossip.core import (
    CHECK_INTERVAL_S,
    DOUBLINGS_MAX,
    RESEND_S,
    TRACE_BYTES,
    Activation,
    ActivationGradient,
    ActivationRefused,
    AuditFinding,
    AuditReply,
    AuditRequest,
    BackwardDone,
    CollectUpdate,
    Contributed,
    Counted,
    DropForward,
    Effect,
    ForwardDone,
    MicroBatchesMissing,
    PeerId,
    Received,
    Report,
    ResetSum,
    RunBackward,
    RunForward,
    Send,
    StartRound,
    Timers,
    Withdraw,
    record,
)

from .audits import Auditor, AuditTimer, trace_of
from .barrier import StageBarrier
from .counts import StageCounts
from .early import EarlyMessages
from .times import GradientTimes, PassTimes, Way
from .work import DONE, OWES_BACKWARD, Work

ATTEMPTS_MAX = 2**20
"""Largest number of attempts for one micro-batch in a round. Honest peers never exceed it."""

Audited = AuditRequest | AuditReply | AuditFinding
Neighbour = Activation | ActivationGradient | Withdraw | ActivationRefused | MicroBatchesMissing


@record
class FlowTimer:
    """``overdue``: timeout of an attempt that waits for its gradient. ``pulse``: see
    ``RESEND_S``."""

    what: Literal["overdue", "pulse"]
    round_id: int
    micro_batch: int = 0
    attempt: int = 0


class MicroBatchFlow:
    """The micro-batches of a round, and the messages and tasks that they cause.

    Args:
        barrier: Provides the rosters of the other stages.
        patience_s: Returns the minimum timeout of a gradient.
        is_over: Whether this peer has all commits of a round, so that the next round may begin.

    Attributes:
        round_id: The current round; -1 before the first.
        works: State of each micro-batch in this round; the key is its number.
        weights: Members of this stage that get micro-batches, and the weight of each.
    """

    def __init__(
        self,
        barrier: StageBarrier,
        timers: Timers[Any],
        patience_s: Callable[[], float],
        is_over: Callable[[int], bool],
        auditor: Auditor,
    ) -> None:
        self.auditor, self._is_over = auditor, is_over
        self.local = barrier.local
        self.stage = barrier.stage
        pipeline = barrier.pipeline
        self.pipeline, self.barrier = pipeline, barrier
        self.members = barrier.members
        self.timers = timers
        self._patience_s = patience_s
        self.first, self.last = self.stage == 0, self.stage == len(pipeline.stages) - 1
        self.activation_bytes = 0, 0
        self.round_id = -1
        self.works: dict[int, Work] = {}
        self.weights: dict[PeerId, float] = {}
        self._passes, self._gradient_times = PassTimes(), GradientTimes()
        self._counts = StageCounts(self.members)
        self._attempts: dict[int, int] = {}  # Highest known attempt of each activation.
        self._task: Work | None = None  # Micro-batch with a pass that the trainer computes.
        self._stale = False  # Whether the result of the task will be ignored.
        self._collected: tuple[int, ...] | None = None
        self._early = EarlyMessages()
        self._away: set[PeerId] = set()  # Members of the previous stage that are skipped.
        self._pulse: int | None = None

    # --- queries ----------------------------------------------------------------------------------

    @property
    def counted(self) -> tuple[int, ...]:
        """Micro-batches in the sum of this peer, ascending."""
        return tuple(sorted(b for b, work in self.works.items() if work.step == "counted"))

    @property
    def pass_us(self) -> int:
        """Mean time of a micro-batch in this round, forward and backward, in microseconds; 0 if one
        of the two was not measured."""
        return self._passes.mean_us

    def stores(self) -> dict[str, int]:
        """Return the number of entries in each bounded store."""
        return {
            "micro-batches": len(self.works),
            "micro-batches with attempts": len(self._attempts),
            "messages kept for the next round": len(self._early),
            "members that have counted": len(self._counts),
            **self.auditor.stores(),
        }

    def is_current(self, event: Contributed) -> bool:
        """Whether an update belongs to the current sum."""
        return event.round_id == self.round_id and event.micro_batches == self._collected

    def prepare(self, activation_bytes: tuple[int, int], lots: bytes = b"") -> None:
        """Store the sizes of input and output of a micro-batch, after the trainer has built its
        stage. ``lots``: see ``Prepared``."""
        self.activation_bytes = activation_bytes
        self.auditor.prepare(lots)

    def payload_bytes(
        self, sender: PeerId, message: Activation | ActivationGradient | AuditReply
    ) -> int:
        """Return the size that the payload of a message must have, in bytes; -1 if the message is
        not allowed."""
        before = self.pipeline.stage_of(sender) == self.stage - 1
        nbytes = self.activation_bytes[0 if before else 1]
        if isinstance(message, AuditReply):
            if not self.auditor.expects(sender, message):
                return -1
            return nbytes if message.digest else 0
        near = self.stage - 1 if type(message) is Activation else self.stage + 1
        is_near = self.pipeline.stage_of(sender) == near
        return nbytes if is_near and self._is_ours(message) else -1

    def _is_ours(self, message: Neighbour | Counted | Audited) -> bool:
        """Whether a message is valid and belongs to this stage of this run."""
        if message.lineage != self.barrier.settings.lineage or message.stage != self.stage:
            return False
        most = self.pipeline.micro_batches
        if isinstance(message, Counted | MicroBatchesMissing):
            named = message.micro_batches
            if isinstance(message, Counted) and not self._are_traced(message):
                return False
            return list(named) == sorted(set(named)) and all(b < most for b in named)
        if isinstance(message, Audited):
            return message.micro_batch < most
        return message.micro_batch < most and message.attempt <= ATTEMPTS_MAX

    def _are_traced(self, counted: Counted) -> bool:
        """Whether a report has the right number of traces: one per micro-batch in runs with audits,
        otherwise none."""
        due = len(counted.micro_batches) if self.pipeline.audit else 0
        traces = counted.traces
        return len(traces) == due and all(len(trace) == TRACE_BYTES for trace in traces)

    # --- a round ----------------------------------------------------------------------------------

    def begin(self, start: StartRound, weights: dict[PeerId, float], now: float) -> list[Effect]:
        """Begin a round; the trainer has its initial parameters. ``weights``: members of this stage
        that get micro-batches, and the weight of each."""
        effects, roster = self._end(), tuple(weights)
        self.round_id = start.round_id
        self.weights = weights
        self._passes = PassTimes()
        self.works = {}
        self._attempts = {}
        self._collected = None
        self._counts.clear()
        effects += self.auditor.begin(start.round_id, roster)
        self._stale = self._task is not None
        self._gradient_times.begin_round()
        # Other stages reclaim micro-batches later, because their inputs arrive without a request.
        effects += self._beat(now) + (self._reclaim() if self.first else [])
        for event in self._early.drain():
            message = event.message
            assert isinstance(message, Neighbour | Counted)
            if message.round_id == start.round_id:
                effects += self._on_ours(event, message, now)
        return effects + self._go_on()

    def _end(self) -> list[Effect]:
        """Cancel all timers of the previous round."""
        tokens = [self._pulse, *[work.overdue for work in self.works.values()]]
        self._pulse = None
        return [effect for token in tokens for effect in self.timers.cancel(token)]

    def on_view_change(self, now: float) -> list[Effect]:
        """Reroute micro-batches of receivers that are now skipped. Send gradients again to peers
        that are no longer skipped."""
        if self.round_id < 0 or self._is_over(self.round_id):
            return []
        effects: list[Effect] = []
        for work in self.works.values():
            if work.target is None or not self.members.skip_reason(work.target):
                continue
            work.sent_at = float("-inf")  # The output may have been lost with the link.
            effects += self._send_elsewhere(work, now) if work.waits else []
        effects += self.auditor.on_view_change()
        return effects + self._resend_gradients() + self._reclaim() + self._go_on()

    def _resend_gradients(self) -> list[Effect]:
        """Send gradients of this round again to peers of the previous stage that were skipped and
        are reachable again. The gradients may have been lost with the link, and the receiver may
        not have noticed."""
        before = () if self.first else self.pipeline.stages[self.stage - 1]
        away = {peer for peer in before if self.members.skip_reason(peer)}
        back, self._away = self._away - away, away
        return [
            effect
            for work in self.works.values()
            for effect in self._send_input_gradient(work, [p for p in work.requesters if p in back])
        ]

    def on_audit_timer(self, timer: AuditTimer, now: float) -> list[Effect]:
        return self.auditor.on_timer(timer, now) + self._go_on()

    def on_joined(self, peer: PeerId, now: float) -> list[Effect]:
        """Send outputs again to a peer that has just joined the view, because the peer did not
        accept earlier messages."""
        effects: list[Effect] = []
        for work in self.works.values():
            if work.waits and work.target == peer:
                work.out_attempt += 1
                effects += self._send(work, peer, now)
        return effects

    def on_begun(self, now: float) -> list[Effect]:
        """Try the preferred receivers again for outputs without a receiver, because another peer
        has begun its rounds. The members of a stage do not begin at the same time."""
        if self.round_id < 0 or self._is_over(self.round_id):
            return []
        effects: list[Effect] = []
        for work in self.works.values():
            if work.waits and work.target is None:
                work.has_waited = False
                effects += self._send_on(work, now)
        return effects

    def on_timer(self, timer: FlowTimer, now: float) -> list[Effect]:
        if timer.round_id != self.round_id:
            return []
        if timer.what == "pulse":
            self._pulse = None
            reports = self._send_counted(again=True)
            return reports + self._beat(now) + self._reclaim() + self._go_on()
        work = self.works.get(timer.micro_batch)
        if work is None or not work.waits or work.out_attempt != timer.attempt:
            return []
        work.overdue = None
        if (
            not self._gradient_times.is_known
            and work.asked < DOUBLINGS_MAX
            and work.target is not None
        ):
            work.asked, work.out_attempt = work.asked + 1, work.out_attempt + 1
            return self._send(work, work.target, now)
        work.has_waited = work.has_waited or work.target is None
        return self._send_elsewhere(work, now)

    def _beat(self, now: float) -> list[Effect]:
        timer = self.timers.set(now + RESEND_S, FlowTimer("pulse", self.round_id))
        self._pulse = timer.token
        return [timer]

    # --- messages ---------------------------------------------------------------------------------

    def on_message(self, event: Received, at: int | None, now: float) -> list[Effect]:
        """Process a message. ``at``: the current round of this peer; None if it takes part in no
        round."""
        message = event.message
        assert isinstance(message, Neighbour | Counted | Audited)
        if not self._is_ours(message):
            return []
        begun: list[Effect] = []
        # This message is sent only after the sender has begun its rounds.
        if isinstance(message, MicroBatchesMissing):
            news = self.barrier.note_begun(event.sender, event.incarnation)
            begun = self.on_begun(now) if news and at is not None else []
        if isinstance(message, Audited):
            here = message.round_id == self.round_id and self.pipeline.audit > 0.0
            return self._on_audited(event, message, now) + self._go_on() if here else []
        if message.round_id != self.round_id:
            return begun + self._on_other_round(event, message, at)
        effects = begun + self._on_ours(event, message, now)
        return effects + self._go_on()

    def _on_audited(self, event: Received, message: Audited, now: float) -> list[Effect]:
        auditor, sender = self.auditor, event.sender
        match message:
            case AuditRequest():
                return auditor.answer(sender, message, self.works.get(message.micro_batch))
            case AuditReply():
                return auditor.on_reply(event, message, now)
            case AuditFinding():
                trace = self._counts.trace_by(message.peer, message.micro_batch)
                return auditor.on_finding(sender, message, trace, now)

    def _on_ours(self, event: Received, message: Neighbour | Counted, now: float) -> list[Effect]:
        apart = self.pipeline.stage_of(event.sender), self.stage
        if isinstance(message, Counted):
            return self._on_counted(event, message, now) if apart[0] == apart[1] else []
        forward = isinstance(message, Activation | Withdraw)
        if apart[0] != apart[1] + (-1 if forward else 1):
            return []
        match message:
            case Activation():
                return self._on_activation(event, message)
            case ActivationGradient():
                return self._on_gradient(event, message, now)
            case Withdraw():
                return self._on_withdraw(event.sender, message)
            case ActivationRefused():
                return self._on_refused(event.sender, message, now)
            case MicroBatchesMissing():
                return self._on_missing(event.sender, message, now)

    def _on_other_round(
        self, event: Received, message: Neighbour | Counted, at: int | None
    ) -> list[Effect]:
        """Process a message of another round. If this peer may soon begin that round, store the
        message. If the round is over, drop the message."""
        if message.round_id < self.round_id:
            return []
        if at is not None and at <= message.round_id <= at + 1:
            of_stage = event.sender in self.pipeline.stages[self.stage]
            self._early.keep(event, message, of_stage)
            return []
        if isinstance(message, Activation):
            return [self._refuse(event.sender, message, 0)]
        return []

    def _on_activation(self, event: Received, message: Activation) -> list[Effect]:
        sender, payload = event.sender, event.payload
        if payload is None or payload.digest != message.digest:
            return []
        if sender in self.barrier.locked_of(self.stage - 1):
            return []  # Other peers compute its micro-batches.
        if self.local not in self.weights:
            return [self._refuse(sender, message, 0)]
        work, known = self.works.get(message.micro_batch), self._attempts
        if message.attempt < known.get(message.micro_batch, 0):
            return [self._refuse(sender, message, known[message.micro_batch])]
        known[message.micro_batch] = message.attempt
        if work is None:
            work = self.works[message.micro_batch] = Work(message.micro_batch)
        work.attempt = message.attempt
        work.requesters[sender] = message.attempt
        if work.step in DONE:
            return self._send_input_gradient(work, [sender])
        if work.step == "queued" and work.gradient is None:
            work.source = sender
            work.life = event.incarnation
            work.input = payload
        return []

    def _refuse(self, sender: PeerId, message: Activation, known: int) -> Send:
        where = self.barrier.settings.lineage, message.round_id, self.stage - 1, message.micro_batch
        return Send(sender, ActivationRefused(*where, message.attempt, known))

    def _on_withdraw(self, sender: PeerId, message: Withdraw) -> list[Effect]:
        known = self._attempts.get(message.micro_batch, 0)
        self._attempts[message.micro_batch] = max(known, message.attempt)
        work = self.works.get(message.micro_batch)
        if work is None or work.requesters.get(sender, message.attempt) >= message.attempt:
            return []
        del work.requesters[sender]
        if work.step in DONE or work.step == "backward":
            return []
        if not work.requesters:
            return self._drop(work)
        if work.step != "queued" or work.source != sender or work.was_counted:
            return []
        # The other requesters must send their inputs again, because the withdrawn input is no
        # longer used.
        where = self._in_stage(self.stage - 1)
        known = self._attempts[work.micro_batch]
        asked = [
            Send(peer, ActivationRefused(*where, work.micro_batch, attempt, known))
            for peer, attempt in work.requesters.items()
        ]
        return [*self._drop(work), *asked]

    def _drop(self, work: Work) -> list[Effect]:
        """Delete a micro-batch, and withdraw its output."""
        del self.works[work.micro_batch]
        if work is self._task:
            self._stale = True
        kept = work.step in OWES_BACKWARD
        dropped = [DropForward(self.round_id, work.micro_batch)] if kept else []
        withdrawn = []
        if work.waits and work.target is not None:
            withdrawn.append(self._withdraw(work, work.target, work.out_attempt + 1))
        return [*self.timers.cancel(work.overdue), *dropped, *withdrawn]

    def _withdraw(self, work: Work, target: PeerId, attempt: int) -> Send:
        where = self._in_stage(self.stage + 1)
        return Send(target, Withdraw(*where, work.micro_batch, attempt))

    def _in_stage(self, stage: int) -> tuple[bytes, int, int]:
        """Return the common fields of all messages of this round to a stage."""
        return self.barrier.settings.lineage, self.round_id, stage

    def _on_gradient(
        self, event: Received, message: ActivationGradient, now: float
    ) -> list[Effect]:
        payload, work = event.payload, self.works.get(message.micro_batch)
        if payload is None or payload.digest != message.digest or work is None or not work.waits:
            return []
        if event.sender != work.target or message.attempt != work.out_attempt:
            return []
        work.gradient = payload
        self._gradient_times.record(now - work.has_it_since)
        if work.step == "sent":
            work.step = "ready"
        cancelled, work.overdue = self.timers.cancel(work.overdue), None
        waiting, work.auditors = work.auditors, {}
        answers: list[Effect] = [
            effect
            for peer, request in waiting.items()
            for effect in self.auditor.answer(peer, request, work)
        ]
        return [*cancelled, *answers]

    def _on_refused(self, sender: PeerId, message: ActivationRefused, now: float) -> list[Effect]:
        work = self.works.get(message.micro_batch)
        if work is None or sender != work.target or message.attempt != work.out_attempt:
            return []
        if message.known > message.attempt and work.output is not None:
            # This also holds for an output that has its gradient and was only sent again.
            work.out_attempt = message.known
            return self._send(work, sender, now)
        return self._send_elsewhere(work, now, withdraw=False) if work.waits else []

    def _on_missing(self, sender: PeerId, message: MicroBatchesMissing, now: float) -> list[Effect]:
        """Send outputs again that already have a gradient, because the sum that contained them was
        lost. An output without a gradient is still in use at another peer."""
        effects: list[Effect] = []
        for micro_batch in message.micro_batches:
            work = self.works.get(micro_batch)
            if work is None or work.output is None or work.gradient is None:
                continue
            just_sent = work.target == sender and now - work.sent_at < self._patience_s()
            if not just_sent:
                work.out_attempt += 1
                effects += self._send(work, sender, now)
        return effects

    def _on_counted(self, event: Received, message: Counted, now: float) -> list[Effect]:
        is_new, lost = self._counts.record(event.sender, event.incarnation, message)
        if not is_new:
            return []
        effects = self.auditor.on_counted(event.sender, message, now)
        return effects + (self._reclaim() if lost else [])

    # --- the trainer ------------------------------------------------------------------------------

    def on_audit_done(self, event: ForwardDone | BackwardDone, now: float) -> list[Effect]:
        """Process the result of a pass of an audit."""
        return self.auditor.on_done(event, now) + self._go_on()

    def on_forward_done(self, event: ForwardDone, now: float) -> list[Effect]:
        work = self._answered(event)
        if work is None:
            unused = event.round_id == self.round_id and event.micro_batch not in self.works
            drops = [DropForward(event.round_id, event.micro_batch)] if unused else []
            return [*drops, *self._go_on()]
        if event.payload is None and not self.last:
            return self._drop(work) + self._go_on()
        work.output = event.payload
        if self.last or work.gradient is not None:
            work.step = "ready"
            return self._go_on()
        work.step = "sent"
        sends = self._send_on(work, now) if work.target is None else []
        return sends + self._go_on()

    def on_backward_done(self, event: BackwardDone) -> list[Effect]:
        work = self._answered(event)
        if work is None:
            return self._go_on()
        if event.payload is None and not self.first:
            return self._drop(work) + self._go_on()
        work.step = "counted"
        work.was_counted = True
        work.input_gradient = event.payload
        effects = self._send_input_gradient(work, work.requesters)
        return effects + self._send_counted() + self._go_on()

    def _answered(self, event: ForwardDone | BackwardDone) -> Work | None:
        """Return the micro-batch of the completed pass; None if its result is ignored."""
        work, stale = self._task, self._stale
        self._task, self._stale = None, False
        if event.round_id == self.round_id and event.took_us:
            way: Way = "backward" if isinstance(event, BackwardDone) else "forward"
            self._passes.record(way, event.took_us)
        useful = event.round_id == self.round_id and work is not None and not stale
        return work if useful else None

    def _go_on(self) -> list[Effect]:
        """Return the effects that are now possible: the next task, and the collection of the sum. A
        round that is over gets no task, because the task would reach the trainer in the next
        round."""
        if self.round_id < 0 or self._is_over(self.round_id):
            return []
        effects = self._leave_to_others()
        effects += self._drop_duplicates()
        effects += self._next_task()
        return effects + self._collect()

    def _next_task(self) -> list[Effect]:
        """Return the next task if the trainer has none. Backward passes have priority over forward
        passes, as in 1F1B, because they free memory. Audits have the lowest priority."""
        if self._task is not None or self.auditor.busy is not None:
            return []
        return self._own_task() or self.auditor.next_task()

    def _own_task(self) -> list[Effect]:
        works = [self.works[b] for b in sorted(self.works)]
        for work in works:
            if work.step == "ready":
                work.step, self._task = "backward", work
                task = self.round_id, work.micro_batch, work.attempt
                return [RunBackward(*task, work.gradient)]
        owed = sum(1 for work in works if work.step in OWES_BACKWARD)
        if owed >= self.pipeline.forwards_max(self.stage, len(self._mates()) + 1):
            return []
        for work in works:
            if work.step != "queued":
                continue
            if self._is_of_former_life(work):
                del self.works[work.micro_batch]
                continue
            work.step, self._task = "forward", work
            return [RunForward(self.round_id, work.micro_batch, work.attempt, work.input)]
        return []

    def _is_of_former_life(self, work: Work) -> bool:
        """Whether the sender of the input has restarted, so that it has no state of the
        micro-batch."""
        source = work.source
        return source is not None and self.members.incarnation_of(source) > work.life

    def _collect(self) -> list[Effect]:
        """Collect the sum, if the stage has computed all micro-batches and this peer has no work
        left."""
        if any(work.step not in DONE for work in self.works.values()) or self._task is not None:
            return []
        if self.auditor.is_open:
            return []
        own = self.counted
        counted = self._counts.counted_by_any(self._mates()).union(own)
        if len(counted) < self.pipeline.micro_batches or own == self._collected:
            return []
        self._collected = own
        return [CollectUpdate(self.round_id, own)]

    # --- to the next stage, and back --------------------------------------------------------------

    def _send_on(self, work: Work, now: float) -> list[Effect]:
        """Send an output to a member of the next stage: the first member, in the order of the
        micro-batch, that has begun its rounds and was not tried.

        Restarted peers are last in this order. If no peer is left, all are tried again after
        ``CHECK_INTERVAL_S`` or when a peer begins its rounds.
        """
        order = self.barrier.ranking(self.round_id, work.micro_batch, self.stage + 1)
        reachable = [peer for peer in order if not self.members.skip_reason(peer)]
        untried = [peer for peer in reachable if peer not in work.tried]
        untried.sort(key=self.barrier.is_returning)
        begun = [peer for peer in untried if self.barrier.has_begun(peer)]
        if begun and (work.has_waited or begun[0] == untried[0]):
            return self._send(work, begun[0], now)
        if not begun:
            work.tried.clear()
        work.target = None
        return self._set_overdue(work, now + CHECK_INTERVAL_S)

    def _send(self, work: Work, target: PeerId, now: float) -> list[Effect]:
        payload = work.output
        assert payload is not None, "an output that is sent was computed"
        if target != work.target:
            work.has_it_since = now
        is_within_reach = not self.members.skip_reason(target)
        work.target = target
        work.sent_at = now if is_within_reach else float("-inf")
        where = self._in_stage(self.stage + 1)
        message = Activation(*where, work.micro_batch, work.out_attempt, payload.digest)
        timeout_s = self._gradient_times.timeout_s(self._patience_s(), work.asked)
        timed = self._set_overdue(work, now + timeout_s) if work.waits else []
        return [Send(target, message, payload), *timed]

    def _send_elsewhere(self, work: Work, now: float, withdraw: bool = True) -> list[Effect]:
        """Begin the next attempt, with another receiver."""
        effects: list[Effect] = []
        work.out_attempt, work.asked = work.out_attempt + 1, 0
        if work.target is not None:
            fields = {"round": self.round_id, "micro_batch": work.micro_batch, "from": work.target}
            effects.append(Report("rerouted", fields))
            work.tried.add(work.target)
            if withdraw:
                effects.append(self._withdraw(work, work.target, work.out_attempt))
        return effects + self._send_on(work, now)

    def _set_overdue(self, work: Work, at: float) -> list[Effect]:
        where = self.round_id, work.micro_batch, work.out_attempt
        timer = self.timers.set(at, FlowTimer("overdue", *where))
        before, work.overdue = work.overdue, timer.token
        return [*self.timers.cancel(before), timer]

    def _send_input_gradient(self, work: Work, to: Iterable[PeerId]) -> list[Effect]:
        """Send the gradient of the input to peers of the previous stage."""
        payload = work.input_gradient
        if payload is None:
            return []
        where = *self._in_stage(self.stage - 1), work.micro_batch
        return [
            Send(p, ActivationGradient(*where, work.requesters[p], payload.digest), payload)
            for p in to
        ]

    # --- the own stage ----------------------------------------------------------------------------

    def _mates(self) -> list[PeerId]:
        """Return the other members of this stage that are reachable and get micro-batches."""
        skipped = self.members.skip_reason
        return [peer for peer in self.weights if peer != self.local and not skipped(peer)]

    def _send_counted(self, again: bool = False) -> list[Effect]:
        where = (*self._in_stage(self.stage), self._counts.next_number())
        counted = self.counted
        traces = tuple([trace_of(self.works[b]) for b in counted]) if self.pipeline.audit else ()
        report = Counted(*where, counted, again, traces)
        # A peer in quarantine has no micro-batches, but its reply counts towards the quorum.
        locked = [p for p in self.barrier.locked_here if p != self.local]
        idle = [p for p in locked if not self.members.skip_reason(p)]
        return [Send(peer, report) for peer in (*self._mates(), *idle)]

    def _reclaim(self) -> list[Effect]:
        """Queue micro-batches that are missing in the sums of all reachable members, if this peer
        is the first reachable member in their order.

        If the input is stored, it is used again. Otherwise the first stage reads it from the data,
        and another stage requests it from the previous stage.
        """
        if self.local not in self.weights:
            return []  # This peer is in quarantine.
        mates = self._mates()
        elsewhere = self._counts.counted_by_any(mates)
        missing: list[int] = []
        for micro_batch in range(self.pipeline.micro_batches):
            work = self.works.get(micro_batch)
            if micro_batch in elsewhere or (work is not None and work.step != "given"):
                continue
            if self._first_of(micro_batch, [*mates, self.local]) != self.local:
                continue
            if work is not None:
                work.step = "queued"
            elif self.first:
                self.works[micro_batch] = Work(micro_batch)
            else:
                missing.append(micro_batch)
        return self._ask_for(missing)

    def _ask_for(self, missing: list[int]) -> list[Effect]:
        if not missing:
            return []
        asks = MicroBatchesMissing(*self._in_stage(self.stage - 1), tuple(missing))
        before = self.barrier.working(self.stage - 1)
        return [Send(p, asks) for p in before if not self.members.skip_reason(p)]

    def _leave_to_others(self) -> list[Effect]:
        """Delete unfinished micro-batches that are already in another member's sum. Otherwise one
        of the two members would have to restart its sum. This peer received such a micro-batch
        while the other member was skipped."""
        under_way = [w for w in self.works.values() if w.step not in DONE and w.step != "backward"]
        if not under_way:
            return []
        elsewhere = self._counts.counted_by_any(self._mates())
        left = [w for w in under_way if w.micro_batch in elsewhere and self._may_leave(w)]
        return [effect for work in left for effect in self._leave(work)]

    def _may_leave(self, work: Work) -> bool:
        """Whether this member may leave a micro-batch to another member, because no peer waits for
        the result here. If the micro-batch was in the sum of both, the other member may be about to
        remove it, so the order decides."""
        return not self._keeps(work.micro_batch) if work.was_counted else not work.requesters

    def _leave(self, work: Work) -> list[Effect]:
        if not work.was_counted:
            return self._drop(work)
        kept = work.step in OWES_BACKWARD
        self._stale = self._stale or work is self._task
        work.step = "given"
        return [DropForward(self.round_id, work.micro_batch)] if kept else []

    def _drop_duplicates(self) -> list[Effect]:
        """Restart the sum if it contains a micro-batch that is also in the sum of a member that is
        earlier in the order. A single micro-batch cannot be removed from a sum."""
        lost = [b for b in self.counted if not self._keeps(b)]
        if not lost:
            return []
        for work in self.works.values():
            if work.step == "counted" and work.micro_batch in lost:
                work.step = "given"
            elif work.step != "given":
                work.step = "queued"
        self._stale, self._collected = self._task is not None, None
        fields = {"round": self.round_id, "micro_batches": lost}
        return [Report("counted_twice", fields), ResetSum(self.round_id), *self._send_counted()]

    def _keeps(self, micro_batch: int) -> bool:
        others = [p for p in self._mates() if micro_batch in self._counts.counted_by(p)]
        if not others:
            return True
        return self._first_of(micro_batch, [*others, self.local]) == self.local

    def _first_of(self, micro_batch: int, peers: list[PeerId]) -> PeerId:
        """Return the member in ``peers`` that is first in the order of a micro-batch."""
        order = self.barrier.ranking(self.round_id, micro_batch, self.stage, self.weights)
        return next(peer for peer in order if peer in peers)
