"""Messages between peers, as plain data. The codec encodes them, and checks each field as it
decodes them.

``ROUND_MAX`` bounds all counters in messages, so that no peer can cause an overflow.
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
"""Length of each of ``Counted.traces``, in bytes."""
CORE_BYTES_MAX = 54 * 1024  # of ``StateOffer.core``; leaves the rest of the header 10 KiB
CROSS_SHARD_PEERS_MAX = 100
"""Maximum number of peers of a run in which shards decide together, so that the statistics of their
updates fit in a message."""
COLLECTED_BYTES_MAX = 24 * 1024  # sum over ``Commit.collected``, so that it fits in a message
PIECES_MAX = 512
"""Maximum number of pieces of a state, so that their digests fit in a message."""


def is_further(kind: int) -> bool:
    """Whether a step of this kind follows another one on the same samples, by other optimizers of
    the script. Its round is not a step of the run, and uses no samples.

    Steps of the same optimizers have the same kind if all are first or all are further ones. 0
    means a first step of all optimizers.
    """
    return bool(kind & 1)


# --- membership -----------------------------------------------------------------------------------


@record
class Rumor:
    """A claim about one member. ``origin`` is the peer that made it first: the accuser of a
    suspect, else the subject."""

    peer: PeerId
    status: Status
    incarnation: int
    control: str  # address of the control lane; "" if the sender does not have it
    bulk: str  # address of the bulk lane
    origin: PeerId


@record
class Progress:
    """Progress of a peer's trainer. Every ack carries it, so that a peer with a hung trainer is
    skipped although its node replies."""

    step: int  # rounds that the trainer has applied
    age_ms: int  # since the last of these rounds


@record
class Ping:
    nonce: int
    target: PeerId
    rumors: tuple[Rumor, ...]


@record
class PingRequest:
    """Request to probe ``target`` for the sender. The helper replies with the ``Ack`` of the target
    under the sender's nonce, or with ``Nack`` before the deadline."""

    nonce: int
    target: PeerId
    rumors: tuple[Rumor, ...]


@record
class Ack:
    nonce: int
    target: PeerId  # the live peer: the sender itself, or the target of its relayed probe
    progress: Progress
    rumors: tuple[Rumor, ...]


@record
class Nack:
    nonce: int
    target: PeerId


@record
class PushPull:
    """The whole member table. ``reply``: this is the reply, which gets no further reply."""

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
    parent: bytes  # H of the previous round: a mismatch is a fork
    samples: int
    loss: float | None
    rates: tuple[float, ...] = ()  # learning rates of its trainer; of the first shard only
    # Time from the start of the round at the sender to the update. With timed local steps, the time
    # for all planned steps.
    took_us: int = 0
    collective: bytes = b""  # value for a collective operation; of the first shard only
    # The script has skipped its samples: it made no step, or the gradients overflowed. Of the first
    # shard only.
    skipped: bool = False
    micro_batches: tuple[int, ...] = ()  # in a pipeline: micro-batches in the mean, ascending
    pass_us: int = 0  # in a pipeline: time of both passes of one; 0 means none
    replica: bytes = b""  # Digests of its replica, in the first shard only.
    kind: int = 0  # of the step that it is for (``is_further``)


@record
class UpdateRequest:
    """Request for the update, or for the commit if the receiver has it. The sender is the server of
    a later attempt, or one that has returned in this round."""

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    parent: bytes  # H of the previous round: peers ignore a server on another branch


@record
class Contribution:
    """One update that a commit used. ``weight`` is its share of the aggregate,
    ``outlyingness`` 1.0 when typical."""

    peer: PeerId
    samples: int
    weight: float
    outlyingness: float
    took_us: int = 0  # as reported
    micro_batches: tuple[int, ...] = ()  # in a pipeline, as reported
    pass_us: int = 0  # in a pipeline, reported time of both passes of one


@record
class Rejection:
    """A peer without used samples in a commit, and the reason. ``non_finite``, ``wrong_size``: of
    its update. ``quarantined``: its update was measured, and ``outlyingness`` is as of a
    contribution. ``skipped``: it has skipped its samples (in the commit of the first shard
    only)."""

    peer: PeerId
    reason: str
    outlyingness: float = 0.0


@record
class Collected:
    """A contribution of a peer to a collective operation, from ``Update.collective``."""

    peer: PeerId
    data: bytes


@record
class Accusation:
    """A claim by the server of a commit about the result of ``peer`` in round ``round_id``.

    With a ``turn``: ``peer`` has sent it the result with this ``content``. Otherwise the server has
    rejected the result, or (``silent``) received none in time although ``peer`` was present.
    """

    peer: PeerId
    round_id: int
    silent: bool = False
    turn: bytes = b""
    content: bytes = b""


@record
class AuditVote:
    """A claim by the server of a commit of a stage: ``peer`` has sent a wrong result for a
    micro-batch of round ``round_id``. The server has computed it again from the reports of the
    neighbours.

    ``before`` and ``behind``: members of the previous and the next stage that the report of
    ``peer`` contradicts. Both are None if its own report agrees with those of its neighbours.
    """

    peer: PeerId
    round_id: int
    micro_batch: int
    before: PeerId | None = None
    behind: PeerId | None = None


@record
class Commit:
    """The result of one shard of a round, which all peers apply. Its payload is the aggregate.

    ``attempt`` is the attempt under which it is sent. If a server of a later attempt forwards a
    commit, ``attempt > made_at``. All fields except ``attempt`` are in the hash chain.
    """

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    made_at: int  # attempt under which it was aggregated
    server: PeerId  # that aggregated it
    parent: bytes  # H of the previous round
    digest: bytes  # of the payload (blake2b); empty without an aggregate
    contributors: tuple[Contribution, ...]
    rejected: tuple[Rejection, ...]
    roster: tuple[PeerId, ...]  # The roster of the next round; that of the first shard counts.
    loss: float | None  # Mean of the reported losses, weighted by samples.
    reason: str  # Why there is no aggregate, or "".
    # Of the first shard, if the shards decide together: weights of the contributors, then of the
    # rule's points, for the other shards. ``measured``: digests of the statistics of each shard, in
    # order, to which the decision belongs.
    decision: tuple[float, ...] = ()
    measured: tuple[bytes, ...] = ()
    rates: tuple[float, ...] = ()  # learning rates of the step; of the first shard only
    accusations: tuple[Accusation, ...] = ()  # by the server
    # ascending, of the first shard only. With more than f of them the round is a collective
    # operation: it aggregates nothing, and is not a step of the training.
    collected: tuple[Collected, ...] = ()
    audits: tuple[AuditVote, ...] = ()  # in a pipeline: by the server
    # of the first shard only: the digests that most peers have sent of their replicas, and the
    # peers that have sent others, ascending
    replica: bytes = b""
    diverged: tuple[PeerId, ...] = ()
    kind: int = 0  # of the aggregated updates
    length: float = 0.0  # typical length of an update, by the rule; 0.0 if unknown


@record
class NotServing:
    """The sender does not serve an attempt, or is in another round, ``round_id``.

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
    """Statistics of one shard, for the server of the first shard, if the shards decide together.

    ``statistics`` are float64, little-endian: the measurements of the rule on the updates of
    ``contributors``, which ascend. Both are empty without updates.
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
    """The server of the first shard has not received the ``PartialStatistics`` of ``shard`` for
    ``attempt`` or a later one.

    The server of that shard sends them again, or requests missing updates again. With
    ``time_is_up`` the other peers forward it.
    """

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    parent: bytes  # H of the previous round
    decides: int  # the attempt of the first shard that the sender serves
    time_is_up: bool


@record
class ReceivingPayload:
    """The sender is receiving payloads of rounds, so its other messages are late. It is sent to all
    peers, and repeated while payloads arrive."""

    lineage: bytes
    received: int  # bytes of these payloads in this life
    pause_s: float  # longest pause of a transfer over links of this speed


@record
class Compiling:
    """The trainer of the sender compiles its model, so its update is late. It is sent to all peers,
    and repeated until the end of the compilation."""

    lineage: bytes


@record
class CommitRequest:
    """Request for the stored commits from round ``first`` on. In this round the sender is bound to
    attempts from ``attempt`` on in some shard, and lacks the shards ``lacking``; empty means
    all."""

    lineage: bytes
    first: int
    attempt: int
    lacking: tuple[int, ...] = ()


# --- gossip rounds --------------------------------------------------------------------------------


@record
class Push:
    """A gradient (``what == "gradient"``) or parameters (``"parameters"``) for the receivers in the
    sender's plan of this round."""

    lineage: bytes
    round_id: int
    what: Literal["gradient", "parameters"]
    samples: int
    loss: float | None
    sketch: bytes  # float32 projection of the parameters, for the consensus distance; may be empty


@record
class GatherValue:
    """Value of a peer for a collective operation in gossip rounds, where no commit collects it. It
    is sent to all other peers. ``number`` counts the values of this incarnation."""

    lineage: bytes
    number: int
    data: bytes


# --- pipelines ------------------------------------------------------------------------------------


@record
class Activation:
    """Output of the previous stage for one micro-batch; the payload is the tensor. A receiver
    ignores attempts below the highest one it has seen for the micro-batch."""

    lineage: bytes  # of the run, not of a stage
    round_id: int
    stage: int  # of the receiver
    micro_batch: int
    attempt: int
    digest: bytes  # of the payload


@record
class ActivationGradient:
    """Reply to ``Activation``. The payload is the gradient of the payload of the activation."""

    lineage: bytes
    round_id: int
    stage: int  # of the receiver, which has sent the activation
    micro_batch: int
    attempt: int  # of the activation
    digest: bytes


@record
class Withdraw:
    """The micro-batch moves to another member with ``attempt``. The receiver must not count its
    earlier attempt, unless it has already."""

    lineage: bytes
    round_id: int
    stage: int  # of the receiver
    micro_batch: int
    attempt: int


@record
class ActivationRefused:
    """The sender does not compute on an activation. ``known``: highest attempt that it has seen. If
    this is not higher, the sender can compute none in this round now."""

    lineage: bytes
    round_id: int
    stage: int  # of the receiver, which has sent the activation
    micro_batch: int
    attempt: int
    known: int


@record
class Counted:
    """All micro-batches of a round in the sender's sum, for its own stage. If two of these messages
    arrive in a round, the one with the higher ``number`` counts."""

    lineage: bytes
    round_id: int
    stage: int
    number: int
    micro_batches: tuple[int, ...]  # ascending
    again: bool  # Nothing has changed; peers with the commit of the round must send it.
    # With audits, two digests for each micro-batch: of the data exchanged with the previous stage,
    # and of that exchanged with the next stage.
    traces: tuple[bytes, ...] = ()


@record
class MicroBatchesMissing:
    """Request to the previous stage for its outputs again: no member of the sender's stage has
    them, and the sender computes them now."""

    lineage: bytes
    round_id: int
    stage: int  # of the receiver
    micro_batches: tuple[int, ...]  # ascending


@record
class StageDone:
    """Progress of the sender's stage, in the sender's view: it has the commits of all rounds
    before ``committed``, and has begun round ``round_id``. ``roster``: of its stage in round
    ``committed``."""

    lineage: bytes
    stage: int
    round_id: int
    committed: int
    roster: tuple[PeerId, ...]
    asks: bool  # requests the progress of the receiver
    # peers of its stage in quarantine, which get no work; ascending
    locked: tuple[PeerId, ...] = ()
    pass_us: tuple[int, ...] = ()  # for each peer of ``roster``: its time for a micro-batch


@record
class AuditRequest:
    """Request to a neighbour of ``peer``, from another member of its stage, for the data exchanged
    with ``peer`` for a micro-batch."""

    lineage: bytes
    round_id: int
    stage: int  # of the receiver
    micro_batch: int
    peer: PeerId


@record
class AuditReply:
    """Reply to ``AuditRequest``. The payload is the tensor that the neighbour has sent to
    ``peer``."""

    lineage: bytes
    round_id: int
    stage: int  # of the receiver
    micro_batch: int
    peer: PeerId
    # of the payload; empty if the sender is not a neighbour of ``peer`` in this micro-batch
    digest: bytes
    came: bytes  # digest of the tensor that ``peer`` has sent


@record
class AuditFinding:
    """Report to the own stage that ``peer`` has sent a wrong result for a micro-batch. The receiver
    also computes it. ``checked``: this is the reply, after the computation or without the data."""

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
    state: bytes  # digest of the trainer's state at ``round_id``; empty when unknown
    round_id: int
    # ready: can join the roster; completed: its script has completed its rounds, the last of which
    # is before ``round_id``
    stage: Stage
    address: str
    bulk: str
    chain: bytes = b""  # H of the previous round; empty in gossip rounds
    # contributors of the last commits; empty if two branches cannot coexist
    side: tuple[PeerId, ...] = ()
    # its trainer has completed all rounds, and waits for a comparison of states
    asks: bool = False
    begun: bool = False  # its rounds have begun, so a joining peer begins with its state


@record
class StateRequest:
    """Request for an attestation of the state before ``round_id``, or for this state, as soon as
    the receiver reaches this round.

    ``round_id == 0``: the present round of the receiver. ``piece``: one piece of an offered state,
    counted from 1.
    """

    lineage: bytes
    nonce: int
    round_id: int
    what: Literal["attestation", "state"]
    piece: int = 0


@record
class StateAttestation:
    """Digest of the sender's state before ``round_id``. Empty if the sender has none, for this
    ``reason``, and ``round_id`` is its present round."""

    lineage: bytes
    nonce: int
    round_id: int
    chain: bytes  # H_{round_id - 1}
    digest: bytes  # of the part that is equal on all peers: ``donor.attested_digest``
    # of the second part of the state: learning rates and other settings of the script
    settings: bytes
    reason: str


@record
class StateOffer:
    """State of the trainer before round ``round_id``; the payload is the packed state. Empty
    ``digest``: the sender refuses.

    A packed state has three parts: equal on all peers, settings of scripts, and local state. If the
    first is large, the offer has its ``outline`` (``chunks.PieceManifest``), and the payload has
    only the other parts. Then each piece is the payload of its own offer.
    """

    lineage: bytes
    nonce: int
    round_id: int  # the next round to run on this state
    chain: bytes  # H_{round_id - 1}
    digest: bytes  # of the payload
    nbytes: int
    core: bytes  # roster, trust and data cursor, packed
    reason: str
    parts: tuple[int, ...] = ()  # of the payload: lengths; empty if there is one
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
"""Messages between the peers of a pipeline, in addition to those of every swarm."""

# Messages that travel on the bulk lane, because a payload follows them (or may).
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
    """A message with its sender. Messages of an older incarnation than the known one are dropped,
    except commits, which are valid from any sender."""

    run: bytes
    sender: PeerId
    incarnation: int
    message: Message
