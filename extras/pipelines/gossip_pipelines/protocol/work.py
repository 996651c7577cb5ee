"""State of one micro-batch on a member of a stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gossip.core import AuditRequest, Payload, PeerId, Token

Step: TypeAlias = Literal["queued", "forward", "sent", "ready", "backward", "counted", "given"]
"""``queued``: the forward pass must be computed. ``forward``: it is being computed. ``sent``: the
output was sent to the next stage. ``ready``: the gradient has arrived. ``backward``: the backward
pass is being computed. ``counted``: the micro-batch is in the sum. ``given``: it was in the sum,
and is now in the sum of another member."""

OWES_BACKWARD: frozenset[Step] = frozenset({"forward", "sent", "ready", "backward"})
"""Steps in which the trainer has stored tensors for the backward pass."""
DONE: frozenset[Step] = frozenset({"counted", "given"})


@dataclass(slots=True)
class Work:
    """State of one micro-batch. Its payloads are stored until the end of the round, because it may
    have to be recomputed, or sent again to a peer that replaces a neighbour.

    Attributes:
        attempt: Attempt of the activation that is used.
        source, life: Sender of the input, and the incarnation of the sender; None in the first
            stage.
        requesters: Peers that wait for the gradient of the input, with the attempt of each.
        target, out_attempt, tried: Receiver of the output; attempt of the output; earlier
            receivers.
        has_waited: Whether the wait for the first receiver in order is over. If that receiver has
            not begun its rounds, any other member may then get the output.
        has_it_since, sent_at, asked: Time of the first message to the target; time of the last
            message to it; number of repeated messages.
        gradient: Gradient of the output.
        input_gradient: Gradient of the input, for the previous stage.
        was_counted: Whether the micro-batch was in the sum. In that case the gradient was sent to
            the requesters.
        auditors: Requests of auditors of the target. They get a reply when the gradient arrives.
    """

    micro_batch: int
    attempt: int = 0
    source: PeerId | None = None
    life: int = 0
    input: Payload | None = None
    requesters: dict[PeerId, int] = field(default_factory=dict)
    step: Step = "queued"
    output: Payload | None = None
    target: PeerId | None = None
    out_attempt: int = 0
    tried: set[PeerId] = field(default_factory=set)
    has_waited: bool = False
    has_it_since: float = float("-inf")
    sent_at: float = float("-inf")
    asked: int = 0
    overdue: Token | None = None
    gradient: Payload | None = None
    input_gradient: Payload | None = None
    was_counted: bool = False
    auditors: dict[PeerId, AuditRequest] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """Whether this peer waits for the gradient of its output."""
        return self.output is not None and self.gradient is None and self.step not in DONE
