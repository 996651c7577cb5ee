"""Audits: members of a stage recompute some micro-batches of other members.

A member selects the micro-batches that it audits with secret random bytes. An audit begins when the
audited member reports that the micro-batch is in its sum. At that time, the audited member has sent
all its results already. The auditor requests the messages of the audited member from that member's
neighbours, so the member cannot detect the audit. The auditor compares the recomputed results bit
by bit. If they differ, the other members of the stage recompute the micro-batch, too, and each
writes its finding into the commits that it creates (``ledger/audits.py``). Until then the auditor
delays its own update. So the round does not end, and the neighbours keep the tensors of the
micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from gossip.core import (
    DIGEST_BYTES,
    AuditFinding,
    AuditReply,
    AuditRequest,
    AuditVote,
    BackwardDone,
    Counted,
    Effect,
    ForwardDone,
    Payload,
    PeerId,
    Received,
    Report,
    RunBackward,
    RunForward,
    Send,
    Timers,
    Token,
    record,
)

from .barrier import StageBarrier
from .work import Work

TRIES_MAX = 3
"""Number of requests to the neighbours, or to the other members of the stage, before an audit is
abandoned. Requests are repeated because messages may be lost."""
FOLLOWED_MAX = 2
"""Largest number of micro-batches per round that this peer recomputes on request of one other
member. Without this limit, a Byzantine member could dispute all micro-batches."""

Step: TypeAlias = Literal["asking", "ready", "forward", "computed", "backward", "telling", "over"]
"""``asking``: replies of neighbours are missing. ``ready``: the forward pass may begin.
``computed``: the backward pass may begin. ``telling``: the results differ, and other members
recompute them."""


def trace_of(work: Work) -> bytes:
    """Return the digests with which a member reports its messages about a micro-batch
    (``Counted.traces``)."""
    return _side(work.input, work.input_gradient) + _side(work.output, work.gradient)


def _side(*payloads: Payload | None) -> bytes:
    """Return the digest of the payloads between two stages; the activation is first."""
    return _hash(b"".join([b"" if each is None else each.digest for each in payloads]))


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


@record
class AuditTimer:
    """Timeout of an audit."""

    round_id: int
    peer: PeerId
    micro_batch: int


@dataclass(slots=True)
class AuditSide:
    """State of the requests to a neighbour of the audited member.

    Attributes:
        others: Peers that get the request if this peer replies that it is not a neighbour. The
            micro-batch may have been rerouted, or a Byzantine member may have sent it elsewhere.
        payload: Tensor that this peer sent to the audited member.
        came: Digest of the tensor that this peer received from the audited member.
        found: Digest of the tensor that this peer should have received.
    """

    peer: PeerId
    others: list[PeerId]
    payload: Payload | None = None
    came: bytes = b""
    found: bytes | None = None

    @property
    def differs(self) -> bool:
        return self.found is not None and self.found != self.came


@dataclass(slots=True)
class Audit:
    """Audit of one micro-batch of one other member.

    Attributes:
        trace: Digests with which that member reports its messages.
        before, behind: The neighbours of that member in the previous and in the next stage; None if
            there is no such stage.
        own: Whether this peer began the audit. Otherwise another member requested it.
        tries: Number of requests in this step.
        asked_by: Members that get a message when the audit is over.
        waits_for: Members that were asked to recompute the micro-batch and have not replied.
    """

    peer: PeerId
    micro_batch: int
    trace: bytes
    own: bool
    before: AuditSide | None = None
    behind: AuditSide | None = None
    step: Step = "asking"
    tries: int = 0
    asked_by: set[PeerId] = field(default_factory=set)
    waits_for: set[PeerId] = field(default_factory=set)
    overdue: Token | None = None

    @property
    def sides(self) -> list[AuditSide]:
        return [side for side in (self.before, self.behind) if side is not None]

    @property
    def is_open(self) -> bool:
        return self.step != "over"

    def vote(self, round_id: int) -> AuditVote:
        """Return the vote on a result that differs. It names the neighbours with messages that
        contradict the trace of the audited member. If no message contradicts the trace, the member
        itself has reported the wrong result."""
        reported = self.trace[:DIGEST_BYTES], self.trace[DIGEST_BYTES:]
        disputed: list[PeerId | None] = [None, None]
        for at, side in enumerate((self.before, self.behind)):
            if side is None or side.payload is None:
                continue
            sent, received = side.payload.digest, side.came
            both = sent + received if at == 0 else received + sent  # The activation is first.
            if _hash(both) != reported[at]:
                disputed[at] = side.peer
        return AuditVote(self.peer, round_id, self.micro_batch, *disputed)


class Auditor:
    """Audits by this peer in the present round.

    Args:
        patience_s: Returns the time limit of an audit.
        on_vote: Called with each vote, which goes into the commits of this peer.

    Attributes:
        busy: The audit with a pass that the trainer computes now.
    """

    def __init__(
        self,
        barrier: StageBarrier,
        timers: Timers[Any],
        patience_s: Callable[[], float],
        on_vote: Callable[[AuditVote], None],
    ) -> None:
        self.barrier = barrier
        self.timers = timers
        self.members = barrier.members
        self._patience_s, self._on_vote = patience_s, on_vote
        self._lots = b""
        self.busy: Audit | None = None
        self.round_id = -1
        self._roster: tuple[PeerId, ...] = ()
        self._audits: dict[tuple[PeerId, int], Audit] = {}
        self._followed: dict[PeerId, int] = {}
        # (Member, micro-batch) for which it is decided whether this peer audits it.
        self._seen: set[tuple[PeerId, int]] = set()
        self._given: dict[tuple[PeerId, int], int] = {}  # Replies, by auditor and micro-batch.

    def prepare(self, lots: bytes) -> None:
        """Store the random bytes, after the trainer has built its stage. ``lots``: see
        ``Prepared``."""
        self._lots = lots

    @property
    def is_open(self) -> bool:
        """Whether an audit is in progress."""
        return any(audit.is_open for audit in self._audits.values())

    def stores(self) -> dict[str, int]:
        """Return the number of entries in each bounded store."""
        return {
            "audits": len(self._audits),
            "audits drawn": len(self._seen),
            "answers to auditors": len(self._given),
        }

    def begin(self, round_id: int, roster: tuple[PeerId, ...]) -> list[Effect]:
        """Cancel all audits, and begin a round. ``roster``: members of this stage that get
        micro-batches."""
        effects = [e for audit in self._audits.values() for e in self.timers.cancel(audit.overdue)]
        self.round_id, self._roster = round_id, roster
        self._audits = {}
        self._followed = {}
        self._given = {}
        self._seen.clear()
        return [*effects]

    # --- the choice of micro-batches --------------------------------------------------------------

    def on_counted(self, peer: PeerId, counted: Counted, now: float) -> list[Effect]:
        """Decide which of the micro-batches in another member's sum are audited. If the run has no
        audits, the report has no traces, and nothing happens."""
        if peer not in self._roster or self.barrier.local not in self._roster:
            return []
        effects: list[Effect] = []
        for micro_batch, trace in zip(counted.micro_batches, counted.traces, strict=False):
            if (peer, micro_batch) not in self._seen:
                self._seen.add((peer, micro_batch))
                if self._is_drawn(peer, micro_batch):
                    effects += self._begin(Audit(peer, micro_batch, trace, own=True), now)
        return effects

    def _is_drawn(self, peer: PeerId, micro_batch: int) -> bool:
        """Whether this peer audits a micro-batch. Each member decides independently of the others.
        The probability that at least one member audits the micro-batch is that of the settings."""
        name = f"{self.round_id}/{micro_batch}/{peer}".encode()
        draw = int.from_bytes(blake2b(name, key=self._lots, digest_size=7).digest(), "little")
        others = max(1, len(self._roster) - 1)
        spared: float = (1.0 - self.barrier.pipeline.audit) ** (1.0 / others)
        return draw / 2.0**56 < 1.0 - spared

    def _begin(self, audit: Audit, now: float) -> list[Effect]:
        stage, last = self.barrier.stage, len(self.barrier.pipeline.stages) - 1
        if stage > 0:
            audit.before = self._side(audit.micro_batch, stage - 1)
        if stage < last:
            audit.behind = self._side(audit.micro_batch, stage + 1)
        self._audits[audit.peer, audit.micro_batch] = audit
        return self._ask(audit, now)

    def _ask(self, audit: Audit, now: float) -> list[Effect]:
        """Send the requests of this step to all peers that have not replied."""
        audit.tries += 1
        settings = self.barrier.settings
        stage_of = self.barrier.pipeline.stage_of
        sends: list[Effect] = []
        for side in audit.sides if audit.step == "asking" else ():
            at = stage_of(side.peer)
            assert at is not None, "a neighbour is in a stage"
            if side.payload is None:
                where = settings.lineage, self.round_id, at, audit.micro_batch
                sends.append(Send(side.peer, AuditRequest(*where, audit.peer)))
        sends += [self._finding(p, audit, checked=False) for p in sorted(audit.waits_for)]
        return [*sends, *self._set_overdue(audit, now)]

    def _side(self, micro_batch: int, stage: int) -> AuditSide:
        """Return the state of the requests to a stage. The neighbour is the first reachable member
        in the order of the micro-batch."""
        order = self.barrier.ranking(self.round_id, micro_batch, stage)
        first, *others = [p for p in order if not self.members.skip_reason(p)] or order
        return AuditSide(first, others)

    def _set_overdue(self, audit: Audit, now: float) -> list[Effect]:
        timer = self.timers.set(
            now + self._patience_s() / TRIES_MAX,
            AuditTimer(self.round_id, audit.peer, audit.micro_batch),
        )
        before, audit.overdue = audit.overdue, timer.token
        return [*self.timers.cancel(before), timer]

    # --- requests to neighbours -------------------------------------------------------------------

    def answer(self, sender: PeerId, request: AuditRequest, work: Work | None) -> list[Effect]:
        """Reply with the tensors that this peer has exchanged with the audited member. If this peer
        waits for the gradient of its output, it replies when the gradient arrives."""
        stage = self.barrier.stage
        other = self.barrier.pipeline.stage_of(sender)
        asked = sender, request.micro_batch
        if other is None or abs(other - stage) != 1 or self._given.get(asked, 0) >= TRIES_MAX:
            return []
        sent: Payload | None = None
        received: Payload | None = None
        if work is not None and other > stage and work.target == request.peer:
            sent, received = work.output, work.gradient
            if received is None:
                work.auditors[sender] = request
                return []
        elif (
            work is not None
            and other < stage
            and work.source == request.peer
            and request.peer in work.requesters  # Otherwise this gradient was not for the member.
        ):
            sent, received = work.input_gradient, work.input
        self._given[asked] = self._given.get(asked, 0) + 1
        where = self.barrier.settings.lineage, self.round_id, other
        fields = *where, request.micro_batch, request.peer
        if sent is None or received is None:
            return [Send(sender, AuditReply(*fields, b"", b""))]
        return [Send(sender, AuditReply(*fields, sent.digest, received.digest), sent)]

    def expects(self, sender: PeerId, reply: AuditReply) -> bool:
        """Whether a reply is from a neighbour with an unanswered request."""
        audit = self._audits.get((reply.peer, reply.micro_batch))
        asks = audit is not None and audit.step == "asking" and reply.round_id == self.round_id
        return asks and any(side.peer == sender for side in audit.sides)  # type: ignore[union-attr]

    def on_reply(self, event: Received, reply: AuditReply, now: float) -> list[Effect]:
        if not self.expects(event.sender, reply):
            return []
        audit = self._audits[reply.peer, reply.micro_batch]
        payload = event.payload
        side = next(side for side in audit.sides if side.peer == event.sender)
        if payload is None or payload.digest != reply.digest or len(reply.came) != DIGEST_BYTES:
            if not side.others:
                return self._abandon_audit(
                    audit, f"it has no neighbour in the stage of {side.peer}"
                )
            side.peer, audit.tries = side.others.pop(0), 0
            return self._ask(audit, now)
        side.payload, side.came = payload, reply.came
        if all(side.payload is not None for side in audit.sides):
            audit.step = "ready"
        return []

    # --- recomputation ----------------------------------------------------------------------------

    def next_task(self) -> list[Effect]:
        """Return the next pass of an audit. The trainer must have no other tasks."""
        for audit in self._audits.values():
            where = self.round_id, audit.micro_batch, 0
            if audit.step == "ready":
                audit.step, self.busy = "forward", audit
                given = None if audit.before is None else audit.before.payload
                return [RunForward(*where, given, audit=True)]
            if audit.step == "computed":
                audit.step, self.busy = "backward", audit
                given = None if audit.behind is None else audit.behind.payload
                return [RunBackward(*where, given, audit=True)]
        return []

    def on_done(self, event: ForwardDone | BackwardDone, now: float) -> list[Effect]:
        """Process the result of a pass of an audit."""
        audit, self.busy = self.busy, None
        if audit is None or event.round_id != self.round_id or not audit.is_open:
            return []
        side = audit.behind if isinstance(event, ForwardDone) else audit.before
        if side is not None and event.payload is None:
            return self._abandon_audit(audit, "it could not be computed")
        if side is not None and event.payload is not None:
            side.found = event.payload.digest
        if isinstance(event, ForwardDone) and audit.before is not None:
            audit.step = "computed"
            return []
        return self._judge(audit, now)

    def _judge(self, audit: Audit, now: float) -> list[Effect]:
        if not any(side.differs for side in audit.sides):
            return self._end(audit)
        vote = audit.vote(self.round_id)
        self._on_vote(vote)
        fields = {"subject": audit.peer, "round": self.round_id, "micro_batch": audit.micro_batch}
        contradicts = [each for each in (vote.before, vote.behind) if each is not None]
        report = Report("audit_differs", {**fields, "contradicts": contradicts})
        if not audit.own:
            return [report, *self._end(audit)]
        settled = {audit.peer, self.barrier.local, *audit.asked_by, *self._skipped(self._roster)}
        audit.waits_for = {*self._roster} - settled
        audit.step, audit.tries = "telling", 0
        return [report, *(self._ask(audit, now) if audit.waits_for else self._end(audit))]

    def _finding(self, to: PeerId, audit: Audit | AuditFinding, checked: bool) -> Send:
        where = self.barrier.settings.lineage, self.round_id, self.barrier.stage
        return Send(to, AuditFinding(*where, audit.micro_batch, audit.peer, checked))

    def _end(self, audit: Audit) -> list[Effect]:
        audit.step = "over"
        for side in audit.sides:
            side.payload = None
        answers = [self._finding(p, audit, checked=True) for p in sorted(audit.asked_by)]
        cancelled, audit.overdue = self.timers.cancel(audit.overdue), None
        return [*cancelled, *answers]

    def _abandon_audit(self, audit: Audit, why: str) -> list[Effect]:
        fields = {"subject": audit.peer, "round": self.round_id, "micro_batch": audit.micro_batch}
        return [Report("audit_given_up", {**fields, "reason": why}), *self._end(audit)]

    # --- other members of the stage ---------------------------------------------------------------

    def on_finding(
        self, sender: PeerId, finding: AuditFinding, trace: bytes | None, now: float
    ) -> list[Effect]:
        """Process another member's message that a result differs, or that the member has recomputed
        it. ``trace``: the audited member's report to this peer."""
        audit = self._audits.get((finding.peer, finding.micro_batch))
        if finding.checked:
            if audit is None or sender not in audit.waits_for:
                return []
            audit.waits_for.discard(sender)
            return [] if audit.waits_for or audit.step != "telling" else self._end(audit)
        if sender not in self._roster or finding.peer in (sender, self.barrier.local):
            return []
        if audit is not None:
            if audit.step in ("telling", "over"):
                audit.waits_for.discard(sender)  # The sender's own audit has the same finding.
                ends = audit.step == "telling" and not audit.waits_for
                reply = [self._finding(sender, audit, checked=True)]
                return reply + (self._end(audit) if ends else [])
            audit.asked_by.add(sender)
            return []
        followed = self._followed.get(sender, 0)
        if trace is None or followed >= FOLLOWED_MAX or finding.peer not in self._roster:
            return [self._finding(sender, finding, checked=True)]
        self._followed[sender] = followed + 1
        audit = Audit(finding.peer, finding.micro_batch, trace, own=False)
        audit.asked_by.add(sender)
        return self._begin(audit, now)

    def on_timer(self, timer: AuditTimer, now: float) -> list[Effect]:
        audit = self._audits.get((timer.peer, timer.micro_batch))
        if timer.round_id != self.round_id or audit is None or not audit.is_open:
            return []
        audit.overdue = None
        if audit.step not in ("asking", "telling"):
            return []  # The trainer computes a pass.
        if audit.tries < TRIES_MAX:
            return self._ask(audit, now)
        return self._abandon_audit(audit, "it took too long")

    def on_view_change(self) -> list[Effect]:
        """Stop waiting for peers that are now skipped."""
        effects: list[Effect] = []
        for audit in [each for each in self._audits.values() if each.is_open]:
            asked = [side.peer for side in audit.sides] if audit.step == "asking" else []
            if gone := self._skipped([audit.peer, *asked]):
                effects += self._abandon_audit(audit, f"peer {gone[0]} is skipped")
                continue
            audit.waits_for.difference_update(self._skipped(audit.waits_for))
            if audit.step == "telling" and not audit.waits_for:
                effects += self._end(audit)
        return effects

    def _skipped(self, peers: Iterable[PeerId]) -> list[PeerId]:
        return [peer for peer in peers if self.members.skip_reason(peer)]
