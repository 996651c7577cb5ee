"""Members of a stage compute some of each other's micro-batches again.

Which ones a member audits follows from random bytes that nobody else knows, and it asks for nothing
before the audited member has said that the micro-batch is in its sum: by then all its answers are
out. It asks the member's neighbours what they gave it and what it gave them, and the member itself
hears nothing of an audit. What comes out is compared to the last bit. Where it differs the others
of the stage compute it, too, and what each has found goes into the commits that it makes
(``ledger/audits.py``). Until they have, the auditor keeps its own update back: so the round, and
with it what neighbours keep of the micro-batch, is not over before.
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
"""How often neighbours, or the others of the stage, are asked: a message may be lost."""
FOLLOWED_MAX = 2
"""Micro-batches of a round that are computed again because one other member says that they are
wrong: so a liar who says so of all costs no more."""

Step: TypeAlias = Literal["asking", "ready", "forward", "computed", "backward", "telling", "over"]
"""``asking``: its neighbours; ``ready``: the trainer may compute it forward; ``computed``: and
backward; ``telling``: it differs, and others compute it."""


def trace_of(work: Work) -> bytes:
    """Return a member's report of what it received and sent for a micro-batch:
    ``Counted.traces``."""
    return _side(work.input, work.input_gradient) + _side(work.output, work.gradient)


def _side(*payloads: Payload | None) -> bytes:
    """Return the digest of the payloads that two stages have exchanged, the activation first."""
    return _hash(b"".join([b"" if each is None else each.digest for each in payloads]))


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


@record
class AuditTimer:
    """An audit takes too long."""

    round_id: int
    peer: PeerId
    micro_batch: int


@dataclass(slots=True)
class AuditSide:
    """A neighbour of the audited member.

    Attributes:
        others: Who is asked next, where this one was none: a micro-batch may have gone another way
            than it begins with, and who lies may have sent it another way.
        payload: What it gave that member.
        came: The digest of what that member gave it.
        found: The digest of what that member should have given.
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
        trace: That member's report of what it received and sent.
        before, behind: Its neighbours; None if it has none there.
        own: Whether it was drawn here. Otherwise another member requested it.
        tries: Number of requests in this step.
        asked_by, waits_for: Other members: those to notify when the audit is over, and those that
            compute the micro-batch, too.
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
        """Return the vote on an answer that differs. It names the neighbours that the member's
        trace contradicts. With none, the member has admitted the answer."""
        said = self.trace[:DIGEST_BYTES], self.trace[DIGEST_BYTES:]
        disputed: list[PeerId | None] = [None, None]
        for at, side in enumerate((self.before, self.behind)):
            if side is None or side.payload is None:
                continue
            given, got = side.payload.digest, side.came
            told = given + got if at == 0 else got + given  # the activation first
            if _hash(told) != said[at]:
                disputed[at] = side.peer
        return AuditVote(self.peer, round_id, self.micro_batch, *disputed)


class Auditor:
    """Args:
    patience_s: how long an audit may take.
    on_vote: takes what this peer is to say of another in commits.

    Attributes:
        busy: the trainer is at an audit.
    """

    def __init__(
        self,
        barrier: StageBarrier,
        timers: Timers[Any],
        patience_s: Callable[[], float],
        on_vote: Callable[[AuditVote], None],
    ) -> None:
        self.barrier, self.timers, self.members = barrier, timers, barrier.members
        self._patience_s, self._on_vote = patience_s, on_vote
        self._lots = b""
        self.busy: Audit | None = None
        self.round_id = -1
        self._roster: tuple[PeerId, ...] = ()
        self._audits: dict[tuple[PeerId, int], Audit] = {}
        self._followed: dict[PeerId, int] = {}
        self._seen: set[tuple[PeerId, int]] = set()  # whose lots were drawn
        self._given: dict[tuple[PeerId, int], int] = {}  # how often who was given what

    def prepare(self, lots: bytes) -> None:
        """The trainer has built its stage. ``lots``: as of ``Prepared``."""
        self._lots = lots

    @property
    def is_open(self) -> bool:
        """Whether anything is still to be computed or told."""
        return any(audit.is_open for audit in self._audits.values())

    def stores(self) -> dict[str, int]:
        """How much there is of what is bounded."""
        return {
            "audits": len(self._audits),
            "audits drawn": len(self._seen),
            "answers to auditors": len(self._given),
        }

    def begin(self, round_id: int, roster: tuple[PeerId, ...]) -> list[Effect]:
        """``roster``: those who get work in the own stage."""
        effects = [e for audit in self._audits.values() for e in self.timers.cancel(audit.overdue)]
        self.round_id, self._roster = round_id, roster
        self._audits, self._followed, self._given = {}, {}, {}
        self._seen.clear()
        return [*effects]

    # --- what is audited --------------------------------------------------------------------------

    def on_counted(self, peer: PeerId, counted: Counted, now: float) -> list[Effect]:
        """Draws whether to audit what another member has counted. Without audits it counts without
        traces."""
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
        """Each of the others draws by itself, so often that at least one of them audits with the
        probability of the settings."""
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
        """Whoever has yet to answer."""
        audit.tries += 1
        settings, stage_of = self.barrier.settings, self.barrier.pipeline.stage_of
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
        """Whoever there computes it, as the order is."""
        order = self.barrier.ranking(self.round_id, micro_batch, stage)
        gone = self._skipped(order)
        there = [peer for peer in order if peer not in gone] or order
        return AuditSide(there[0], there[1:])

    def _set_overdue(self, audit: Audit, now: float) -> list[Effect]:
        timer = self.timers.set(
            now + self._patience_s() / TRIES_MAX,
            AuditTimer(self.round_id, audit.peer, audit.micro_batch),
        )
        before, audit.overdue = audit.overdue, timer.token
        return [*self.timers.cancel(before), timer]

    # --- what neighbours are asked for ------------------------------------------------------------

    def answer(self, sender: PeerId, request: AuditRequest, work: Work | None) -> list[Effect]:
        """Reply with what this peer sent to the audited member and received from it. If the
        gradient for the output that it sent is still on its way, the reply waits until that has
        come."""
        stage, other = self.barrier.stage, self.barrier.pipeline.stage_of(sender)
        asked = sender, request.micro_batch
        if other is None or abs(other - stage) != 1 or self._given.get(asked, 0) >= TRIES_MAX:
            return []
        given: Payload | None = None
        came: Payload | None = None
        if work is not None and other > stage and work.target == request.peer:
            given, came = work.output, work.gradient
            if came is None:
                work.auditors[sender] = request
                return []
        elif (
            work is not None
            and other < stage
            and work.source == request.peer
            and request.peer in work.requesters  # else it has taken another's gradient
        ):
            given, came = work.input_gradient, work.input
        self._given[asked] = self._given.get(asked, 0) + 1
        where = self.barrier.settings.lineage, self.round_id, other
        fields = *where, request.micro_batch, request.peer
        if given is None or came is None:
            return [Send(sender, AuditReply(*fields, b"", b""))]
        return [Send(sender, AuditReply(*fields, given.digest, came.digest), given)]

    def expects(self, sender: PeerId, reply: AuditReply) -> bool:
        """Whether it is the answer of a neighbour that was asked."""
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

    # --- what is computed -------------------------------------------------------------------------

    def next_task(self) -> list[Effect]:
        """A pass for the trainer, which has nothing else to do."""
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
        """The trainer has computed a pass."""
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
        told = Report("audit_differs", {**fields, "contradicts": contradicts})
        if not audit.own:
            return [told, *self._end(audit)]
        others = [p for p in self._roster if p not in (audit.peer, self.barrier.local)]
        there = [p for p in others if not self.members.skip_reason(p)]
        audit.waits_for = set(there) - audit.asked_by
        audit.step, audit.tries = "telling", 0
        return [told, *(self._ask(audit, now) if audit.waits_for else self._end(audit))]

    def _finding(self, to: PeerId, audit: Audit, checked: bool) -> Send:
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

    # --- the others of the stage ------------------------------------------------------------------

    def on_finding(
        self, sender: PeerId, finding: AuditFinding, trace: bytes | None, now: float
    ) -> list[Effect]:
        """Another member says that an answer is wrong, or that it has computed it, too. ``trace``:
        what the audited member says of it here."""
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
                audit.waits_for.discard(sender)  # it has found the same by itself
                ends = audit.step == "telling" and not audit.waits_for
                said = [self._finding(sender, audit, checked=True)]
                return said + (self._end(audit) if ends else [])
            audit.asked_by.add(sender)
            return []
        followed = self._followed.get(sender, 0)
        if trace is None or followed >= FOLLOWED_MAX or finding.peer not in self._roster:
            where = self.barrier.settings.lineage, self.round_id, self.barrier.stage
            told = AuditFinding(*where, finding.micro_batch, finding.peer, checked=True)
            return [Send(sender, told)]
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
            return []  # the trainer takes its time
        if audit.tries < TRIES_MAX:
            return self._ask(audit, now)
        return self._abandon_audit(audit, "it took too long")

    def on_view_change(self) -> list[Effect]:
        """Somebody is skipped or back. Nobody waits for who is skipped."""
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


__all__ = ["Audit", "AuditTimer", "Auditor", "trace_of"]
