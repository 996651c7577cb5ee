"""Messages between peers, as plain data. The codec encodes them, decodes them and checks each
decoded field.

``ROUND_MAX`` bounds all counters in messages, so that no peer can cause an integer overflow.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from .frozen import record

PeerId: TypeAlias = int
Status: TypeAlias = Literal["alive", "suspect", "dead", "left"]
Stage: TypeAlias = Literal["ready", "leaving", "completed"]

ROUND_MAX = 2**48
DIGEST_BYTES = 16
STATISTICS_BYTES_MAX = 48 * 1024
ACCUSATIONS_MAX = 8
AUDIT_VOTES_MAX = 8
TRACE_BYTES = 32
"""Length of each entry of ``Counted.traces``, in bytes."""
CORE_BYTES_MAX = 54 * 1024  # of ``StateOffer.core``; leaves the rest of the header 10 KiB
CROSS_SHARD_PEERS_MAX = 100
"""Maximum number of peers in a run with cross-shard decisions. The statistics of more updates would
not fit in a message."""
COLLECTED_BYTES_MAX = 24 * 1024  # sum over ``Commit.collected``, so that it fits in a message
PIECES_MAX = 512
"""Maximum number of pieces of a state. The digests of more pieces would not fit in a message."""


def is_further(kind: int) -> bool:
    """Whether a step of this kind is a further step, which other optimizers of the script make on
    samples that a first step has already used. The round of a further step is no step of the run
    and uses no new samples.

    Steps by the same optimizers have the same kind, except that a first step and a further step
    always differ. Kind 0 is a first step by all optimizers.
    """
    return bool(kind & 1)


# --- membership -----------------------------------------------------------------------------------


@record
class Rumor:
    """A claim about one member. ``origin`` is the first source of the claim: the accuser if the
    member is a suspect, otherwise the member itself."""

    peer: PeerId
    status: Status
    incarnation: int
    control: str  # Address of the control connection; "" if the sender does not have it.
    bulk: str  # Address of the bulk connection.
    origin: PeerId


@record
class Progress:
    """Progress of a peer's trainer. Every ack carries it, so that a peer with a hung trainer is
    skipped even if its node replies to probes."""

    step: int  # Number of rounds that the trainer has applied.
    age_ms: int  # Time since it applied the last of them.


@record
class Ping:
    nonce: int
    target: PeerId
    rumors: tuple[Rumor, ...]


@record
class PingRequest:
    """Request to a helper to probe ``target``. The helper forwards the ``Ack`` of the target with
    the nonce of this request, or sends a ``Nack`` before the deadline."""

    nonce: int
    target: PeerId
    rumors: tuple[Rumor, ...]


@record
class Ack:
    nonce: int
    target: PeerId  # the peer that is alive: the sender, or the target that the sender has probed
    progress: Progress
    rumors: tuple[Rumor, ...]


@record
class Nack:
    nonce: int
    target: PeerId


@record
class PushPull:
    """The whole member table. With ``reply``, the message answers another one and needs no
    reply."""

    members: tuple[Rumor, ...]
    reply: bool


@record
class Gossip:
    """Rumors without a probe."""

    rumors: tuple[Rumor, ...]


# --- rolling rounds -------------------------------------------------------------------------------


@record
class Update:
    """A peer's update for one shard, sent to the server of ``attempt``.
    With ``samples == 0`` there is no payload."""

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    parent: bytes  # H of the previous round; another value means a fork
    samples: int
    loss: float | None
    rates: tuple[float, ...] = ()  # Learning rates of the sender's trainer; in the first shard only
    # Time from the start of the round at the sender until its update was ready. With a time limit
    # for local steps, this is the estimated time for all planned steps.
    took_us: int = 0
    collective: bytes = b""  # Value for a collective operation; in the first shard only.
    # The script skipped its samples: it made no step, or the gradients overflowed. In the first
    # shard only.
    skipped: bool = False
    micro_batches: tuple[int, ...] = ()  # In a pipeline: micro-batches in this mean, ascending.
    pass_us: int = 0  # In a pipeline: time of both passes of one micro-batch; 0 if unknown.
    replica: bytes = b""  # Digests of the sender's replica; in the first shard only.
    kind: int = 0  # Kind of the step (``is_further``).


@record
class UpdateRequest:
    """Request for the receiver's update, or for the commit if the receiver has it. The sender is
    the server of a later attempt, or a server that returned during this round."""

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    parent: bytes  # H of the previous round; peers ignore a server on another branch


@record
class Contribution:
    """One update that a commit used. ``weight`` is its share of the aggregate. A typical update has
    ``outlyingness`` 1.0."""

    peer: PeerId
    samples: int
    weight: float
    outlyingness: float
    took_us: int = 0  # As reported.
    micro_batches: tuple[int, ...] = ()  # In a pipeline, as reported.
    pass_us: int = 0  # In a pipeline: reported time of both passes of one micro-batch.


@record
class Rejection:
    """A peer without used samples in a commit, and the reason. ``non_finite`` and ``wrong_size``
    describe its update. ``quarantined``: the update was only measured, and ``outlyingness`` is
    defined as in ``Contribution``. ``skipped``: the script skipped its samples (in the commit of
    the first shard only)."""

    peer: PeerId
    reason: str
    outlyingness: float = 0.0


@record
class Collected:
    """Value that a peer contributed to a collective operation, from ``Update.collective``."""

    peer: PeerId
    data: bytes


@record
class Accusation:
    """A claim by the server of a commit about the result of ``peer`` in round ``round_id``.

    With a ``turn``, ``peer`` has sent the server the result of this attempt with this ``content``.
    Otherwise the server has rejected the result. If ``silent``, it received no result in time
    although ``peer`` was present.
    """

    peer: PeerId
    round_id: int
    silent: bool = False
    turn: bytes = b""
    content: bytes = b""


@record
class AuditVote:
    """A claim by the server of a commit in a pipeline: ``peer`` has sent a wrong result for a
    micro-batch of round ``round_id``. The server recomputed the micro-batch from the data that the
    neighbours of ``peer`` reported.

    ``before`` and ``behind``: members of the previous and of the next stage with reports that
    contradict that of ``peer``. Both are None if the report of ``peer`` agrees with those of its
    neighbours.
    """

    peer: PeerId
    round_id: int
    micro_batch: int
    before: PeerId | None = None
    behind: PeerId | None = None


@record
class Commit:
    """The result of one shard of a round, which all peers apply. Its payload is the aggregate.

    ``attempt`` is the attempt in which this message is sent. If the server of a later attempt
    forwards a commit, ``attempt > made_at``. The hash chain covers all fields except ``attempt``.
    """

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    made_at: int  # Attempt under which it was aggregated.
    server: PeerId  # Server that aggregated it.
    parent: bytes  # H of the previous round.
    digest: bytes  # Of the payload (blake2b); empty without an aggregate.
    contributors: tuple[Contribution, ...]
    rejected: tuple[Rejection, ...]
    roster: tuple[PeerId, ...]  # Roster of the next round. Only that of the first shard is used.
    loss: float | None  # Mean of the reported losses, weighted by samples.
    reason: str  # Reason for a missing aggregate, or "".
    # With cross-shard decisions, in the first shard only. ``decision``: weights of the
    # contributors, followed by those of the rule's points, which the other shards apply.
    # ``measured``: digests of the statistics of each shard, in order, that the decision was
    # computed from.
    decision: tuple[float, ...] = ()
    measured: tuple[bytes, ...] = ()
    rates: tuple[float, ...] = ()  # Learning rates of the step; of the first shard only.
    accusations: tuple[Accusation, ...] = ()  # Made by the server.
    # Values of a collective operation, ascending by peer, in the first shard only. With more than f
    # values, the round is a collective operation: it aggregates nothing and is no step of the
    # training.
    collected: tuple[Collected, ...] = ()
    audits: tuple[AuditVote, ...] = ()  # In a pipeline: votes of the server.
    # In the first shard only: the replica digests that most peers have sent, and the peers that
    # sent other digests, ascending.
    replica: bytes = b""
    diverged: tuple[PeerId, ...] = ()
    kind: int = 0  # Of the aggregated updates.
    length: float = 0.0  # Typical length of an update, computed by the rule; 0.0 if unknown.


@record
class NotServing:
    """Notice that the sender does not serve an attempt, or is in another round, ``round_id``.

    ``chain``: the sender's H of the round before ``round_id`` or before ``asked_round``, whichever
    is earlier; empty if it is not stored.
    """

    lineage: bytes
    asked_round: int
    shard: int
    attempt: int
    round_id: int
    chain: bytes


@record
class PartialStatistics:
    """Statistics of one shard, sent to the server of the first shard for a cross-shard decision.

    ``statistics`` are float64, little-endian: measurements of the rule on the updates of
    ``contributors``, which are ascending. Both fields are empty without updates.
    """

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    parent: bytes  # H of the previous round
    contributors: tuple[PeerId, ...]
    statistics: bytes


@record
class PartialOverdue:
    """Notice from the server of the first shard that it has not received the ``PartialStatistics``
    of ``shard`` for ``attempt`` or a later one.

    The server of ``shard`` sends them again, or requests the missing updates again. With
    ``time_is_up`` the other peers forward the notice.
    """

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    parent: bytes  # H of the previous round.
    decides: int  # The attempt of the first shard that the sender serves.
    time_is_up: bool


@record
class ReceivingPayload:
    """Notice that the sender is receiving payloads of rounds, so its other messages are late. The
    sender broadcasts it, and repeats it while payloads arrive."""

    lineage: bytes
    received: int  # Bytes of these payloads since the start of this incarnation.
    pause_s: float  # Longest pause within a transfer that links of this speed cause.


@record
class Compiling:
    """Notice that the sender's trainer compiles its model, so its update is late. The sender
    broadcasts it, and repeats it until the compilation ends."""

    lineage: bytes


@record
class CommitRequest:
    """Request for the stored commits of round ``first`` and later. In round ``first`` the sender is
    bound to attempts from ``attempt`` on in some shard. It lacks the shards ``lacking``; empty
    means all."""

    lineage: bytes
    first: int
    attempt: int
    lacking: tuple[int, ...] = ()


# --- gossip rounds --------------------------------------------------------------------------------


@record
class Push:
    """A gradient (``what == "gradient"``) or parameters (``"parameters"``), sent to the peers that
    the plan of this round assigns to the sender."""

    lineage: bytes
    round_id: int
    what: Literal["gradient", "parameters"]
    samples: int
    loss: float | None
    sketch: bytes  # float32 projection of the parameters for the consensus distance, or empty


@record
class GatherValue:
    """Value of a peer for a collective operation in gossip rounds, which have no commit to collect
    values. The sender broadcasts it. ``number`` counts the values of this incarnation."""

    lineage: bytes
    number: int
    data: bytes


# --- pipelines ------------------------------------------------------------------------------------


@record
class Activation:
    """Output of the previous stage for one micro-batch; the payload is the tensor. A receiver
    ignores an attempt below the highest one that it has received for the micro-batch."""

    lineage: bytes  # lineage of the run, not of a stage
    round_id: int
    stage: int  # stage of the receiver
    micro_batch: int
    attempt: int
    digest: bytes  # of the payload


@record
class ActivationGradient:
    """Reply to ``Activation``. The payload is the gradient with respect to the activation."""

    lineage: bytes
    round_id: int
    stage: int  # stage of the receiver, which has sent the activation
    micro_batch: int
    attempt: int  # attempt of the activation
    digest: bytes


@record
class Withdraw:
    """Notice that ``attempt`` of the micro-batch goes to another member. The receiver must not
    count its own earlier attempt, unless it has already counted it."""

    lineage: bytes
    round_id: int
    stage: int  # stage of the receiver
    micro_batch: int
    attempt: int


@record
class ActivationRefused:
    """Notice that the sender does not compute its pass on an activation. ``known`` is the highest
    attempt that it has received. If ``known`` is not above ``attempt``, the sender cannot compute
    any pass in this round at present."""

    lineage: bytes
    round_id: int
    stage: int  # stage of the receiver, which has sent the activation
    micro_batch: int
    attempt: int
    known: int


@record
class Counted:
    """All micro-batches of a round in the sender's gradient sum, sent to its own stage. If several
    of these messages arrive in a round, the one with the highest ``number`` counts."""

    lineage: bytes
    round_id: int
    stage: int
    number: int
    micro_batches: tuple[int, ...]  # Ascending
    again: bool  # Nothing has changed; a receiver that has the commit of the round must send it.
    # With audits: two digests for each micro-batch, of the data exchanged with the previous stage
    # and of the data exchanged with the next stage.
    traces: tuple[bytes, ...] = ()


@record
class MicroBatchesMissing:
    """Request to the previous stage to send its outputs again. No member of the sender's stage has
    these micro-batches, so the sender computes them."""

    lineage: bytes
    round_id: int
    stage: int  # Stage of the receiver.
    micro_batches: tuple[int, ...]  # Ascending


@record
class StageDone:
    """Progress of the sender's stage, as the sender observes it. The stage has committed all rounds
    before ``committed``, and has begun round ``round_id``. ``roster`` is the roster of the stage in
    round ``committed``."""

    lineage: bytes
    stage: int
    round_id: int
    committed: int
    roster: tuple[PeerId, ...]
    asks: bool  # Requests the progress of the receiver's stage.
    # Quarantined peers of the sender's stage, which get no micro-batches; ascending.
    locked: tuple[PeerId, ...] = ()
    pass_us: tuple[int, ...] = ()  # for each peer of ``roster``: its time for one micro-batch


@record
class AuditRequest:
    """Request from another member of the stage of ``peer`` to a neighbour of ``peer``, for the data
    that both exchanged for a micro-batch."""

    lineage: bytes
    round_id: int
    stage: int  # stage of the receiver
    micro_batch: int
    peer: PeerId


@record
class AuditReply:
    """Reply to ``AuditRequest``. The payload is the tensor that the neighbour has sent to
    ``peer``."""

    lineage: bytes
    round_id: int
    stage: int  # stage of the receiver
    micro_batch: int
    peer: PeerId
    # digest of the payload; empty if the sender is no neighbour of ``peer`` for this micro-batch
    digest: bytes
    came: bytes  # digest of the tensor that the sender has received from ``peer``


@record
class AuditFinding:
    """Report to the sender's stage that ``peer`` has sent a wrong result for a micro-batch. The
    receiver recomputes it. ``checked``: the message is the reply, after the recomputation or
    without the data."""

    lineage: bytes
    round_id: int
    stage: int
    micro_batch: int
    peer: PeerId
    checked: bool


# --- joining and returning ------------------------------------------------------------------------


@record
class Hello:
    """First message on a connection, repeated until the ``Hello`` of the other peer arrives. Peers
    with different layouts cannot train together."""

    lineage: bytes
    # digest of names, shapes and dtypes; empty until the trainer has prepared its model
    layout: bytes
    state: bytes  # digest of the trainer's state before ``round_id``; empty if unknown
    round_id: int
    # ready: the peer can join the roster; completed: its script has completed its rounds, and
    # ``round_id`` is the round after the last one
    stage: Stage
    address: str
    bulk: str
    chain: bytes = b""  # H of the previous round; empty in gossip rounds.
    # Contributors of the latest commits; empty if two branches cannot both make rounds.
    side: tuple[PeerId, ...] = ()
    # its trainer has completed all rounds, and waits for the comparison of states
    asks: bool = False
    begun: bool = False  # its rounds have begun, so a joining peer must adopt its state


@record
class StateRequest:
    """Request for the state before ``round_id``, or for an attestation of it. The receiver replies
    as soon as it reaches this round.

    With ``round_id == 0``, the present round of the receiver is meant. ``piece`` is the number of
    one piece of an offered state, counted from 1.
    """

    lineage: bytes
    nonce: int
    round_id: int
    what: Literal["attestation", "state"]
    piece: int = 0


@record
class StateAttestation:
    """Digest of the sender's state before ``round_id``. The digest is empty if the sender has no
    such state. Then ``reason`` is set, and ``round_id`` is its present round."""

    lineage: bytes
    nonce: int
    round_id: int
    chain: bytes  # H_{round_id - 1}.
    digest: bytes  # Of the part that all peers share: ``donor.attested_digest``.
    # Digest of the second part of the state: learning rates and other settings of the script.
    settings: bytes
    reason: str


@record
class StateOffer:
    """State of the trainer before round ``round_id``; the payload is the packed state. With an
    empty ``digest``, the sender rejects the request.

    A packed state has three parts: shared by all peers, settings of the scripts, and local state.
    If the first part is large, the offer has its ``outline`` (``chunks.PieceManifest``), and the
    payload has only the other parts. Each piece of the first part is then the payload of a separate
    offer.
    """

    lineage: bytes
    nonce: int
    round_id: int  # The next round to run from this state.
    chain: bytes  # H_{round_id - 1}.
    digest: bytes  # Digest of the payload.
    nbytes: int
    core: bytes  # roster, trust and data cursor, packed
    reason: str
    parts: tuple[int, ...] = ()  # lengths of the parts in the payload; empty if it has one part
    outline: bytes = b""
    piece: int = 0  # number of this piece, counted from 1


Message: TypeAlias = (
    Ping
    | PingRequest
    | Ack
    | Nack
    | PushPull
    | Gossip
    | Update
    | UpdateRequest
    | Commit
    | NotServing
    | CommitRequest
    | Push
    | Hello
    | StateRequest
    | StateOffer
    | PartialStatistics
    | PartialOverdue
    | StateAttestation
    | Compiling
    | ReceivingPayload
    | Activation
    | ActivationGradient
    | Withdraw
    | ActivationRefused
    | Counted
    | MicroBatchesMissing
    | GatherValue
    | StageDone
    | AuditRequest
    | AuditReply
    | AuditFinding
)

PipelineMessage: TypeAlias = (
    Activation
    | ActivationGradient
    | Withdraw
    | ActivationRefused
    | Counted
    | StageDone
    | AuditRequest
    | AuditReply
    | AuditFinding
    | MicroBatchesMissing
)
"""Messages between the peers of a pipeline, in addition to those of every run."""

# Messages that go over the bulk connection, because they may have a payload.
BULK_MESSAGES: tuple[type, ...] = (
    Update,
    Commit,
    Push,
    StateOffer,
    Activation,
    ActivationGradient,
    AuditReply,
)


@record
class Envelope:
    """A message with its sender. Messages of a former incarnation are dropped. Commits are not,
    because a commit is valid from any sender."""

    run: bytes
    sender: PeerId
    incarnation: int
    message: Message
