"""Messages between peers, as plain data. The codec encodes and decodes the messages, and checks
each decoded field.

``ROUND_MAX`` is the upper bound of all counters in messages, so that no peer can cause an integer
overflow.
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
# maximum size of ``StateOffer.core``; leaves 10 KiB for the rest of the header
CORE_BYTES_MAX = 54 * 1024
CROSS_SHARD_PEERS_MAX = 100
"""Maximum number of peers in a run with cross-shard decisions. With more peers, the statistics
would not fit in a message."""
# maximum total size of ``Commit.collected``, so that the commit fits in a message
COLLECTED_BYTES_MAX = 24 * 1024
PIECES_MAX = 512
"""Maximum number of pieces of a state. With more pieces, their digests would not fit in a
message."""


def is_further(kind: int) -> bool:
    """Whether a step of this kind is a further step: a step of other optimizers of the script, on
    samples that a first step has already used. The round of a further step is no step of the run,
    and uses no new samples.

    Two first steps, or two further steps, have the same kind if the same optimizers make them. Kind
    0 is a first step of all optimizers.
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
    age_ms: int  # Time since the trainer applied the last round.


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
    # the peer that is reported alive: the sender, or the peer that the sender has probed
    target: PeerId
    progress: Progress
    rumors: tuple[Rumor, ...]


@record
class Nack:
    nonce: int
    target: PeerId


@record
class PushPull:
    """The whole member table. If ``reply`` is True, the message is the reply to another
    ``PushPull``, and needs no reply itself."""

    members: tuple[Rumor, ...]
    reply: bool


@record
class Gossip:
    """Rumors that are sent without a probe."""

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
    rates: tuple[float, ...] = ()  # Learning rates of the sender's trainer; first shard only.
    # Time from the start of the round at the sender until its update was ready. If the time for
    # local steps is limited, this is the estimated time of all planned steps.
    took_us: int = 0
    collective: bytes = b""  # Value for a collective operation; in the first shard only.
    # The script of the sender has skipped its samples: it has made no step, or the gradients have
    # overflowed. In the first shard only.
    skipped: bool = False
    # In a pipeline: micro-batches over which this update is the mean, ascending.
    micro_batches: tuple[int, ...] = ()
    pass_us: int = 0  # In a pipeline: time of both passes of one micro-batch; 0 if unknown.
    replica: bytes = b""  # Digests of the sender's replica; in the first shard only.
    kind: int = 0  # Kind of the step (``is_further``).


@record
class UpdateRequest:
    """Request for the receiver's update, or for the commit if the receiver has it. The sender
    serves a later attempt, or has returned during this round."""

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    parent: bytes  # H of the previous round; the receiver ignores requests from another branch


@record
class Contribution:
    """One update that is used in a commit. ``weight`` is the share of this update in the aggregate.
    A typical update has ``outlyingness`` 1.0."""

    peer: PeerId
    samples: int
    weight: float
    outlyingness: float
    took_us: int = 0  # ``Update.took_us``, as the peer reported it.
    # In a pipeline: ``Update.micro_batches``, as the peer reported them.
    micro_batches: tuple[int, ...] = ()
    pass_us: int = 0  # In a pipeline: ``Update.pass_us``, as the peer reported it.


@record
class Rejection:
    """Rejection of a peer: a commit does not use the samples of ``peer``, for ``reason``.
    ``non_finite`` and ``wrong_size``: its update was invalid. ``quarantined``: its update was only
    measured, and ``outlyingness`` is defined as in ``Contribution``. ``skipped``: its script
    skipped its samples (in the commit of the first shard only)."""

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
    """Claim that the server of a commit makes about a result of ``peer`` in round ``round_id``.

    If ``turn`` is set, ``peer`` has sent to this server a result with the digest ``content``, in
    the attempt with the digest ``turn``. If ``silent`` is True, the server received no result of
    ``peer`` in time although ``peer`` was present. Otherwise the server has rejected the result.
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
    contradict the report of ``peer``. Both are None if the report of ``peer`` agrees with the
    reports of its neighbours.
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
    re-issues a commit, ``attempt > made_at``. The hash chain covers all fields except ``attempt``.
    """

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    made_at: int  # Attempt in which the payload was aggregated.
    server: PeerId  # Server that aggregated the payload.
    parent: bytes  # H of the previous round.
    digest: bytes  # Digest of the payload (blake2b); empty without an aggregate.
    contributors: tuple[Contribution, ...]
    rejected: tuple[Rejection, ...]
    # Roster of the next round; only the roster in the first shard is used.
    roster: tuple[PeerId, ...]
    loss: float | None  # Mean of the reported losses, weighted by samples.
    reason: str  # Reason for a missing aggregate, or "".
    # Only with cross-shard decisions, and only in the first shard. ``decision``: weights of the
    # contributors, followed by the weights of the rule's additional points; the other shards apply
    # these weights. ``measured``: digests of the statistics from which the decision was computed,
    # one for each shard, in order.
    decision: tuple[float, ...] = ()
    measured: tuple[bytes, ...] = ()
    # Learning rates of the step; only the rates in the first shard are used.
    rates: tuple[float, ...] = ()
    accusations: tuple[Accusation, ...] = ()  # Accusations by the server.
    # Values of a collective operation, ascending by peer, in the first shard only. If there are
    # more than f values, the round is a collective operation: it aggregates no updates and is no
    # step of the run.
    collected: tuple[Collected, ...] = ()
    audits: tuple[AuditVote, ...] = ()  # In a pipeline: votes of the server.
    # In the first shard only. ``replica``: replica digests that most peers have sent. ``diverged``:
    # peers that have sent other digests, ascending.
    replica: bytes = b""
    diverged: tuple[PeerId, ...] = ()
    kind: int = 0  # Kind of the aggregated updates (``is_further``).
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

    ``statistics`` are little-endian float64 values: the rule's measurements of the updates of
    ``contributors``, which are in ascending order. Both fields are empty if there are no updates.
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
    of ``shard`` for ``attempt`` or a later attempt.

    The server of ``shard`` sends the statistics again, or requests the missing updates again. If
    ``time_is_up`` is True, the other peers move ``shard`` to its next attempt.
    """

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    parent: bytes  # H of the previous round.
    decides: int  # Attempt of the first shard that the sender serves.
    time_is_up: bool


@record
class ReceivingPayload:
    """Notice that the sender is receiving payloads of rounds, so its other messages are late. The
    sender broadcasts it, and repeats it while payloads arrive."""

    lineage: bytes
    received: int  # Received bytes of round payloads since the start of this incarnation.
    pause_s: float  # Longest expected pause within a transfer at this speed, in seconds.


@record
class Compiling:
    """Notice that the sender's trainer compiles its model, so its update is late. The sender
    broadcasts it, and repeats it until the compilation ends."""

    lineage: bytes


@record
class CommitRequest:
    """Request for the stored commits of round ``first`` and later. In some shard of round ``first``
    the sender takes part in no attempt before ``attempt``. ``lacking``: shards of this round
    without a commit at the sender; empty means all shards."""

    lineage: bytes
    first: int
    attempt: int
    lacking: tuple[int, ...] = ()


# --- gossip rounds --------------------------------------------------------------------------------


@record
class Push:
    """A gradient (``what == "gradient"``) or parameters (``"parameters"``), sent to the peers that
    the plan of this round names for the sender."""

    lineage: bytes
    round_id: int
    what: Literal["gradient", "parameters"]
    samples: int
    loss: float | None
    sketch: bytes  # float32 projection of the parameters for the consensus distance, or empty


@record
class GatherValue:
    """Value of a peer for a collective operation in gossip rounds, in which no commit collects the
    values. The sender broadcasts its value. ``number``: number of the value in this incarnation,
    counted from 1."""

    lineage: bytes
    number: int
    data: bytes


# --- pipelines ------------------------------------------------------------------------------------


@record
class Activation:
    """Output of the previous stage for one micro-batch; the payload is the tensor. A receiver
    ignores an attempt that is lower than the highest received attempt of the micro-batch."""

    lineage: bytes  # lineage of the run, not of a stage
    round_id: int
    stage: int  # stage of the receiver
    micro_batch: int
    attempt: int
    digest: bytes  # digest of the payload


@record
class ActivationGradient:
    """Reply to ``Activation``. The payload is the gradient with respect to the activation."""

    lineage: bytes
    round_id: int
    stage: int  # stage of the receiver, i.e. the sender of the activation
    micro_batch: int
    attempt: int  # attempt of the activation
    digest: bytes


@record
class Withdraw:
    """Notice that ``attempt`` of the micro-batch is assigned to another member. The receiver must
    not add its own earlier attempt to its gradient sum, unless it has already done so."""

    lineage: bytes
    round_id: int
    stage: int  # stage of the receiver
    micro_batch: int
    attempt: int


@record
class ActivationRefused:
    """Notice that the sender will not compute the pass for an activation. ``known`` is the highest
    attempt of the micro-batch that the sender has received. If ``known`` is not above ``attempt``,
    the sender cannot compute any pass of this round at present."""

    lineage: bytes
    round_id: int
    stage: int  # stage of the receiver, i.e. the sender of the activation
    micro_batch: int
    attempt: int
    known: int


@record
class Counted:
    """The micro-batches in the gradient sum of the sender for a round, sent to its own stage. If
    several of these messages arrive in a round, the message with the highest ``number`` is
    valid."""

    lineage: bytes
    round_id: int
    stage: int
    number: int
    micro_batches: tuple[int, ...]  # Ascending.
    # Whether this is a repetition without a change. A receiver that has the commit of the round
    # then sends it.
    again: bool
    # With audits: two digests for each micro-batch. One covers the data exchanged with the previous
    # stage, the other covers the data exchanged with the next stage.
    traces: tuple[bytes, ...] = ()


@record
class MicroBatchesMissing:
    """Request to the previous stage to send its outputs again. No member of the sender's stage has
    these micro-batches in its sum, so the sender computes them."""

    lineage: bytes
    round_id: int
    stage: int  # Stage of the receiver.
    micro_batches: tuple[int, ...]  # Ascending.


@record
class StageDone:
    """Progress of the sender's stage, as observed by the sender. The stage has committed all rounds
    before ``committed``, and has begun round ``round_id``. ``roster`` is the roster of the stage in
    round ``committed``."""

    lineage: bytes
    stage: int
    round_id: int
    committed: int
    roster: tuple[PeerId, ...]
    asks: bool  # True if the sender also requests the progress of the receiver's stage.
    # Quarantined peers of the sender's stage, which get no micro-batches; ascending.
    locked: tuple[PeerId, ...] = ()
    pass_us: tuple[int, ...] = ()  # time of one micro-batch on each peer of ``roster``


@record
class AuditRequest:
    """Request from a member of the stage of ``peer`` to a neighbour of ``peer``, for the data that
    ``peer`` and the neighbour have exchanged for a micro-batch."""

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
    receiver recomputes the micro-batch. ``checked``: the message is the reply of a receiver that
    has recomputed the micro-batch, or does not have the data."""

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
    # ready: the peer can join the roster. leaving: the peer ends before the end of the training.
    # completed: its script has completed the training, and ``round_id`` is the round after the last
    # round.
    stage: Stage
    address: str
    bulk: str
    chain: bytes = b""  # H of the previous round; empty in gossip rounds.
    # Contributors of the latest commits; empty unless both sides of a partition may continue.
    side: tuple[PeerId, ...] = ()
    # whether the trainer of the sender has completed all rounds, and waits for the comparison of
    # states
    asks: bool = False
    # whether the rounds of the sender have begun, so that a joining peer must adopt a state
    begun: bool = False


@record
class StateRequest:
    """Request for the state before ``round_id``, or for an attestation of that state. The receiver
    replies as soon as it reaches this round.

    ``round_id == 0`` means the present round of the receiver. ``piece``: number of the requested
    piece of an offered state, counted from 1; 0 for the offer itself.
    """

    lineage: bytes
    nonce: int
    round_id: int
    what: Literal["attestation", "state"]
    piece: int = 0


@record
class StateAttestation:
    """Digest of the sender's state before ``round_id``. If the sender does not have this state, the
    digest is empty, ``reason`` is set, and ``round_id`` is the present round of the sender."""

    lineage: bytes
    nonce: int
    round_id: int
    chain: bytes  # H_{round_id - 1}.
    # Digest of the part of the state that is equal on all peers (``donor.attested_digest``).
    digest: bytes
    # Digest of the second part of the state: learning rates and other settings of the script.
    settings: bytes
    reason: str


@record
class StateOffer:
    """State of the trainer before round ``round_id``; the payload is the packed state. With an
    empty ``digest``, the sender rejects the request.

    A packed state has three parts: the part that is equal on all peers, the settings of the script,
    and the local part. If the first part is large, the offer contains its manifest in ``outline``
    (``chunks.PieceManifest``), and the payload contains only the other two parts. In this case each
    piece of the first part is the payload of a separate offer.
    """

    lineage: bytes
    nonce: int
    round_id: int  # First round to run from this state.
    chain: bytes  # H_{round_id - 1}.
    digest: bytes  # Digest of the payload.
    nbytes: int
    core: bytes  # roster, trust and data cursor, packed
    reason: str
    # lengths of the parts in the payload; empty if there is only one part
    parts: tuple[int, ...] = ()
    outline: bytes = b""
    piece: int = 0  # number of the piece in the payload, counted from 1; 0 for the offer itself


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
"""Messages that only the peers of a pipeline send."""

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
    """A message with its sender. Messages from a former incarnation are dropped, except commits,
    because a commit is valid from any sender."""

    run: bytes
    sender: PeerId
    incarnation: int
    message: Message
