"""State of one micro-batch at a member of a stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gossip.core import AuditRequest, Payload, PeerId, Token

Step: TypeAlias = Literal["queued", "forward", "sent", "ready", "backward", "counted", "given"]
"""``queued``: the forward pass is due; ``forward``: it runs; ``sent``: the output is at the next
stage; ``ready``: the gradient has arrived; ``backward``: the backward pass runs; ``counted``: it is
in the sum; ``given``: it was in the sum, and another member counts it now."""

OWES_BACKWARD: frozenset[Step] = frozenset({"forward", "sent", "ready", "backward"})
"""Steps in which the trainer stores the inputs of the backward pass."""
DONE: frozenset[Step] = frozenset({"counted", "given"})


@dataclass(slots=True)
class Work:
    """State of one micro-batch. Its payloads are kept until the end of the round: it may have to be
    recomputed, or sent again to a peer that replaces a neighbour.

    Attributes:
        attempt: Attempt of the activation that is computed on.
        source, life: Sender of the input, and its incarnation; None in the first stage.
        requesters: Peers that wait for the gradient of the input, with their attempts.
        target, out_attempt, tried: Receiver of the output, and its attempt; former receivers.
        has_waited: Whether the wait for the first member in order, which has not begun, is over.
            Then any other member may get it.
        has_it_since, sent_at, asked: Times of the first and the last sending to the target; number
            of repetitions.
        gradient: Gradient of the output.
        input_gradient: Gradient to be sent to the stage before.
        was_counted: Whether it was in the sum. Then its requesters were sent the gradient.
        auditors: Auditors of the target, which wait for the gradient to come.
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
        """Whether the gradient of its output has not yet arrived from the next stage."""
        return self.output is not None and self.gradient is None and self.step not in DONE
